// The forest that an attempt made.
#include <algorithm>
#include <numeric>

#include "rehanging/rehanging.h"

namespace coppice {

std::vector<Amount> Rehanging::load() const {
  std::vector<Amount> found(room_.size());
  for (std::size_t e = 0; e < room_.size(); ++e) found[e] = limits_.limit[e] - room_[e];
  return found;
}

MadeForest Rehanging::forest() const {
  const ForestColumns& given = damage_.forest;
  MadeForest made;
  made.tree_root.assign(given.tree_root.begin(), given.tree_root.end());
  made.tree_phase.assign(given.tree_phase.begin(), given.tree_phase.end());
  made.tree_start.assign(given.tree_start.begin(), given.tree_start.end());
  made.edge_src.assign(given.edge_src.begin(), given.edge_src.end());
  made.edge_dst.assign(given.edge_dst.begin(), given.edge_dst.end());
  made.edge_path = edge_path_;
  for (Amount weight : given.tree_weight) made.tree_weight.push_back(weight * limits_.scale);

  std::vector<std::int32_t> hops(static_cast<std::size_t>(damage_.network.num_nodes));
  auto write = [&](const Tree& tree, std::int64_t row) {
    // Rows in the order of the hops from the root, children of equally many in the order in which they came.
    std::vector<Vertex> order = tree.children;
    for (Vertex child : order) hops[child] = depth(tree, child);
    std::ranges::stable_sort(order, {}, [&](Vertex child) { return hops[child]; });
    if (tree.reduces) std::ranges::reverse(order);
    for (Vertex child : order) {
      made.edge_src[row] = tree.reduces ? child : tree.parent[child];
      made.edge_dst[row] = tree.reduces ? tree.parent[child] : child;
      made.edge_path[row++] = tree.path[child];
    }
  };
  for (const auto& [number, tree] : moved_) {
    write(*tree, given.tree_start[number]);
    made.tree_weight[number] = tree->weight;
  }
  for (const Tree* tree : split_) {
    const std::int64_t row = made.tree_start.back(), rows = row + static_cast<std::int64_t>(tree->children.size());
    made.tree_root.push_back(tree->root);
    made.tree_weight.push_back(tree->weight);
    made.tree_phase.push_back(tree->reduces ? 1 : 0);
    made.tree_start.push_back(rows);
    made.edge_src.resize(rows);
    made.edge_dst.resize(rows);
    made.edge_path.resize(rows);
    write(*tree, row);
  }

  // Paths that are used keep their order.
  const std::size_t paths = static_cast<std::size_t>(first_new_) + new_paths_.size();
  std::vector<std::int32_t> place(paths, -1);
  for (std::int32_t p : made.edge_path) place[p] = 0;
  std::size_t nodes = 0, used = 0;
  for (std::size_t p = 0; p < paths; ++p)
    if (place[p] == 0) nodes += path(static_cast<std::int32_t>(p)).size(), ++used;
  made.path_start.reserve(used + 1);
  made.path_nodes.reserve(nodes);
  made.path_start.push_back(0);
  std::int32_t next = 0;
  for (std::size_t p = 0; p < paths; ++p) {
    if (place[p] < 0) continue;
    place[p] = next++;
    auto each = path(static_cast<std::int32_t>(p));
    made.path_nodes.insert(made.path_nodes.end(), each.begin(), each.end());
    made.path_start.push_back(static_cast<std::int64_t>(made.path_nodes.size()));
  }
  for (std::int32_t& p : made.edge_path) p = place[p];
  return made;
}

}  // namespace coppice
