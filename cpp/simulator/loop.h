// The loop over events that all ways to share links have in common.
#pragma once

#include "simulator/simulator.h"
#include "simulator/events.h"
#include "simulator/starts.h"

namespace coppice {

/// Runs messages from start to end; `Network` (the class that derives from this) says how they cross links:
///   head(m): the message comes to its first link, or to the next one;
///   drained(m): it may have left its links for good;
///   free(link): the link has served what it had;
///   end_instant(): nothing more happens at this instant.
template <class Network>
class SimulatorLoop {
 public:
  void run(const StopFlag& stop) {
    dispatch();
    for (std::int64_t count = 0;; ++count) {
      if (count % kEventsPerPoll == 0) poll(stop);
      // What is free now goes to whoever has the least id among all that become ready now.
      const bool instant_over = events_.empty() || events_.top().time > now_;
      if (starts_.pending() && (instant_over || events_.top().kind() >= EventKind::kHead)) {
        dispatch();
        continue;
      }
      if (instant_over) network().end_instant();
      if (events_.empty()) return;
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      handle(event);
    }
  }

 protected:
  SimulatorLoop(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options, Simulation& out,
                bool streams)
      : traffic_(traffic),
        fabric_(fabric),
        options_(options),
        out_(out),
        starts_(traffic, fabric, options, out, streams) {
    latency_.reserve(fabric.num_links());
    for (double latency : fabric.latency) latency_.push_back(on_grid(latency));
    overhead_.reserve(fabric.num_routes());
    for (double overhead : fabric.overhead) overhead_.push_back(on_grid(overhead));
  }

  EventKind head_of(Message m) const { return traffic_.bytes[m] == 0 ? EventKind::kEmptyHead : EventKind::kHead; }

  const Traffic& traffic_;
  const Fabric& fabric_;
  const SimulatorOptions& options_;
  Simulation& out_;
  Starts starts_;
  EventQueue events_;
  double now_ = 0;
  std::vector<double> latency_;  // per link, on the grid

 private:
  static constexpr std::int64_t kEventsPerPoll = 1 << 14;

  Network& network() { return static_cast<Network&>(*this); }

  void dispatch() {
    starts_.dispatch(
        now_,
        [&](Message m) {
          const std::int32_t route = traffic_.route[m];
          const bool crosses = fabric_.route_start[route] < fabric_.route_start[route + 1];
          events_.push(Event(now_ + overhead_[route], crosses ? head_of(m) : EventKind::kArrived, m));
        },
        [&](Message m, double due) { events_.push(Event(due, EventKind::kDue, m)); });
  }

  void handle(const Event& event) {
    const Message m = event.message();
    switch (event.kind()) {
      case EventKind::kEmptyHead:
      case EventKind::kHead:
        return network().head(m);
      case EventKind::kFree:
        return network().free(m);
      case EventKind::kDrained:
        return network().drained(m);
      case EventKind::kStream:
        return starts_.head_at_switch(m, out_.arrived[m]);
      case EventKind::kDue:
        return starts_.due(m);
      case EventKind::kArrived:
        return arrived(m);
      case EventKind::kDone:
        return done(m);
    }
  }

  void arrived(Message m) {
    out_.arrived[m] = now_;
    starts_.arrived(m);
    const double adding = options_.add_rate > 0 && !traffic_.added.empty()
                              ? on_grid(static_cast<double>(traffic_.added[m]) / options_.add_rate)
                              : 0;
    if (adding > 0)
      events_.push(Event(now_ + adding, EventKind::kDone, m));
    else
      done(m);
  }

  void done(Message m) {
    out_.done[m] = now_;
    ++out_.finished;
    starts_.done(m);
  }

  std::vector<double> overhead_;  // per route, on the grid
};

}  // namespace coppice
