#include "simulator/simulator.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace coppice {

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

template <class T, class Int>
void require_offsets(std::span<const T> start, std::size_t groups, std::span<const Int> rows, const char* what) {
  require(start.size() == groups + 1 && start.front() == 0 && start.back() == static_cast<T>(rows.size()) &&
              std::is_sorted(start.begin(), start.end()),
          what);
}

template <class Int>
void require_range(std::span<const Int> column, Int low, Int high, const char* what) {
  for (Int value : column) require(low <= value && value <= high, what);
}

void require_durations(std::span<const double> column, const char* what) {
  for (double value : column) require(value >= 0 && std::isfinite(value), what);
}

void check_simulation(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options) {
  const std::size_t size = traffic.size();
  require(size < (std::size_t{1} << 31), "there must be less than 2^31 messages");
  require(traffic.bytes.size() == size, "bytes must have an entry per message");
  require(traffic.added.empty() || traffic.added.size() == size, "added must have an entry per message");
  require(traffic.wave.empty() || traffic.wave.size() == size, "wave must have an entry per message");
  require(traffic.job.empty() || traffic.job.size() == size, "job must have an entry per message");
  require_range(traffic.job, 0, std::int32_t{1} << 20, "job must lie in 0 .. 2^20");
  require(traffic.due.empty() || traffic.due.size() == size, "due must have an entry per message");
  require(traffic.send_gate.size() == size && traffic.receive_gate.size() == size, "gates must be given per message");
  const auto routes = static_cast<std::int32_t>(fabric.num_routes());
  const auto gates = static_cast<std::int32_t>(traffic.chained.size());
  require_range(traffic.route, 0, routes - 1, "route must name routes");
  require_range(traffic.bytes, std::int64_t{0}, std::int64_t{1} << 62, "bytes must lie in 0 .. 2^62");
  require_range(traffic.added, std::int64_t{0}, std::int64_t{1} << 62, "added must lie in 0 .. 2^62");
  require_range(traffic.send_gate, -1, gates - 1, "send_gate must name gates");
  require_range(traffic.receive_gate, -1, gates - 1, "receive_gate must name gates");
  require_durations(traffic.due, "due must be finite and not negative");
  require(gates == 0 || !traffic.chained[0], "the first gate has none before it");
  if (traffic.after_start.empty())
    require(traffic.after.empty(), "after needs its offsets");
  else
    require_offsets(traffic.after_start, size, traffic.after, "after_start must cut after into a run per message");
  require_range(traffic.after, 0, static_cast<std::int32_t>(size) - 1, "after must name messages");

  require(fabric.latency.size() == fabric.num_links(), "latency must have an entry per link");
  require_durations(fabric.latency, "latency must be finite and not negative");
  require(fabric.burst.empty() || fabric.burst.size() == fabric.num_links(), "burst must have an entry per link");
  require_durations(fabric.burst, "burst must be finite and not negative");
  for (double rate : fabric.rate) require(rate > 0 && std::isfinite(rate), "rate must be finite and positive");
  require_offsets(fabric.route_start, fabric.num_routes(), fabric.route_links, "route_start must cut route_links");
  require_range(fabric.route_links, 0, static_cast<std::int32_t>(fabric.num_links()) - 1, "routes must take links");
  require_durations(fabric.overhead, "overhead must be finite and not negative");
  require(fabric.sender.size() == fabric.num_routes() && fabric.receiver.size() == fabric.num_routes(),
          "sender and receiver must have an entry per route");
  require(fabric.num_gpus >= 0, "num_gpus must not be negative");
  require_range(fabric.sender, -1, fabric.num_gpus - 1, "sender must name GPUs");
  require_range(fabric.receiver, -1, fabric.num_gpus - 1, "receiver must name GPUs");
  require(options.send_engines >= 0 && options.receive_engines >= 0, "engines must not be negative");
  const auto gpus = static_cast<std::size_t>(fabric.num_gpus);
  require(fabric.group.empty() || fabric.group.size() == gpus, "group must have an entry per GPU");
  require_range(fabric.group, 0, fabric.num_gpus - 1, "group must lie in 0 .. num_gpus - 1");
  require(fabric.group.empty() || options.workers > 0, "groups must have workers");
  for (auto column : {fabric.send_occupancy, fabric.receive_occupancy}) {
    require(column.empty() || column.size() == fabric.num_routes(), "occupancy must have an entry per route");
    require_durations(column, "occupancy must be finite and not negative");
  }
  require(options.copy_rate >= 0 && std::isfinite(options.copy_rate), "copy_rate must be finite and not negative");
  require(options.add_rate >= 0 && std::isfinite(options.add_rate), "add_rate must be finite and not negative");
}

}  // namespace

Simulation empty_simulation(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options) {
  check_simulation(traffic, fabric, options);
  Simulation out;
  const std::size_t size = traffic.size();
  for (auto* column : {&out.start, &out.arrived, &out.done}) column->assign(size, -1);
  out.cause.assign(size, -1);
  out.reason.assign(size, 0);
  out.link_busy.assign(fabric.num_links(), 0);
  out.link_bytes.assign(fabric.num_links(), 0);
  return out;
}

}  // namespace coppice
