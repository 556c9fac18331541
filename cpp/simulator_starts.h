// Which messages may start: dependencies that are met and engines that are free. Shared by all ways to share links.
//
// A message that lacks an engine is *watched* at one engine that it lacks. When that engine is freed it starts, or, if
// its other engine is busy, moves there. So each engine looks only at what it could start itself, and a greedy choice in
// the order of ids over all messages comes down to merging the watched ones of the engines just freed.
#pragma once

#include <vector>

#include "simulator.h"

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
  void streams(Message m, double tail);

  /// The message has arrived: its sender goes on.
  void arrived(Message m);

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
    Message message;
    std::int32_t engine;  // where it is watched, or -1 where it has just become ready
    bool operator>(const Candidate& other) const { return message > other.message; }
  };

  void pass(std::int32_t gate, Message by);
  void settle(Message m, Message by, double tail = -1);
  void release(std::int32_t engine, Message by);
  void watch(std::int32_t engine, Message m);
  Message unwatch(std::int32_t engine);
  void offer(std::int32_t engine);
  std::int32_t lacking(Message m) const;
  std::int32_t send_engine(Message m) const { return limits_send_ ? fabric_.sender[traffic_.route[m]] : -1; }
  std::int32_t receive_engine(Message m) const {
    std::int32_t gpu = limits_receive_ ? fabric_.receiver[traffic_.route[m]] : -1;
    return gpu < 0 ? -1 : gpu + fabric_.num_gpus;
  }

  const Traffic& traffic_;
  const Fabric& fabric_;
  Simulation& out_;
  bool limits_send_, limits_receive_;
  std::vector<std::int32_t> waits_;         // per message: gates and messages that it still waits for
  std::vector<std::int32_t> gate_missing_;  // per gate: members that have not passed
  std::vector<double> gate_tail_;           // per gate: when the last byte of what streams through it comes; or empty
  std::vector<std::int64_t> member_start_;  // members of gate g: members_[member_start_[g] .. member_start_[g + 1])
  std::vector<Message> members_;
  std::vector<std::int64_t> waiter_start_;  // messages that name m in `after`, likewise; empty where nobody does
  std::vector<Message> waiters_;
  std::vector<std::int32_t> free_;          // per engine (senders, then receivers): how many are free
  std::vector<Message> freed_by_;           // per engine: the message that last left it
  std::vector<std::vector<Message>> watched_;  // per engine: a heap, least message on top
  std::vector<std::uint8_t> is_freed_;
  std::vector<std::int32_t> freed_;         // engines freed since the last dispatch
  std::vector<Message> ready_;              // messages that became ready since then
  std::vector<Candidate> candidates_;       // scratch of dispatch
};

}  // namespace coppice

#include "simulator_dispatch.h"
