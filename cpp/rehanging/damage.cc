#include "rehanging/damage.h"

#include <stdexcept>
#include <string>

namespace coppice {

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

void check(const Network& network, const ForestColumns& forest) {
  require(network.dst.size() == network.src.size() && network.cost.size() == network.src.size(),
          "links must have two ends and a cost each");
  require(network.rank.size() == static_cast<std::size_t>(network.num_nodes), "every node must have a rank or -1");
  const std::size_t trees = forest.tree_root.size(), edges = forest.edge_src.size();
  require(forest.tree_weight.size() == trees && forest.tree_phase.size() == trees && forest.tree_start.size() == trees + 1,
          "columns of trees must have one length");
  require(forest.edge_dst.size() == edges && forest.edge_path.size() == edges, "columns of edges must have one length");
  require(!forest.path_start.empty() && forest.path_start.front() == 0 &&
              forest.path_start.back() == static_cast<std::int64_t>(forest.path_nodes.size()),
          "paths must fill path_nodes");
  require(forest.tree_start.front() == 0 && forest.tree_start.back() == static_cast<std::int64_t>(edges),
          "trees must fill the edges");
  for (std::size_t p = 0; p + 1 < forest.path_start.size(); ++p)
    require(forest.path_start[p] < forest.path_start[p + 1], "paths must have nodes");
  const auto paths = static_cast<std::int64_t>(forest.path_start.size()) - 1;
  for (std::size_t t = 0; t < trees; ++t) {
    require(forest.tree_start[t] <= forest.tree_start[t + 1], "trees must not overlap");
    require(forest.tree_root[t] >= 0 && forest.tree_root[t] < network.num_nodes, "roots must be nodes");
  }
  for (std::size_t row = 0; row < edges; ++row) {
    require(forest.edge_path[row] >= -1 && forest.edge_path[row] < paths, "edges must have paths that are there");
    require(forest.edge_src[row] >= -1 && forest.edge_src[row] < network.num_nodes && forest.edge_dst[row] >= -1 &&
                forest.edge_dst[row] < network.num_nodes,
            "edges must join nodes");
  }
}

}  // namespace

Damage::Damage(const Network& given, const ForestColumns& columns)
    : network(given), forest(columns), graph(given.num_nodes, given.src, given.dst),
      links(given.num_nodes, given.src, given.dst), load(given.src.size()), hop_link_(columns.path_nodes.size()) {
  check(network, forest);
  __int128 total = 0;
  for (std::size_t t = 0; t < forest.tree_root.size(); ++t)
    total += static_cast<__int128>(forest.tree_weight[t]) * (forest.tree_start[t + 1] - forest.tree_start[t]);
  if (total >= (__int128{1} << 62)) throw std::overflow_error("all edges must weigh less than 2^62 together");
  for (std::size_t p = 0; p + 1 < forest.path_start.size(); ++p) {
    const std::int64_t last = forest.path_start[p + 1] - 1;
    for (std::int64_t at = forest.path_start[p]; at < last; ++at)
      hop_link_[at] = links(forest.path_nodes[at], forest.path_nodes[at + 1]);
    hop_link_[last] = LinkTable::kMissing;
  }
  for (std::size_t t = 0; t < forest.tree_root.size(); ++t) {
    const Amount weight = forest.tree_weight[t];
    for (std::int64_t row = forest.tree_start[t]; row < forest.tree_start[t + 1]; ++row) {
      const std::int32_t path = forest.edge_path[row];
      bool whole = path >= 0;
      if (whole)
        for (std::int64_t at = forest.path_start[path]; at + 1 < forest.path_start[path + 1]; ++at) {
          const Arc link = hop_link_[at];
          if (link >= 0)
            load[link] += weight;
          else
            whole = false;
        }
      if (!whole) broken.push_back(row);
    }
  }
}

std::vector<std::vector<std::int64_t>> Damage::rows_over(const std::vector<std::uint8_t>& wanted) const {
  std::vector<std::vector<std::int64_t>> found(wanted.size());
  for (std::size_t row = 0; row < forest.edge_path.size(); ++row) {
    const std::int32_t path = forest.edge_path[row];
    if (path < 0) continue;
    for (std::int64_t at = forest.path_start[path]; at + 1 < forest.path_start[path + 1]; ++at)
      if (const Arc link = hop_link_[at]; link >= 0 && wanted[link]) found[link].push_back(static_cast<std::int64_t>(row));
  }
  return found;
}

}  // namespace coppice
