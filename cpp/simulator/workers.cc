#include "simulator/workers.h"

namespace coppice {

Workers::Workers(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options)
    : traffic_(traffic), copy_rate_(options.copy_rate) {
  if (!fabric.group.empty()) groups_.assign(static_cast<std::size_t>(fabric.num_gpus), Group{options.workers, {}});
  for (const Side side : {Side::kSend, Side::kReceive}) {
    const auto& gpu = side == Side::kSend ? fabric.sender : fabric.receiver;
    const auto& occupancy = side == Side::kSend ? fabric.send_occupancy : fabric.receive_occupancy;
    auto& ends = ends_[static_cast<std::size_t>(side)];
    ends.resize(fabric.num_routes());
    for (std::size_t route = 0; route < ends.size(); ++route) {
      if (!fabric.group.empty() && gpu[route] >= 0) ends[route].group = fabric.group[static_cast<std::size_t>(gpu[route])];
      if (!occupancy.empty()) ends[route].occupancy = on_grid(occupancy[route]);
    }
  }
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
