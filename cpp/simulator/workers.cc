#include "simulator/workers.h"

namespace coppice {

Workers::Workers(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options)
    : traffic_(traffic), fabric_(fabric), copy_rate_(options.copy_rate) {
  if (!fabric.group.empty()) groups_.assign(static_cast<std::size_t>(fabric.num_gpus), Group{options.workers, {}});
}

std::int32_t Workers::gpu_of(Turn turn) const {
  const std::int32_t route = traffic_.route[turn.message];
  return turn.side == Side::kSend ? fabric_.sender[route] : fabric_.receiver[route];
}

double Workers::occupancy(Turn turn) const {
  const auto& column = turn.side == Side::kSend ? fabric_.send_occupancy : fabric_.receive_occupancy;
  return column.empty() ? 0 : on_grid(column[traffic_.route[turn.message]]);
}

double Workers::time(Turn turn) const {
  const double copying = copy_rate_ > 0 ? on_grid(static_cast<double>(traffic_.bytes[turn.message]) / copy_rate_) : 0;
  return occupancy(turn) + copying;
}

bool Workers::line_up(Turn turn) {
  Group& group = group_of(turn);
  if (group.free == 0) {
    group.waiting.push_back(turn);
    return false;
  }
  --group.free;
  return true;
}

std::optional<Workers::Turn> Workers::release(Turn turn) {
  Group& group = group_of(turn);
  if (group.waiting.empty()) {
    ++group.free;
    return std::nullopt;
  }
  const Turn next = group.waiting.front();
  group.waiting.pop_front();
  return next;
}

}  // namespace coppice
