#include "graph/traversal.h"

namespace coppice {

// Appends what is connected with `start` and unseen.
static void walk(const Digraph& graph, Vertex start, std::vector<std::uint8_t>& seen, std::vector<Vertex>& order) {
  std::size_t done = order.size();
  seen[start] = 1;
  order.push_back(start);
  for (; done < order.size(); ++done) {
    Vertex v = order[done];
    auto visit = [&](Vertex u) {
      if (!seen[u]) seen[u] = 1, order.push_back(u);
    };
    for (Arc e : graph.out(v)) visit(graph.head(e));
    for (Arc e : graph.in(v)) visit(graph.tail(e));
  }
}

std::vector<Vertex> breadth_first_order(const Digraph& graph, Vertex start) {
  std::vector<Vertex> order;
  std::vector<std::uint8_t> seen(graph.num_vertices(), 0);
  order.reserve(graph.num_vertices());
  if (start < graph.num_vertices()) walk(graph, start, seen, order);
  for (Vertex v = 0; v < graph.num_vertices(); ++v)
    if (!seen[v]) walk(graph, v, seen, order);
  return order;
}

std::vector<std::vector<Vertex>> parts_without(const Digraph& graph, std::span<const std::uint8_t> removed) {
  std::vector<std::vector<Vertex>> parts;
  std::vector<std::uint8_t> seen(removed.begin(), removed.end());
  for (Vertex v = 0; v < graph.num_vertices(); ++v)
    if (!seen[v]) walk(graph, v, seen, parts.emplace_back());
  return parts;
}

}  // namespace coppice
