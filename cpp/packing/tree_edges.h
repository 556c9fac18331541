// The trees of a packing as edges between terminals: what those who asked for a packing go on with.
//
// A packing lists each tree as a row of arcs, in which an edge ends where an arc enters a terminal. Here every edge is
// named by the two terminals that it joins and by the number of its path, the vertices from one to the other. Large
// packings repeat few paths many times, so each distinct path is listed once (core/row_table.h).
//
// Cost: expected O(arcs of all trees). Overflow: there may be less than 2^31 distinct paths, which is checked where one
// is numbered; all other figures are counts of things in memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/digraph.h"
#include "packing/packing.h"

namespace coppice {

struct TreeEdges {
  std::vector<std::int64_t> tree_start{0};  // edges of tree t: tree_start[t] .. tree_start[t + 1]
  std::vector<Vertex> src, dst;             // per edge: the terminals that it joins
  std::vector<std::int32_t> path;           // per edge: number of its path
  std::vector<std::int64_t> path_start{0};  // vertices of path p: path_vertices[path_start[p] .. path_start[p + 1])
  std::vector<Vertex> path_vertices;        // both ends included
};

/// Args:
///   terminal: Per vertex, as it was given to the packer.
/// Throws std::overflow_error where the paths cannot be numbered.
TreeEdges tree_edges(const Digraph& graph, std::span<const std::uint8_t> terminal, const Packing& packing);

}  // namespace coppice
