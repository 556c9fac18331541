#include "simulator_starts.h"

#include <algorithm>
#include <numeric>

namespace coppice {

namespace {

/// Offsets from counts: count[i] entries of i come to lie before those of i + 1.
void accumulate(std::vector<std::int64_t>& start) { std::partial_sum(start.begin(), start.end(), start.begin()); }

}  // namespace

Starts::Starts(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options, Simulation& out,
               bool streams)
    : traffic_(traffic),
      fabric_(fabric),
      out_(out),
      limits_send_(options.send_engines > 0),
      limits_receive_(options.receive_engines > 0) {
  const std::size_t size = traffic.size(), gates = traffic.chained.size();
  waits_.assign(size, 0);
  gate_missing_.assign(gates, 0);
  if (streams && std::any_of(fabric.receiver.begin(), fabric.receiver.end(), [](std::int32_t gpu) { return gpu < 0; }))
    gate_tail_.assign(gates, -1);
  member_start_.assign(gates + 1, 0);
  for (auto* column : {&traffic.send_gate, &traffic.receive_gate})
    for (std::int32_t gate : *column)
      if (gate >= 0) ++gate_missing_[gate], ++member_start_[gate + 1];
  accumulate(member_start_);
  members_.resize(static_cast<std::size_t>(member_start_.back()));
  std::vector<std::int64_t> next(member_start_.begin(), member_start_.end() - 1);
  for (std::size_t m = 0; m < size; ++m) {
    for (std::int32_t gate : {traffic.send_gate[m], traffic.receive_gate[m]}) {
      if (gate < 0) continue;
      members_[next[gate]++] = static_cast<Message>(m);
      if (traffic.chained[gate]) ++waits_[m];
    }
  }
  if (!traffic.after.empty()) {
    waiter_start_.assign(size + 1, 0);
    for (Message before : traffic.after) ++waiter_start_[before + 1];
    accumulate(waiter_start_);
    waiters_.resize(traffic.after.size());
    next.assign(waiter_start_.begin(), waiter_start_.end() - 1);
    for (std::size_t m = 0; m < size; ++m)
      for (std::int64_t i = traffic.after_start[m]; i < traffic.after_start[m + 1]; ++i) {
        waiters_[next[traffic.after[i]]++] = static_cast<Message>(m);
        ++waits_[m];
      }
  }
  const std::size_t engines = 2 * static_cast<std::size_t>(fabric.num_gpus);
  free_.assign(engines, 0);
  std::fill_n(free_.begin(), fabric.num_gpus, options.send_engines);
  std::fill_n(free_.begin() + fabric.num_gpus, fabric.num_gpus, options.receive_engines);
  freed_by_.assign(engines, -1);
  watched_.resize(engines);
  is_freed_.assign(engines, 0);

  for (std::size_t m = 0; m < size; ++m)
    if (waits_[m] == 0) ready_.push_back(static_cast<Message>(m));
  // A gate without members is open from the start.
  for (std::size_t gate = 0; gate < gates; ++gate)
    if (gate_missing_[gate] == 0) {
      gate_missing_[gate] = 1;
      pass(static_cast<std::int32_t>(gate), -1);
    }
}

void Starts::arrived(Message m) {
  if (std::int32_t engine = send_engine(m); engine >= 0) release(engine, m);
  pass(traffic_.send_gate[m], m);
}

void Starts::done(Message m) {
  if (std::int32_t engine = receive_engine(m); engine >= 0) release(engine, m);
  if (!at_switch(m)) pass(traffic_.receive_gate[m], m);
  if (waiter_start_.empty()) return;
  for (std::int64_t i = waiter_start_[m]; i < waiter_start_[m + 1]; ++i) settle(waiters_[i], m);
}

void Starts::streams(Message m, double tail) {
  const std::int32_t gate = traffic_.receive_gate[m];
  if (gate < 0) return;
  gate_tail_[gate] = std::max(gate_tail_[gate], tail);
  pass(gate, m);
}

void Starts::pass(std::int32_t gate, Message by) {
  if (gate < 0 || --gate_missing_[gate] > 0) return;
  const std::size_t next = static_cast<std::size_t>(gate) + 1;
  if (next == traffic_.chained.size() || !traffic_.chained[next]) return;
  for (std::int64_t i = member_start_[next]; i < member_start_[next + 1]; ++i) settle(members_[i], by, gate_tail_.empty() ? -1 : gate_tail_[gate]);
}

void Starts::settle(Message m, Message by, double tail) {
  out_.arrived[m] = std::max(out_.arrived[m], tail);  // its last byte cannot go before it has come
  if (--waits_[m] > 0) return;
  out_.cause[m] = by;
  out_.reason[m] = static_cast<std::int8_t>(by < 0 ? Cause::kNone : Cause::kDependency);
  ready_.push_back(m);
}

void Starts::release(std::int32_t engine, Message by) {
  ++free_[engine];
  freed_by_[engine] = by;
  if (is_freed_[engine]) return;
  is_freed_[engine] = 1;
  freed_.push_back(engine);
}

std::int32_t Starts::lacking(Message m) const {
  if (std::int32_t engine = send_engine(m); engine >= 0 && free_[engine] == 0) return engine;
  if (std::int32_t engine = receive_engine(m); engine >= 0 && free_[engine] == 0) return engine;
  return -1;
}

void Starts::watch(std::int32_t engine, Message m) {
  watched_[engine].push_back(m);
  std::push_heap(watched_[engine].begin(), watched_[engine].end(), std::greater<>());
}

Message Starts::unwatch(std::int32_t engine) {
  std::pop_heap(watched_[engine].begin(), watched_[engine].end(), std::greater<>());
  Message m = watched_[engine].back();
  watched_[engine].pop_back();
  return m;
}

void Starts::offer(std::int32_t engine) {
  if (free_[engine] == 0 || watched_[engine].empty()) return;
  candidates_.push_back({watched_[engine].front(), engine});
  std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>());
}

}  // namespace coppice
