// Grows one spanning tree on physical paths, breadth-first, within the residual capacities and the learned cuts.
//
// Terminals of the tree are searched from in the order in which it has reached them, each again while a search landed
// somewhere and had to pass over an arc only because of the way that led to it. Switches from which nothing new can be
// reached are not entered again.
//
// Cost: a search looks at each arc at most once, and tries it with the path that leads there: O(m (L + K)) for m arcs,
// L arcs of a path and K pairs of an arc of the path and a learned cut that it enters; with a group L^2 in place of L.
// Overflow: the packer has checked all sums (packing.h), and a product of a multiplicity and the images that share an
// arc is compared with a residual before one more image is added to it, so it stays below 2^63.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "packing/cut_family.h"

namespace coppice {

/// A tree as the arcs of its edges, one after the other: an edge ends where an arc enters a terminal.
struct Tree {
  Vertex root = -1;
  Amount multiplicity = 0;
  std::vector<Arc> arcs;
  std::vector<std::pair<std::int32_t, Amount>> use;  // (arc class, capacity per arc and unit of multiplicity), ascending
};

/// Adds to `use` (Tree::use) what a tree takes whose arcs are of these classes, which are sorted.
void count_use(std::vector<std::int32_t>& classes, const GroupAction& action, std::vector<std::pair<std::int32_t, Amount>>& use);

class TreeGrower {
 public:
  /// `residual` is per arc class and is changed as trees grow.
  TreeGrower(const Digraph& graph, const GroupAction& action, std::span<const std::uint8_t> terminal, CutFamily& cuts,
             std::vector<Amount>& residual);

  /// Starts a tree at `root` that takes `multiplicity` units.
  void start(Vertex root, Amount multiplicity);
  /// Extends the tree until nothing more can be added. Returns whether it spans all terminals.
  bool grow();
  /// Halves the multiplicity of a tree that is stuck and returns what was used in excess.
  void lower_multiplicity(Amount multiplicity);
  /// Adds one path, checked by the caller.
  void extend(std::span<const Arc> path);
  /// For templates that are stuck because a class of arcs is used up: hangs a vertex of the tree over to an arc of
  /// another class, or several in a chain, so that one more terminal can be reached. Only edges of one arc are moved.
  /// What a template uses of each class is all that counts, so this is as good as one more arc of the last class.
  bool exchange();
  /// Gives back what the unfinished tree uses.
  void abandon();
  /// The finished tree, with the largest multiplicity up to `limit` that residuals and cuts allow (all charged).
  Tree finish(Amount limit);

  /// Whether a tree was started and neither finished nor abandoned.
  bool growing() const { return growing_; }
  bool spans() const { return static_cast<std::int32_t>(reached_list_.size()) == num_terminals_; }
  std::int32_t num_terminals() const { return num_terminals_; }
  bool reached(Vertex v) const { return reached_[v] == stamp_; }
  bool is_terminal(Vertex v) const { return terminal_[v]; }
  const std::vector<Vertex>& reached_list() const { return reached_list_; }
  Amount multiplicity() const { return multiplicity_; }

  /// Whether the residuals allow one more use of all arcs of `path` by the current tree.
  bool has_room(std::span<const Arc> path) const;

 private:
  struct Move {
    Vertex vertex = -1;     // to hang over
    Arc to = -1;            // its new arc
    std::int32_t from = -1; // index of the move that this one makes room for, -1 for the first
  };

  bool exchange_for(Vertex y, Arc last);
  bool apply(const std::vector<Move>& moves, std::int32_t end, Arc last);
  bool is_ancestor(Vertex a, Vertex v) const;
  bool has_units(std::int32_t arc_class) const {
    return residual_[arc_class] >= multiplicity_ * action_.images_per_arc[arc_class];
  }
  void change_residual(std::int32_t arc_class, Amount uses) {
    residual_[arc_class] += uses * action_.images_per_arc[arc_class];
  }
  void restore_order();

  bool search_from(Vertex x);
  bool arc_is_open(Vertex from, Arc e) const;
  void path_to(Vertex v, std::vector<Arc>& path) const;

  const Digraph& graph_;
  const GroupAction& action_;
  std::span<const std::uint8_t> terminal_;
  CutFamily& cuts_;
  std::vector<Amount>& residual_;
  std::int32_t num_terminals_ = 0;

  bool growing_ = false;
  Vertex root_ = -1;
  Amount multiplicity_ = 0;
  std::vector<Arc> arcs_;
  std::vector<std::size_t> edge_start_;   // edge_start_[v]: where the edge that lands on terminal v starts in arcs_
  bool exchanged_ = false;                // edges may no longer come in the order of the data
  std::vector<Vertex> reached_list_;      // terminals of the tree in the order of landing
  std::size_t searched_ = 0;              // reached_list_[0 .. searched_) have been searched from
  std::int32_t stamp_ = 0;
  std::vector<std::int32_t> reached_;     // reached_[v] == stamp_: the tree spans terminal v
  std::vector<std::int32_t> closed_;      // closed_[v] == stamp_: nothing new can be reached through switch v
  std::int32_t search_stamp_ = 0;
  std::vector<std::int32_t> visited_;     // visited_[v] == search_stamp_: seen in this search
  std::vector<Arc> parent_;               // arc by which this search came to v
  std::vector<Vertex> queue_;
  std::vector<std::pair<Amount, Arc>> candidates_;
  std::vector<Arc> path_;
};

}  // namespace coppice
