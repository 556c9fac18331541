// Trees under construction, all at once, and the capacity that they leave.
//
// A bundle is a number of equal trees that are still one. It keeps, for each terminal, the path by which the terminal
// hangs on the tree and its depth. Terminals may be missing; what is there is always connected with the root.
//
// Cost: hanging a terminal takes O(arcs of the path), and O(N) for N terminals where a subtree moves with it;
// splitting a bundle O(N). Memory: 12 bytes for each bundle and terminal, and each distinct path once. Overflow: the
// packer has checked the sums of capacities and of trees; residuals stay between their difference.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/row_table.h"
#include "graph/digraph.h"

namespace coppice {

struct Bundle {
  static constexpr std::int32_t kNone = -1;

  Vertex root = -1;
  Amount weight = 0;                   // trees
  std::vector<std::int32_t> via;       // per terminal index: path that leads to it, kNone at the root and where missing
  std::vector<std::int32_t> depth;     // per terminal index: edges from the root, kNone where missing
  std::vector<std::int32_t> children;  // per terminal index: edges out of it
  std::int32_t missing = 0;            // terminals that the tree does not reach
};

class Bundles {
 public:
  static constexpr std::int32_t kNone = Bundle::kNone;

  /// One bundle for each terminal with trees to root, without edges.
  Bundles(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
          std::span<const Amount> capacity);

  const Digraph& graph() const { return *graph_; }
  std::int32_t size() const { return static_cast<std::int32_t>(bundles_.size()); }
  const Bundle& operator[](std::int32_t b) const { return bundles_[b]; }
  const std::vector<Vertex>& terminals() const { return terminals_; }
  bool is_terminal(Vertex v) const { return index_[v] >= 0; }
  std::int32_t index(Vertex v) const { return index_[v]; }
  /// Bundles times terminals.
  std::int64_t places() const { return static_cast<std::int64_t>(bundles_.size() * terminals_.size()); }
  std::int64_t missing() const;
  std::int32_t height() const;

  Amount capacity(Arc e) const { return capacity_[e]; }
  /// What is left of an arc; below 0 while an exchange is under way.
  Amount residual(Arc e) const { return residual_[e]; }
  bool reaches(const Bundle& tree, Vertex v) const { return index_[v] >= 0 && tree.depth[index_[v]] >= 0; }

  std::int32_t number(std::span<const Arc> path) { return paths_.number(path); }
  std::span<const Arc> path(std::int32_t path) const { return paths_[path]; }
  Vertex parent(std::int32_t path) const { return graph_->tail(paths_[path].front()); }
  /// Adds to what is left of the arcs of a path.
  void change_residual(std::int32_t path, Amount change);

  /// Hangs v, which is missing or was taken off, to the end of a path; its subtree moves with it.
  void hang(std::int32_t b, Vertex v, std::int32_t path);
  /// Takes v off its path. Its subtree and the depths stay, so that it can be hung somewhere else.
  void take_off(std::int32_t b, Vertex v);
  /// After take_off: v is missing again. It has no subtree.
  void drop(std::int32_t b, Vertex v);
  /// Takes off all that is deeper than `depth`.
  void drop_below(std::int32_t depth);
  /// Takes all edges off.
  void clear(std::int32_t b);
  /// The bundle keeps `amount` of its trees; the rest, with the same edges, becomes the last bundle.
  void split(std::int32_t b, Amount amount);
  /// Joins bundles of a root that have the same edges.
  void join_equal();

  /// Index of v and of all terminals below it in the tree; valid until the next call.
  const std::vector<std::int32_t>& subtree(const Bundle& tree, Vertex v);

 private:
  void move_to_depth(Bundle& tree, Vertex v, std::int32_t depth);

  const Digraph* graph_;
  std::span<const Amount> capacity_;
  std::vector<Amount> residual_;
  std::vector<Vertex> terminals_;
  std::vector<std::int32_t> index_;  // per vertex: index among terminals_, kNone for switches
  std::vector<Bundle> bundles_;
  RowTable paths_;
  std::vector<std::int32_t> subtree_, climb_;
  std::vector<std::uint8_t> places_;  // scratch of subtree(), per terminal index
};

}  // namespace coppice
