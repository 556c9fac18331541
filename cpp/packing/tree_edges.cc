#include "packing/tree_edges.h"

#include <utility>

#include "core/row_table.h"

namespace coppice {

TreeEdges tree_edges(const Digraph& graph, std::span<const std::uint8_t> terminal, const Packing& packing) {
  TreeEdges edges;
  RowTable paths;
  std::vector<Vertex> vertices;  // of the edge that has begun
  for (std::size_t tree = 0; tree + 1 < packing.start.size(); ++tree) {
    for (std::int64_t i = packing.start[tree]; i < packing.start[tree + 1]; ++i) {
      const Arc e = packing.arcs[i];
      if (vertices.empty()) vertices.push_back(graph.tail(e));
      vertices.push_back(graph.head(e));
      if (!terminal[graph.head(e)]) continue;
      edges.src.push_back(vertices.front());
      edges.dst.push_back(vertices.back());
      edges.path.push_back(paths.number(vertices));
      vertices.clear();
    }
    edges.tree_start.push_back(static_cast<std::int64_t>(edges.src.size()));
  }
  edges.path_start = std::move(paths.start());
  edges.path_vertices = std::move(paths.values());
  return edges;
}

}  // namespace coppice
