// The cuts that a packing has learned, and what the tree under construction does to them.
//
// Theory. Let c be the residual capacities, r the trees still to be rooted and T = sum r. A set X with a terminal has
//
//     slack(X) = c(in(X)) + r(X) - T >= 0.
//
// A finished tree (with all its images under the group, see symmetry/group_action.h) that is taken a times lowers
// slack(X) by
//
//     a * (used(X) + rooted(X) - order),
//
// used(X) being the times its images enter X and rooted(X) the images whose root lies in X. While a tree grows, the
// images that have not landed on a terminal of X still have to enter: `missing(X)` of them. So
//
//     potential(X) = used(X) + missing(X) + rooted(X) - order
//
// never falls as the tree grows, and a * potential(X) <= slack(X) is necessary at any time. Once a cut is tight
// (slack 0) it stays tight: a cut is learned once and guides every later tree.
//
// Cost, with k cuts: learning a cut X takes O((|X| + a) log (|X| + a)) for the a arcs that end in it. Whether a path is
// allowed takes one step for each pair of an arc and a cut that it enters, and so does taking it; landing looks at the
// cuts that contain an image of the terminal. Starting a tree takes O(k order), charging it O(k). Overflow: slack is a
// difference of two sums that the packer has checked (packing.h), and a tree is charged only as often as slack allows.
#pragma once

#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "symmetry/group_action.h"

namespace coppice {

class CutFamily {
 public:
  CutFamily(const Digraph& graph, const GroupAction& action)
      : graph_(graph), action_(action), by_class_(action.num_classes()), by_orbit_(action.num_orbits) {}

  std::int32_t size() const { return static_cast<std::int32_t>(slack_.size()); }
  Amount slack(std::int32_t cut) const { return slack_[cut]; }
  void change_slack(std::int32_t cut, Amount change) { slack_[cut] += change; }

  /// Learns X; returns its index, or -1 where X is known.
  std::int32_t add(std::vector<Vertex> nodes, Amount slack);

  /// Times that one use of arc class `arc_class` enters images of cuts: pairs (cut, times).
  std::span<const std::pair<std::int32_t, Amount>> entered(std::int32_t arc_class) const {
    return by_class_[arc_class];
  }

  /// growth[X] = how much one unit of a tree (with all its images) lowers slack(X).
  /// Args:
  ///   root: Root of the tree.
  ///   use: (arc class, capacity per arc) that one unit of the tree takes.
  void growth_of(Vertex root, std::span<const std::pair<std::int32_t, Amount>> use, std::vector<Amount>& growth) const;

  // The tree under construction.
  void start_tree(Vertex root, Amount multiplicity);
  void lower_multiplicity(Amount multiplicity) { multiplicity_ = multiplicity; }
  /// Whether the tree may take the arcs of `path` without breaking a cut. `landing` is the terminal at its end, or -1
  /// while the path is still on the way (then a landing in every cut entered is taken for granted).
  bool allows(std::span<const Arc> path, Vertex landing);
  void take(std::span<const Arc> path, Vertex landing);
  /// How often the tree may still enter X, besides the entry that lands there first.
  Amount entries_left(std::int32_t cut) const { return slack_[cut] / multiplicity_ - potential(cut); }
  /// The tree gives one use of arc class `freed` for one of `spent`.
  void exchange(std::int32_t freed, std::int32_t spent);
  /// Largest multiplicity that the finished tree may have, at most `limit`.
  Amount largest_multiplicity(Amount limit) const;
  /// Charges the finished tree, taken `multiplicity` times.
  void charge_tree(Amount multiplicity);

 private:
  void land(Vertex v);
  Amount potential(std::int32_t cut) const { return used_[cut] + missing_[cut] + rooted_[cut] - action_.order; }
  Amount newly_reached(std::int32_t cut, Vertex v) const;

  struct Members {
    std::int32_t cut;
    std::vector<Amount> elements;  // of the cut's vertices in this orbit
  };

  const Digraph& graph_;
  const GroupAction& action_;
  std::vector<Amount> slack_;                                             // per cut
  std::vector<std::vector<std::pair<std::int32_t, Amount>>> by_class_;    // per arc class: (cut, times entered)
  std::vector<std::vector<Members>> by_orbit_;                            // per vertex orbit: cuts that meet it
  std::unordered_map<std::uint64_t, std::vector<std::int32_t>> by_hash_;  // to recognise a known cut
  std::vector<std::vector<Vertex>> nodes_;                                // per cut, ascending

  Vertex root_ = -1;
  Amount multiplicity_ = 0;
  std::vector<Amount> used_, missing_, rooted_;                           // per cut, of the current tree
  std::vector<std::vector<std::uint8_t>> reached_;                        // reached_[cut][g]: image g has landed
  std::vector<Amount> path_times_;                                        // scratch of allows(): per cut, times entered
  std::vector<std::int32_t> path_cuts_;                                   // and the cuts for which it is not 0
};

}  // namespace coppice
