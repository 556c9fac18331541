#include "simulator/starts.h"

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
      out_(out) {
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
  if (options.send_engines > 0 || options.receive_engines > 0) form_lines(options);
  for (std::size_t m = 0; m < size; ++m)
    if (waits_[m] == 0) ready_.push_back(static_cast<Message>(m));
  // A gate without members is open from the start.
  for (std::size_t gate = 0; gate < gates; ++gate)
    if (gate_missing_[gate] == 0) {
      gate_missing_[gate] = 1;
      pass_gate(static_cast<std::int32_t>(gate), -1);
    }
}

void Starts::sent(Message m) {
  if (std::int32_t line = line_of(m); line >= 0 && lines_[line].send_engine >= 0) release(lines_[line].send_engine, m);
  pass_gate(traffic_.send_gate[m], m);
}

void Starts::done(Message m) {
  if (std::int32_t line = line_of(m); line >= 0 && lines_[line].receive_engine >= 0)
    release(lines_[line].receive_engine, m);
  if (!at_switch(m)) pass_gate(traffic_.receive_gate[m], m);
  if (waiter_start_.empty()) return;
  for (std::int64_t i = waiter_start_[m]; i < waiter_start_[m + 1]; ++i) pass_dependency(waiters_[i], m);
}

void Starts::head_at_switch(Message m, double tail) {
  const std::int32_t gate = traffic_.receive_gate[m];
  if (gate < 0) return;
  gate_tail_[gate] = std::max(gate_tail_[gate], tail);
  pass_gate(gate, m);
}

void Starts::pass_gate(std::int32_t gate, Message by) {
  if (gate < 0 || --gate_missing_[gate] > 0) return;
  const std::size_t next = static_cast<std::size_t>(gate) + 1;
  if (next == traffic_.chained.size() || !traffic_.chained[next]) return;
  for (std::int64_t i = member_start_[next]; i < member_start_[next + 1]; ++i) pass_dependency(members_[i], by, gate_tail_.empty() ? -1 : gate_tail_[gate]);
}

void Starts::pass_dependency(Message m, Message by, double tail) {
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

void Starts::form_lines(const SimulatorOptions& options) {
  const std::size_t routes = fabric_.num_routes();
  auto engines_of = [&](std::size_t route) {
    const std::int32_t from = options.send_engines > 0 ? fabric_.sender[route] : -1;
    const std::int32_t to = options.receive_engines > 0 ? fabric_.receiver[route] : -1;
    return std::pair(from, to < 0 ? -1 : to + fabric_.num_gpus);
  };
  std::vector<std::pair<std::int32_t, std::int32_t>> kinds;
  for (std::size_t route = 0; route < routes; ++route)
    if (auto kind = engines_of(route); kind != std::pair(-1, -1)) kinds.push_back(kind);
  std::sort(kinds.begin(), kinds.end());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  for (auto [from, to] : kinds) lines_.push_back(Line{.send_engine = from, .receive_engine = to, .waiting = {}});
  line_of_route_.assign(routes, -1);
  for (std::size_t route = 0; route < routes; ++route)
    if (auto kind = engines_of(route); kind != std::pair(-1, -1))
      line_of_route_[route] = static_cast<std::int32_t>(std::lower_bound(kinds.begin(), kinds.end(), kind) - kinds.begin());

  const auto gpus = static_cast<std::size_t>(fabric_.num_gpus);
  free_.assign(2 * gpus, options.receive_engines);
  std::fill_n(free_.begin(), gpus, options.send_engines);
  freed_by_.assign(2 * gpus, -1);
  watched_.resize(2 * gpus);
  is_freed_.assign(2 * gpus, 0);
}

void Starts::line_up(const std::vector<Message>& messages) {
  for (Message m : messages) {
    const std::int32_t number = line_of(m);
    if (number < 0) {
      offer({m, -1, -1, false});
      continue;
    }
    Line& line = lines_[number];
    line.waiting.push_back(m);
    std::push_heap(line.waiting.begin(), line.waiting.end(), std::greater<>());
    if (!line.is_fresh) fresh_lines_.push_back(number);
    line.is_fresh = true;
  }
  for (std::int32_t number : fresh_lines_) {
    Line& line = lines_[number];
    line.is_fresh = false;
    if (line.watched_at < 0)
      offer({line.waiting.front(), number, -1, false});
    else if (line.waiting.front() != line.watched_as)
      watch(number, line.watched_at);
  }
  fresh_lines_.clear();
}

void Starts::offer(Candidate candidate) {
  candidates_.push_back(candidate);
  std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>());
}

void Starts::watch(std::int32_t number, std::int32_t engine) {
  Line& line = lines_[number];
  line.watched_at = engine;
  line.watched_as = line.waiting.front();
  watched_[engine].push_back({line.watched_as, number});
  std::push_heap(watched_[engine].begin(), watched_[engine].end(), std::greater<>());
}

void Starts::offer_watched(std::int32_t engine) {
  if (free_[engine] == 0) return;
  auto& watched = watched_[engine];
  for (; !watched.empty(); watched.pop_back()) {
    const auto [message, number] = watched.front();
    const Line& line = lines_[number];
    if (line.watched_at == engine && line.watched_as == message) return offer({message, number, engine, true});
    std::pop_heap(watched.begin(), watched.end(), std::greater<>());
  }
}

void Starts::watch_or_offer(std::int32_t number, std::int32_t freed) {
  const Line& line = lines_[number];
  if (std::int32_t engine = lacking(line); engine >= 0)
    watch(number, engine);
  else
    offer({line.waiting.front(), number, freed, false});
}

std::int32_t Starts::lacking(const Line& line) const {
  if (line.send_engine >= 0 && free_[line.send_engine] == 0) return line.send_engine;
  if (line.receive_engine >= 0 && free_[line.receive_engine] == 0) return line.receive_engine;
  return -1;
}

}  // namespace coppice
