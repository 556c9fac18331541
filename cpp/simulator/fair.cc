// Links that all messages on them share at max-min fair rates.
#include <algorithm>
#include <stdexcept>

#include "simulator/fair_share.h"
#include "simulator/loop.h"

namespace coppice {

namespace {

/// Messages of one route follow each other, so a route is a flow while it has any.
class FairNetwork : public SimulatorLoop<FairNetwork> {
 public:
  FairNetwork(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options, Simulation& out)
      : SimulatorLoop(traffic, fabric, options, out, false),
        share_(fabric.rate),
        flows_(fabric.num_routes()),
        next_(traffic.size(), -1),
        routes_on_(fabric.num_links()),
        busy_since_(fabric.num_links(), 0),
        is_changed_(fabric.num_links(), 0),
        is_seen_(fabric.num_links(), 0),
        in_component_(fabric.num_routes(), 0) {
    path_latency_.reserve(fabric.num_routes());
    for (std::size_t route = 0; route < fabric.num_routes(); ++route) {
      double sum = 0;
      for (std::int32_t link : fabric.links(static_cast<std::int32_t>(route))) sum += latency_[link];
      path_latency_.push_back(sum);
    }
    out.limit.assign(traffic.size(), -1);
    if (!options.keep_hops) return;
    out.hop_begin.assign(traffic.size(), -1);
    out.hop_behind.assign(traffic.size(), -1);
  }

  void head(Message m) {
    const std::int32_t route = traffic_.route[m];
    Flow& flow = flows_[route];
    if (flow.first >= 0) {
      if (options_.keep_hops) out_.hop_behind[m] = flow.last;
      next_[flow.last] = m;
      flow.last = m;
      return;
    }
    count_bytes(m);
    if (options_.keep_hops) out_.hop_begin[m] = now_;
    if (traffic_.bytes[m] == 0) return leave(m);
    flow = Flow{.first = m, .last = m, .left = static_cast<double>(traffic_.bytes[m]), .since = now_};
    for (std::int32_t link : fabric_.links(route)) {
      if (routes_on_[link].empty()) busy_since_[link] = now_;
      routes_on_[link].push_back(route);
      change(link);
    }
  }

  void drained(Message m) {
    const std::int32_t route = traffic_.route[m];
    Flow& flow = flows_[route];
    if (flow.first != m || flow.drained_at != now_) return;  // the rate has changed since this was foreseen
    out_.limit[m] = flow.limit;
    leave(m);
    for (flow.first = next_[m]; flow.first >= 0; flow.first = next_[flow.first]) {
      count_bytes(flow.first);
      if (options_.keep_hops) out_.hop_begin[flow.first] = now_;
      if (traffic_.bytes[flow.first] > 0) break;
      leave(flow.first);
    }
    if (flow.first >= 0) {  // the next one takes its place at the same rate
      flow.left = static_cast<double>(traffic_.bytes[flow.first]);
      flow.since = now_;
      record_rate(flow.first, flow.rate);
      return schedule_drain(flow);
    }
    flow.rate = 0;
    for (std::int32_t link : fabric_.links(route)) {
      auto& routes = routes_on_[link];
      *std::find(routes.begin(), routes.end(), route) = routes.back();
      routes.pop_back();
      if (routes.empty()) out_.link_busy[link] += now_ - busy_since_[link];
      change(link);
    }
  }

  void free(std::int32_t) {}

  /// New rates for all flows that are connected, over links and flows, with one that has come or gone.
  void end_instant() {
    if (changed_.empty()) return;
    touched_.assign(changed_.begin(), changed_.end());
    for (std::int32_t link : changed_) is_changed_[link] = 0, is_seen_[link] = 1;
    changed_.clear();
    component_.clear();
    for (std::size_t i = 0; i < touched_.size(); ++i) {
      for (std::int32_t route : routes_on_[touched_[i]]) {
        if (in_component_[route]) continue;
        in_component_[route] = 1;
        component_.push_back(route);
        for (std::int32_t link : fabric_.links(route))
          if (!is_seen_[link]) is_seen_[link] = 1, touched_.push_back(link);
      }
    }
    for (std::int32_t link : touched_) is_seen_[link] = 0;
    std::sort(component_.begin(), component_.end());
    links_.clear();
    for (std::int32_t route : component_) in_component_[route] = 0, links_.push_back(fabric_.links(route));
    share_.solve(links_);
    for (std::size_t i = 0; i < component_.size(); ++i) {
      Flow& flow = flows_[component_[i]];
      flow.limit = share_.limit(i);
      if (share_.rate(i) == flow.rate) continue;
      flow.left = std::max(0.0, flow.left - flow.rate * (now_ - flow.since));
      flow.since = now_;
      flow.rate = share_.rate(i);
      record_rate(flow.first, flow.rate);
      schedule_drain(flow);
    }
  }

 private:
  struct Flow {
    Message first = -1;  // the message that is under way, and the last one behind it; -1: the route is idle
    Message last = -1;
    double left = 0;     // bytes of the first that were left at `since`
    double since = 0;
    double rate = 0;
    double drained_at = -1;
    std::int32_t limit = -1;  // link that decides the rate
  };

  void change(std::int32_t link) {
    if (is_changed_[link]) return;
    is_changed_[link] = 1;
    changed_.push_back(link);
  }

  void schedule_drain(Flow& flow) {
    flow.drained_at = flow.since + on_grid(flow.left / flow.rate);
    events_.push(Event(flow.drained_at, EventKind::kDrained, flow.first));
  }

  void leave(Message m) {
    left(m, now_);
    events_.push(Event(now_ + path_latency_[traffic_.route[m]] + flight(m), EventKind::kArrived, m));
  }

  void count_bytes(Message m) {
    for (std::int32_t link : fabric_.links(traffic_.route[m])) out_.link_bytes[link] += static_cast<double>(traffic_.bytes[m]);
  }

  void record_rate(Message m, double rate) {
    if (!options_.keep_rates) return;
    out_.rate_message.push_back(m);
    out_.rate_since.push_back(now_);
    out_.rate.push_back(rate);
  }

  FairShare share_;
  std::vector<Flow> flows_;                    // per route
  std::vector<Message> next_;                  // per message: the one behind it on its route, or -1
  std::vector<std::vector<std::int32_t>> routes_on_;  // per link: routes under way
  std::vector<double> busy_since_;             // per link with routes
  std::vector<double> path_latency_;           // per route
  std::vector<std::int32_t> changed_;          // links whose flows have changed at this instant
  std::vector<std::uint8_t> is_changed_, is_seen_, in_component_;
  std::vector<std::int32_t> touched_, component_;    // links and routes of the part that is settled anew
  std::vector<std::span<const std::int32_t>> links_;
};

}  // namespace

Simulation simulate_fair(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options,
                         const StopFlag& stop) {
  if (!fabric.burst.empty()) throw std::invalid_argument("links that are shared fairly have no burst");
  Simulation out = empty_simulation(traffic, fabric, options);
  FairNetwork(traffic, fabric, options, out).run(stop);
  return out;
}

}  // namespace coppice
