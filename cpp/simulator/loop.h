// The loop over events that all ways to share links have in common.
#pragma once

#include <algorithm>
#include <limits>

#include "simulator/simulator.h"
#include "simulator/events.h"
#include "simulator/starts.h"
#include "simulator/workers.h"

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
      if (event.time > options_.give_up || hopeless_) return give_up();
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
        starts_(traffic, fabric, options, out, streams),
        streams_(streams),
        workers_(traffic, fabric, options) {
    latency_.reserve(fabric.num_links());
    for (double latency : fabric.latency) latency_.push_back(on_grid(latency));
    overhead_.reserve(fabric.num_routes());
    for (double overhead : fabric.overhead) overhead_.push_back(on_grid(overhead));
  }

  /// The last byte of a message leaves its sender at `time`.
  void left(Message m, double time) {
    if (options_.buffered && starts_.heeds_sent(m)) events_.push(Event(time, EventKind::kLeft, m));
  }

  /// Time from the end of the last link of a message until it has arrived.
  double flight(Message m) const { return options_.buffered ? overhead_[traffic_.route[m]] : 0; }

  EventKind head_of(Message m) const { return traffic_.bytes[m] == 0 ? EventKind::kEmptyHead : EventKind::kHead; }

  const Traffic& traffic_;
  const Fabric& fabric_;
  const SimulatorOptions& options_;
  Simulation& out_;
  Starts starts_;
  EventQueue events_;
  double now_ = 0;
  bool hopeless_ = false;        // not all messages can be done by the time to give up
  std::vector<double> latency_;  // per link, on the grid

 private:
  static constexpr std::int64_t kEventsPerPoll = 1 << 14;

  Network& network() { return static_cast<Network&>(*this); }

  void dispatch() {
    starts_.dispatch(
        now_,
        [&](Message m) {
          if (workers_.sends(m))
            take_turn({m, Workers::Side::kSend});
          else
            leave_sender(m, 0, 0);
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
        if (workers_.receives(m)) release({m, Workers::Side::kReceive});
        return done(m);
      case EventKind::kLeft:
        return starts_.sent(m);
      case EventKind::kHandled:
        return release({m, Workers::Side::kSend});
    }
  }

  /// The message leaves its sender: its head in `head` ns, its last byte no sooner than in `tail` ns.
  void leave_sender(Message m, double head, double tail) {
    const std::int32_t route = traffic_.route[m];
    const bool crosses = fabric_.route_start[route] < fabric_.route_start[route + 1];
    const double begin = now_ + (options_.buffered ? 0 : overhead_[route]), whole = begin + tail;
    if (streams_) out_.arrived[m] = std::max(out_.arrived[m], whole);
    if (crosses)
      events_.push(Event(streams_ ? begin + head : whole, head_of(m), m));
    else
      left(m, whole), events_.push(Event(whole + flight(m), EventKind::kArrived, m));
  }

  void take_turn(Workers::Turn turn) {
    if (workers_.line_up(turn)) work(turn);
  }

  /// A worker begins with a message.
  void work(Workers::Turn turn) {
    const Message m = turn.message;
    if (turn.side == Workers::Side::kReceive)
      return events_.push(Event(now_ + workers_.time(turn) + adding(m), EventKind::kDone, m));
    out_.start[m] = now_;
    const double whole = workers_.time(turn);
    events_.push(Event(now_ + whole, EventKind::kHandled, m));
    leave_sender(m, workers_.occupancy(turn), whole);
  }

  /// The worker is free, and goes on with what has waited longest.
  void release(Workers::Turn turn) {
    if (const auto next = workers_.release(turn)) {
      if (next->side == Workers::Side::kSend) {
        out_.cause[next->message] = turn.message;
        out_.reason[next->message] = static_cast<std::int8_t>(Cause::kEngine);
      }
      work(*next);
    }
  }

  void arrived(Message m) {
    out_.arrived[m] = now_;
    if (!options_.buffered) starts_.sent(m);
    if (workers_.receives(m)) return take_turn({m, Workers::Side::kReceive});
    if (const double added = adding(m); added > 0)
      events_.push(Event(now_ + added, EventKind::kDone, m));
    else
      done(m);
  }

  /// Time that the receiver adds what has come.
  double adding(Message m) const {
    if (options_.add_rate == 0 || traffic_.added.empty()) return 0;
    return on_grid(static_cast<double>(traffic_.added[m]) / options_.add_rate);
  }

  /// What is not done yet never is.
  void give_up() {
    for (double& done : out_.done)
      if (done < 0) done = std::numeric_limits<double>::infinity();
    out_.finished = static_cast<std::int64_t>(out_.done.size());
  }

  void done(Message m) {
    out_.done[m] = now_;
    ++out_.finished;
    starts_.done(m);
  }

  std::vector<double> overhead_;  // per route, on the grid
  bool streams_;                  // bytes leave a worker as it copies them
  Workers workers_;
};

}  // namespace coppice
