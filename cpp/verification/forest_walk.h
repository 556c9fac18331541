// Walks a forest once and counts it, knowing nothing of how it was made.
//
// A forest passes where its columns fit together, every path is at least two nodes along links with no rank inside, every
// edge's path begins at its sender and ends at its receiver, and every tree, in the order of its rows (a reduce tree: the
// other way round), enters each rank but its root exactly once, from the root or from a rank entered before. A tree is then
// connected and free of cycles by induction. Whether roots carry what a collective demands is not looked at.
//
// A walk that does not pass says nothing more: who wants to know why asks the readable reference, which also knows switches that
// copy or add.
//
// Cost: O(nodes of all paths + edges + trees times nodes). Overflow: a forest whose edges weigh 2^62 or more together does
// not pass.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "graph/digraph.h"

namespace coppice {

struct WalkedForest {
  std::vector<Amount> load;          // units of weight on every link
  std::vector<std::int32_t> height;  // of each tree: most hops between its root and a rank
};

/// The columns of a forest and the network, as the Python package has them.
struct ForestToWalk {
  Vertex num_nodes;
  std::span<const Vertex> src;
  std::span<const Vertex> dst;
  std::span<const std::int32_t> rank;  // of each node, -1 where it is none
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

/// What a forest puts on links, and how high its trees are; nothing where it does not pass.
std::optional<WalkedForest> walk_forest(const ForestToWalk& forest);

}  // namespace coppice
