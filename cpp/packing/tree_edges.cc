#include "packing/tree_edges.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "core/hash.h"

namespace coppice {

namespace {

// Numbers each distinct path once.
class PathTable {
 public:
  explicit PathTable(TreeEdges& edges) : edges_(edges), slots_(1024, -1) {}

  std::int32_t number(std::span<const Vertex> vertices) {
    if (2 * edges_.path_start.size() > slots_.size()) grow();
    const std::size_t slot = find(vertices);
    if (slots_[slot] < 0) {
      const std::size_t path = edges_.path_start.size() - 1;
      if (path > std::numeric_limits<std::int32_t>::max())
        throw std::overflow_error("there must be less than 2^31 distinct paths");
      slots_[slot] = static_cast<std::int32_t>(path);
      edges_.path_vertices.insert(edges_.path_vertices.end(), vertices.begin(), vertices.end());
      edges_.path_start.push_back(static_cast<std::int64_t>(edges_.path_vertices.size()));
    }
    return slots_[slot];
  }

 private:
  std::span<const Vertex> vertices_of(std::int32_t path) const {
    const Vertex* first = edges_.path_vertices.data();
    return {first + edges_.path_start[path], first + edges_.path_start[path + 1]};
  }

  // The slot of these vertices, or the free one where they belong.
  std::size_t find(std::span<const Vertex> vertices) const {
    const std::uint64_t hash = hash_of(vertices);
    std::size_t slot = (hash ^ hash >> 29) & (slots_.size() - 1);
    while (slots_[slot] >= 0 && !std::ranges::equal(vertices_of(slots_[slot]), vertices))
      slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }

  void grow() {
    slots_.assign(2 * slots_.size(), -1);
    for (std::size_t path = 0; path + 1 < edges_.path_start.size(); ++path)
      slots_[find(vertices_of(static_cast<std::int32_t>(path)))] = static_cast<std::int32_t>(path);
  }

  TreeEdges& edges_;
  std::vector<std::int32_t> slots_;  // path number or -1; a power of two of them, at least half free
};

}  // namespace

TreeEdges tree_edges(const Digraph& graph, std::span<const std::uint8_t> terminal, const Packing& packing) {
  TreeEdges edges;
  PathTable paths(edges);
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
  return edges;
}

}  // namespace coppice
