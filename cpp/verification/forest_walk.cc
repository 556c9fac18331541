#include "verification/forest_walk.h"

#include <algorithm>

#include "graph/link_table.h"

namespace coppice {

namespace {

/// Whether offsets begin at 0, do not decrease (by `least` at least), and end at `end`.
bool are_offsets(std::span<const std::int64_t> start, std::size_t end, std::int64_t least) {
  if (start.empty() || start.front() != 0 || start.back() != static_cast<std::int64_t>(end)) return false;
  for (std::size_t i = 1; i < start.size(); ++i)
    if (start[i] - start[i - 1] < least) return false;
  return true;
}

bool are_columns(const ForestToWalk& forest) {
  const std::size_t trees = forest.tree_root.size(), edges = forest.edge_src.size();
  return forest.dst.size() == forest.src.size() && forest.rank.size() == static_cast<std::size_t>(forest.num_nodes) &&
         forest.tree_weight.size() == trees && forest.tree_phase.size() == trees && forest.tree_start.size() == trees + 1 &&
         forest.edge_dst.size() == edges && forest.edge_path.size() == edges && are_offsets(forest.tree_start, edges, 0) &&
         are_offsets(forest.path_start, forest.path_nodes.size(), 2);
}

}  // namespace

std::optional<WalkedForest> walk_forest(const ForestToWalk& forest) {
  if (!are_columns(forest)) return std::nullopt;
  const Vertex nodes = forest.num_nodes;
  auto is_rank = [&](Vertex v) { return v >= 0 && v < nodes && forest.rank[v] >= 0; };
  const auto ranks = std::ranges::count_if(forest.rank, [](std::int32_t rank) { return rank >= 0; });
  const LinkTable link_of(nodes, forest.src, forest.dst);

  const std::size_t paths = forest.path_start.size() - 1;
  std::vector<Arc> hop(forest.path_nodes.size());  // link from each node of a path to the next
  for (std::size_t p = 0; p < paths; ++p) {
    const std::int64_t first = forest.path_start[p], last = forest.path_start[p + 1] - 1;
    for (std::int64_t at = first; at < last; ++at) {
      if (at > first && is_rank(forest.path_nodes[at])) return std::nullopt;
      hop[at] = link_of(forest.path_nodes[at], forest.path_nodes[at + 1]);
      if (hop[at] == LinkTable::kMissing) return std::nullopt;
    }
  }

  WalkedForest found;
  found.load.assign(forest.src.size(), 0);
  found.height.assign(forest.tree_root.size(), 0);
  __int128 total = 0;
  std::vector<std::int32_t> depth(static_cast<std::size_t>(nodes));  // -1 where a node was not entered
  for (std::size_t t = 0; t < forest.tree_root.size(); ++t) {
    const std::int64_t first = forest.tree_start[t], end = forest.tree_start[t + 1];
    const Amount weight = forest.tree_weight[t];
    const bool reduces = forest.tree_phase[t] == 1;
    if (weight <= 0 || (forest.tree_phase[t] != 0 && !reduces) || !is_rank(forest.tree_root[t]) || end - first != ranks - 1)
      return std::nullopt;
    total += static_cast<__int128>(weight) * (end - first);
    if (total >= (__int128{1} << 62)) return std::nullopt;
    std::ranges::fill(depth, -1);
    depth[forest.tree_root[t]] = 0;
    for (std::int64_t i = first; i < end; ++i) {
      const std::int64_t row = reduces ? first + end - 1 - i : i;
      const Vertex src = forest.edge_src[row], dst = forest.edge_dst[row];
      const std::int32_t path = forest.edge_path[row];
      if (!is_rank(src) || !is_rank(dst) || path < 0 || static_cast<std::size_t>(path) >= paths) return std::nullopt;
      const std::int64_t begin = forest.path_start[path], last = forest.path_start[path + 1] - 1;
      if (forest.path_nodes[begin] != src || forest.path_nodes[last] != dst) return std::nullopt;
      const Vertex parent = reduces ? dst : src, child = reduces ? src : dst;
      if (depth[parent] < 0 || depth[child] >= 0) return std::nullopt;
      depth[child] = depth[parent] + 1;
      found.height[t] = std::max(found.height[t], depth[child]);
      for (std::int64_t at = begin; at < last; ++at) found.load[hop[at]] += weight;
    }
  }
  return found;
}

}  // namespace coppice
