#include "graph/chains.h"

#include <algorithm>

namespace coppice {

namespace {

// Whether what comes into a switch from one neighbour can only go to one other.
bool passes_on(const Digraph& graph, Vertex v) {
  const auto in = graph.in(v), out = graph.out(v);
  if (in.size() > 2 || out.size() > 2) return false;
  std::vector<Vertex> neighbours;
  for (Arc e : in) neighbours.push_back(graph.tail(e));
  for (Arc e : out) neighbours.push_back(graph.head(e));
  std::ranges::sort(neighbours);
  const auto again = std::ranges::unique(neighbours);
  neighbours.erase(again.begin(), again.end());
  const bool parallel = (in.size() == 2 && graph.tail(in[0]) == graph.tail(in[1])) ||
                        (out.size() == 2 && graph.head(out[0]) == graph.head(out[1]));
  return neighbours.size() <= 2 && !parallel;
}

}  // namespace

Chains::Chains(const Digraph& graph, std::span<const std::uint8_t> terminal) {
  std::vector<std::uint8_t> passing(graph.num_vertices(), 0);
  for (Vertex v = 0; v < graph.num_vertices(); ++v) passing[v] = !terminal[v] && passes_on(graph, v);
  std::vector<Vertex> tail, head;
  for (Arc first = 0; first < graph.num_arcs(); ++first) {
    const Vertex from = graph.tail(first);
    if (passing[from]) continue;
    const std::size_t mark = arcs_.size();
    Arc last = first;
    while (last >= 0) {
      arcs_.push_back(last);
      const Vertex v = graph.head(last), before = graph.tail(last);
      if (!passing[v]) break;
      last = -1;  // a dead end, if nothing leads on
      for (Arc e : graph.out(v))
        if (graph.head(e) != before) last = e;
    }
    if (last < 0 || graph.head(last) == from) {
      arcs_.resize(mark);
      continue;
    }
    tail.push_back(from);
    head.push_back(graph.head(last));
    start_.push_back(static_cast<std::int32_t>(arcs_.size()));
  }
  graph_ = Digraph(graph.num_vertices(), tail, head);
}

std::vector<std::int32_t> Chains::lengths() const {
  std::vector<std::int32_t> lengths;
  for (Arc e = 0; e < graph_.num_arcs(); ++e) lengths.push_back(start_[e + 1] - start_[e]);
  return lengths;
}

std::vector<Amount> Chains::least(std::span<const Amount> capacity) const {
  std::vector<Amount> least;
  for (Arc e = 0; e < graph_.num_arcs(); ++e) {
    Amount lowest = capacity[arcs(e).front()];
    for (Arc along : arcs(e)) lowest = std::min(lowest, capacity[along]);
    least.push_back(lowest);
  }
  return least;
}

}  // namespace coppice
