// Which messages may start: dependencies that are met and engines that are free. Shared by all ways to share links.
//
// Messages that need the same engines form a *line*, in the order of ids, of which only the first matters. A line that
// lacks an engine is watched at one engine that it lacks. When that engine is freed its first message starts, or, if
// the other engine is busy, the line moves there. So each engine looks only at what it could start itself, and a greedy
// choice in the order of ids over all messages comes down to merging the lines watched at the engines just freed.
//
// Cost: each membership and dependency is passed once, each message enters and leaves the heap of its line once, and a
// freed engine looks at the lines watched there until it is taken. Overflow: none beyond what simulator.cc checks.
#pragma once

#include <vector>

#include "simulator/simulator.h"

namespace coppice {

class Starts {
 public:
  /// Keeps references to all three; writes start, cause and reason of each message to `out`.
  /// Args:
  ///   streams: Switches at which messages end pass them on as they come.
  Starts(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options, Simulation& out, bool streams);

  /// The message ends at a switch that copies or adds it as it comes.
  bool at_switch(Message m) const { return !gate_tail_.empty() && fabric_.receiver[traffic_.route[m]] < 0; }

  /// The head of such a message is there, and its last byte will be at `tail`: the switch goes on.
  void head_at_switch(Message m, double tail);

  /// Whether anything goes on when the message has left its sender.
  bool heeds_sent(Message m) const {
    const std::size_t next = static_cast<std::size_t>(traffic_.send_gate[m]) + 1;  // 0 where it passes no gate
    return !line_of_route_.empty() || (next > 0 && next < traffic_.chained.size() && traffic_.chained[next] != 0);
  }

  /// The message has left its sender, or arrived where sends are not buffered: its sender goes on.
  void sent(Message m);

  /// The message is done: its receiver goes on, and all that wait for it.
  void done(Message m);

  /// The message may start as far as its due time is concerned.
  void due(Message m) { ready_.push_back(m); }

  /// Something has changed since the last dispatch.
  bool pending() const { return !ready_.empty() || !freed_.empty(); }

  /// Starts what can start at `now`, in the order of ids. Calls begin(message) for each that starts and
  /// postpone(message, time) for each that is ready but due only later.
  template <class Begin, class Postpone>
  void dispatch(double now, Begin&& begin, Postpone&& postpone);

 private:
  struct Candidate {
    Message message;      // the first of its line
    std::int32_t line;    // -1: the message needs no engine
    std::int32_t engine;  // engine that was freed, or -1
    bool is_watched;      // the line is watched there
    bool operator>(const Candidate& other) const { return message > other.message; }
  };
  struct Watched {
    Message message;  // the first of the line when it came here
    std::int32_t line;
    bool operator>(const Watched& other) const { return message > other.message; }
  };
  struct Line {
    std::int32_t send_engine, receive_engine;  // -1: none
    std::int32_t watched_at = -1;              // engine
    Message watched_as = -1;                        // the message under which it is watched
    bool is_fresh = false;                     // it got longer at this dispatch
    std::vector<Message> waiting;              // a heap, least id on top
  };

  void pass_gate(std::int32_t gate, Message by);
  void pass_dependency(Message m, Message by, double tail = -1);
  void release(std::int32_t engine, Message by);
  void form_lines(const SimulatorOptions& options);
  void line_up(const std::vector<Message>& messages);
  void offer(Candidate candidate);
  void watch(std::int32_t line, std::int32_t engine);
  void offer_watched(std::int32_t engine);
  void watch_or_offer(std::int32_t line, std::int32_t freed);
  std::int32_t lacking(const Line& line) const;
  std::int32_t line_of(Message m) const { return line_of_route_.empty() ? -1 : line_of_route_[traffic_.route[m]]; }

  const Traffic& traffic_;
  const Fabric& fabric_;
  Simulation& out_;
  std::vector<std::int32_t> waits_;         // per message: gates and messages that it still waits for
  std::vector<std::int32_t> gate_missing_;  // per gate: members that have not passed
  std::vector<double> gate_tail_;           // per gate: when the last byte of what streams through it comes; or empty
  std::vector<std::int64_t> member_start_;  // members of gate g: members_[member_start_[g] .. member_start_[g + 1])
  std::vector<Message> members_;
  std::vector<std::int64_t> waiter_start_;  // messages that name m in `after`, likewise; empty where nobody does
  std::vector<Message> waiters_;
  std::vector<std::int32_t> free_;          // per engine (senders, then receivers): how many are free
  std::vector<Message> freed_by_;           // per engine: the message that last left it
  std::vector<std::int32_t> line_of_route_;  // -1 where no engine is needed; empty: nowhere
  std::vector<Line> lines_;
  std::vector<std::vector<Watched>> watched_;  // per engine: a heap; entries whose line has moved or changed are stale
  std::vector<std::uint8_t> is_freed_;
  std::vector<std::int32_t> freed_;         // engines freed since the last dispatch
  std::vector<Message> ready_;              // messages that became ready since then
  std::vector<Message> fresh_;              // scratch of dispatch: those of them that may start now,
  std::vector<std::int32_t> fresh_lines_;   //   and the lines that they join
  std::vector<Candidate> candidates_;       // scratch of dispatch: a heap, least id on top
};

}  // namespace coppice

#include "simulator/dispatch.h"
