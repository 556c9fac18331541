#include "packing/shortening.h"

#include <algorithm>

namespace coppice {

TreeDepth tree_depth(const Digraph& graph, std::span<const std::uint8_t> terminal, Vertex root, std::span<const Arc> arcs,
                     std::vector<std::int32_t>& depth) {
  TreeDepth result;
  depth[root] = 0;
  std::int32_t here = 0;
  bool edge_starts = true;
  for (Arc e : arcs) {
    if (edge_starts) here = depth[graph.tail(e)] + 1;
    Vertex to = graph.head(e);
    edge_starts = terminal[to];
    if (!edge_starts) continue;
    depth[to] = here;
    result.height = std::max(result.height, here);
    result.sum += here;
  }
  return result;
}

namespace {

class Shortener {
 public:
  Shortener(const Digraph& graph, const GroupAction& action, std::span<const std::uint8_t> terminal, std::vector<Amount>& residual)
      : graph_(graph), terminal_(terminal), residual_(residual), cuts_(graph, action), grower_(graph, action, terminal, cuts_, residual), depth_(graph.num_vertices(), 0) {}

  /// One attempt at one tree; returns whether it became shallower.
  bool shorten(Tree& tree) {
    TreeDepth before = depth_of(tree);
    if (before.height <= least_height(tree.root)) return false;
    for (auto [arc_class, units] : tree.use) residual_[arc_class] += tree.multiplicity * units;
    grower_.start(tree.root, tree.multiplicity);
    if (grower_.grow()) {
      Tree shorter = grower_.finish(tree.multiplicity);
      if (depth_of(shorter) < before) {
        tree = std::move(shorter);
        return true;
      }
      for (auto [arc_class, units] : shorter.use) residual_[arc_class] += shorter.multiplicity * units;
    } else {
      grower_.abandon();
    }
    for (auto [arc_class, units] : tree.use) residual_[arc_class] -= tree.multiplicity * units;
    return false;
  }

 private:
  TreeDepth depth_of(const Tree& tree) { return tree_depth(graph_, terminal_, tree.root, tree.arcs, depth_); }

  // Height of the breadth-first tree from `root` without regard to capacities.
  std::int32_t least_height(Vertex root) {
    if (least_.empty()) least_.assign(graph_.num_vertices(), -1);
    if (least_[root] >= 0) return least_[root];
    std::vector<std::int32_t> hops(graph_.num_vertices(), -1);
    std::vector<Vertex> level{root}, next;
    hops[root] = 0;
    std::int32_t height = 0;
    while (!level.empty()) {  // vertices at `height` hops; switches cost nothing
      next.clear();
      for (std::size_t i = 0; i < level.size(); ++i) {
        for (Arc e : graph_.out(level[i])) {
          Vertex to = graph_.head(e);
          if (hops[to] >= 0) continue;
          hops[to] = height + (terminal_[to] ? 1 : 0);
          (terminal_[to] ? next : level).push_back(to);
        }
      }
      height += !next.empty();
      level.swap(next);
    }
    return least_[root] = height;
  }

  const Digraph& graph_;
  std::span<const std::uint8_t> terminal_;
  std::vector<Amount>& residual_;
  CutFamily cuts_;  // stays empty
  TreeGrower grower_;
  std::vector<std::int32_t> depth_, least_;
};

}  // namespace

void shorten_trees(const Digraph& graph, const GroupAction& action, std::span<const std::uint8_t> terminal,
                   std::vector<Amount>& residual, std::vector<Tree>& trees, const StopFlag& stop) {
  constexpr int kPasses = 8;
  Shortener shortener(graph, action, terminal, residual);
  for (int pass = 0; pass < kPasses; ++pass) {
    bool changed = false;
    for (Tree& tree : trees) {
      poll(stop);
      changed |= shortener.shorten(tree);
    }
    if (!changed) break;
  }
}

}  // namespace coppice
