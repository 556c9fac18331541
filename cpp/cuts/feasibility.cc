#include "cuts/feasibility.h"

#include <algorithm>
#include <unordered_map>

#include "graph/traversal.h"

namespace coppice {

static constexpr int kGreedyRounds = 2;
static constexpr int kGreedyDepth = 16;
static constexpr std::size_t kSinksPerPoll = 64;

template <class Int>
FeasibilityCheck<Int>::FeasibilityCheck(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const std::int32_t> orbit)
    : graph_(graph),
      merged_(graph.num_vertices(), 0),
      flow_(graph.num_arcs(), 0),
      taken_(graph.num_vertices(), 0),
      level_(graph.num_vertices(), -1),
      cursor_(graph.num_vertices(), 0) {
  Vertex first = 0;
  while (first < graph.num_vertices() && !terminal[first]) ++first;
  std::unordered_map<std::int32_t, std::size_t> place;  // of the orbit in order_
  for (Vertex v : breadth_first_order(graph, first)) {
    if (!terminal[v]) continue;
    auto [at, fresh] = place.emplace(orbit.empty() ? v : orbit[v], order_.size());
    if (fresh) order_.push_back(v), orbit_of_.emplace_back();
    orbit_of_[at->second].push_back(v);
  }
}

template <class Int>
std::vector<std::vector<Vertex>> FeasibilityCheck<Int>::violated(std::span<const Int> capacity, std::span<const Int> supply,
                                                                Int demand, std::size_t limit, const StopFlag& stop) {
  capacity_ = capacity;
  supply_ = supply;
  std::fill(merged_.begin(), merged_.end(), 0);
  std::vector<std::vector<Vertex>> sets;
  std::size_t polled = 0;
  for (std::size_t i = 0; i < order_.size() && sets.size() < limit; ++i) {
    Vertex sink = order_[i];
    if (++polled % kSinksPerPoll == 0) poll(stop);
    if (reaches_demand(sink, demand)) {
      for (Vertex v : orbit_of_[i]) merged_[v] = 1;
    } else {
      sets.push_back(seen_);
    }
    forget_flow();
  }
  return sets;
}

template <class Int>
std::vector<Vertex> FeasibilityCheck<Int>::violated_at(Vertex sink, std::span<const Int> capacity, std::span<const Int> supply, Int demand) {
  capacity_ = capacity;
  supply_ = supply;
  std::fill(merged_.begin(), merged_.end(), 0);
  std::vector<Vertex> set;
  if (!reaches_demand(sink, demand)) set = seen_;
  forget_flow();
  return set;
}

template <class Int>
void FeasibilityCheck<Int>::forget_flow() {
  for (Arc e : touched_arcs_) flow_[e] = 0;
  for (Vertex v : touched_vertices_) taken_[v] = 0;
  for (Vertex v : seen_) level_[v] = -1;
  touched_arcs_.clear();
  touched_vertices_.clear();
  seen_.clear();
}

// On false, seen_ holds the vertices that still reach the sink: the violated sink side.
template <class Int>
bool FeasibilityCheck<Int>::reaches_demand(Vertex sink, Int demand) {
  Int missing = demand;
  for (int round = 0; round < kGreedyRounds && missing > 0; ++round) {
    for (Vertex v : seen_) level_[v] = -1;
    seen_.clear();
    missing -= push_greedily(sink, missing, 0);
  }
  while (missing > 0) {
    if (!levels_from(sink)) return false;
    missing -= push(sink, missing);
  }
  return true;
}

// Depth-first without levels: finds near supply behind vertices of large degree without looking at all their arcs.
// level_ only marks what was seen. Too deep a search is cut off, so it proves nothing; the levelled phases do.
template <class Int>
Int FeasibilityCheck<Int>::push_greedily(Vertex v, Int limit, int depth) {
  if (merged_[v]) return limit;
  level_[v] = depth;
  seen_.push_back(v);
  Int pushed = take_supply(v, limit);
  if (pushed == limit || depth == kGreedyDepth) return pushed;
  for (Arc e : graph_.in(v)) {
    Vertex u = graph_.tail(e);
    Int room = capacity_[e] - flow_[e];
    if (room <= 0 || level_[u] >= 0) continue;
    Int amount = push_greedily(u, std::min<Int>(limit - pushed, room), depth + 1);
    if (amount == 0) continue;
    if (flow_[e] == 0) touched_arcs_.push_back(e);
    flow_[e] += amount;
    pushed += amount;
    if (pushed == limit) {
      level_[v] = -1;  // not exhausted: other arcs may come here again
      return pushed;
    }
  }
  return pushed;
}

template <class Int>
Int FeasibilityCheck<Int>::take_supply(Vertex v, Int limit) {
  Int amount = std::min<Int>(limit, supply_[v] - taken_[v]);
  if (amount <= 0) return 0;
  if (taken_[v] == 0) touched_vertices_.push_back(v);
  taken_[v] += amount;
  return amount;
}

// Breadth-first from the sink against residual arcs, to the end of the first level that has supply left.
template <class Int>
bool FeasibilityCheck<Int>::levels_from(Vertex sink) {
  for (Vertex v : seen_) level_[v] = -1;
  seen_.clear();
  auto reach = [&](Vertex v, std::int32_t level) {
    if (level_[v] >= 0) return;
    level_[v] = level;
    cursor_[v] = -1;
    seen_.push_back(v);
  };
  reach(sink, 0);
  std::int32_t last = -1;  // level of the nearest supply
  for (std::size_t done = 0; done < seen_.size(); ++done) {
    Vertex v = seen_[done];
    if (last >= 0 && level_[v] > last) break;
    if (merged_[v] || supply_[v] > taken_[v]) {
      last = level_[v];
      continue;
    }
    for (Arc e : graph_.in(v))
      if (capacity_[e] > flow_[e]) reach(graph_.tail(e), level_[v] + 1);
    for (Arc e : graph_.out(v))
      if (flow_[e] > 0) reach(graph_.head(e), level_[v] + 1);
  }
  return last >= 0;
}

// Depth-first from v towards supply along increasing levels; returns the amount that was found and pushed, at most
// `limit`. A vertex gives its own supply first: cursor_ = -1 means that this has not been tried in this phase.
template <class Int>
Int FeasibilityCheck<Int>::push(Vertex v, Int limit) {
  if (merged_[v]) return limit;
  Int pushed = 0;
  if (cursor_[v] < 0) {
    pushed = take_supply(v, limit);
    if (pushed == limit) return pushed;
    cursor_[v] = 0;
  }
  auto in = graph_.in(v), out = graph_.out(v);
  auto num_in = static_cast<std::int32_t>(in.size()), num_all = num_in + static_cast<std::int32_t>(out.size());
  for (std::int32_t& i = cursor_[v]; i < num_all; ++i) {
    bool backward = i >= num_in;
    Arc e = backward ? out[i - num_in] : in[i];
    Vertex u = backward ? graph_.head(e) : graph_.tail(e);
    Int room = backward ? flow_[e] : capacity_[e] - flow_[e];
    if (room <= 0 || level_[u] != level_[v] + 1) continue;
    Int amount = push(u, std::min<Int>(limit - pushed, room));
    if (amount == 0) continue;
    if (flow_[e] == 0) touched_arcs_.push_back(e);
    flow_[e] += backward ? -amount : amount;
    pushed += amount;
    if (pushed == limit) return pushed;
  }
  return pushed;
}

template class FeasibilityCheck<Amount>;
template class FeasibilityCheck<Wide>;

}  // namespace coppice
