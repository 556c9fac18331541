// The columns of a forest: views of those that are given, and those that are made.
//
// Tree t has the rows tree_start[t] .. tree_start[t + 1) - 1, an edge a row, in an order in which data can flow. Path p is
// path_nodes[path_start[p] .. path_start[p + 1]).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/digraph.h"

namespace coppice {

struct ForestColumns {
  std::span<const Vertex> tree_root;
  std::span<const Amount> tree_weight;
  std::span<const std::int8_t> tree_phase;  // 0 broadcasts, 1 reduces
  std::span<const std::int64_t> tree_start;
  std::span<const Vertex> edge_src;
  std::span<const Vertex> edge_dst;
  std::span<const std::int32_t> edge_path;
  std::span<const std::int64_t> path_start;
  std::span<const Vertex> path_nodes;
};

struct MadeForest {
  std::vector<Vertex> tree_root;
  std::vector<Amount> tree_weight;
  std::vector<std::int8_t> tree_phase;
  std::vector<std::int64_t> tree_start;
  std::vector<Vertex> edge_src;
  std::vector<Vertex> edge_dst;
  std::vector<std::int32_t> edge_path;
  std::vector<std::int64_t> path_start;
  std::vector<Vertex> path_nodes;
};

}  // namespace coppice
