#include "graph/digraph.h"

#include <limits>
#include <stdexcept>
#include <string>

namespace coppice {

static void build_rows(Vertex n, std::span<const Vertex> end, std::vector<std::int32_t>& start,
                       std::vector<Arc>& arcs) {
  start.assign(n + 1, 0);
  for (Vertex v : end) ++start[v + 1];
  for (Vertex v = 0; v < n; ++v) start[v + 1] += start[v];
  arcs.resize(end.size());
  std::vector<std::int32_t> next(start.begin(), start.end() - 1);
  for (std::size_t e = 0; e < end.size(); ++e) arcs[next[end[e]]++] = static_cast<Arc>(e);
}

Digraph::Digraph(Vertex num_vertices, std::span<const Vertex> tail, std::span<const Vertex> head)
    : num_vertices_(num_vertices), tail_(tail.begin(), tail.end()), head_(head.begin(), head.end()) {
  constexpr Vertex kMost = std::numeric_limits<Vertex>::max();
  if (num_vertices < 0 || tail.size() != head.size()) throw std::invalid_argument("a graph needs as many tails as heads");
  if (num_vertices == kMost || tail.size() >= static_cast<std::size_t>(kMost))
    throw std::invalid_argument("a graph must have less than 2^31 - 1 vertices and arcs");
  for (std::size_t e = 0; e < tail.size(); ++e) {
    bool inside = 0 <= tail[e] && tail[e] < num_vertices && 0 <= head[e] && head[e] < num_vertices;
    if (!inside || tail[e] == head[e])
      throw std::invalid_argument("arc " + std::to_string(e) + " is " + std::to_string(tail[e]) + " -> " +
                                  std::to_string(head[e]) + ": ends must differ and lie in 0 .. " +
                                  std::to_string(num_vertices - 1));
  }
  build_rows(num_vertices, tail_, out_start_, out_arcs_);
  build_rows(num_vertices, head_, in_start_, in_arcs_);
}

}  // namespace coppice
