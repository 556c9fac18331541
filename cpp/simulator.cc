#include "simulator.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "simulator_events.h"
#include "simulator_starts.h"

namespace coppice {

namespace {

constexpr std::int64_t kEventsPerPoll = 1 << 16;

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

/// Links that serve one message at a time.
class FifoNetwork {
 public:
  FifoNetwork(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options, Simulation& out)
      : traffic_(traffic), fabric_(fabric), options_(options), out_(out), starts_(traffic, fabric, options, out) {
    latency_.reserve(fabric.num_links());
    for (double latency : fabric.latency) latency_.push_back(on_grid(latency));
    overhead_.reserve(fabric.num_routes());
    for (double overhead : fabric.overhead) overhead_.push_back(on_grid(overhead));
    free_.assign(fabric.num_links(), 0);
    last_.assign(fabric.num_links(), -1);
    at_.assign(traffic.size(), 0);
    if (!options.keep_hops) return;
    hop_start_.reserve(traffic.size());
    std::int64_t hops = 0;
    for (std::int32_t route : traffic.route) {
      hop_start_.push_back(hops);
      hops += static_cast<std::int64_t>(fabric.links(route).size());
    }
    out.hop_begin.assign(static_cast<std::size_t>(hops), -1);
    out.hop_behind.assign(static_cast<std::size_t>(hops), -1);
  }

  void run(const StopFlag& stop) {
    dispatch(0);
    for (std::int64_t count = 0; !events_.empty(); ++count) {
      if (count % kEventsPerPoll == 0 && stop && stop()) throw Cancelled{};
      const Event event = events_.top();
      // What is free now goes to whoever has the least id among all that become ready now.
      if (starts_.pending() && (event.time > now_ || event.kind() == EventKind::kHead)) {
        dispatch(now_);
        continue;
      }
      events_.pop();
      now_ = event.time;
      handle(event);
      if (events_.empty() && starts_.pending()) dispatch(now_);
    }
  }

 private:
  void dispatch(double now) {
    starts_.dispatch(
        now,
        [&](Message m) {
          const std::int32_t route = traffic_.route[m];
          const bool crosses = fabric_.route_start[route] < fabric_.route_start[route + 1];
          events_.push(Event(now + overhead_[route], crosses ? EventKind::kHead : EventKind::kArrived, m));
        },
        [&](Message m, double due) { events_.push(Event(due, EventKind::kDue, m)); });
  }

  void handle(const Event& event) {
    const Message m = event.message();
    switch (event.kind()) {
      case EventKind::kHead:
        return serve(m);
      case EventKind::kDue:
        return starts_.due(m);
      case EventKind::kArrived: {
        out_.arrived[m] = now_;
        starts_.arrived(m);
        const double adding = options_.add_rate > 0 && !traffic_.added.empty()
                                  ? on_grid(static_cast<double>(traffic_.added[m]) / options_.add_rate)
                                  : 0;
        if (adding > 0) return events_.push(Event(now_ + adding, EventKind::kDone, m));
        [[fallthrough]];
      }
      case EventKind::kDone:
        out_.done[m] = now_;
        ++out_.finished;
        return starts_.done(m);
    }
  }

  void serve(Message m) {
    const auto links = fabric_.links(traffic_.route[m]);
    const std::int32_t hop = at_[m]++;
    const std::int32_t link = links[hop];
    const double bytes = static_cast<double>(traffic_.bytes[m]);
    const double begin = std::max(now_, free_[link]), busy = on_grid(bytes / fabric_.rate[link]), end = begin + busy;
    if (options_.keep_hops) {
      out_.hop_begin[hop_start_[m] + hop] = begin;
      if (begin > now_) out_.hop_behind[hop_start_[m] + hop] = last_[link];
    }
    free_[link] = end;
    last_[link] = m;
    out_.link_busy[link] += busy;
    out_.link_bytes[link] += bytes;
    const double there = end + latency_[link];
    if (static_cast<std::size_t>(hop) + 1 == links.size()) return events_.push(Event(there, EventKind::kArrived, m));
    const double ready = options_.store_and_forward
                             ? there
                             : std::max(begin + latency_[link], there - on_grid(bytes / fabric_.rate[links[hop + 1]]));
    events_.push(Event(ready, EventKind::kHead, m));
  }

  const Traffic& traffic_;
  const Fabric& fabric_;
  const SimulatorOptions& options_;
  Simulation& out_;
  Starts starts_;
  EventQueue events_;
  double now_ = 0;
  std::vector<double> latency_, overhead_;  // on the grid
  std::vector<double> free_;                // per link: end of the last message on it
  std::vector<Message> last_;               // per link: that message
  std::vector<std::int32_t> at_;            // per message: hops that it has begun
  std::vector<std::int64_t> hop_start_;     // per message: its first hop in the columns of hops
};

}  // namespace

void check_simulation(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options) {
  const std::size_t size = traffic.size();
  require(size < (std::size_t{1} << 31), "there must be less than 2^31 messages");
  require(traffic.bytes.size() == size, "bytes must have an entry per message");
  require(traffic.added.empty() || traffic.added.size() == size, "added must have an entry per message");
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
  require(options.add_rate >= 0 && std::isfinite(options.add_rate), "add_rate must be finite and not negative");
}

Simulation simulate_fifo(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options,
                         const StopFlag& stop) {
  check_simulation(traffic, fabric, options);
  Simulation out;
  const std::size_t size = traffic.size();
  for (auto* column : {&out.start, &out.arrived, &out.done}) column->assign(size, -1);
  out.cause.assign(size, -1);
  out.reason.assign(size, 0);
  out.link_busy.assign(fabric.num_links(), 0);
  out.link_bytes.assign(fabric.num_links(), 0);
  FifoNetwork(traffic, fabric, options, out).run(stop);
  return out;
}

}  // namespace coppice
