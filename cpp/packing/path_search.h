// Looks for one more path for a tree, exhaustively: what the breadth-first growth of tree_grower.h may overlook.
//
// Whether a path through switches may be taken depends on the arcs that have room and on how often it enters each
// learned cut, so the way that leads to a switch matters. A way is worth keeping only if no other way to the same
// switch enters every cut at most as often; cuts that no simple path can overdraw do not count. With these labels the
// search is exact, and where few cuts are scarce it looks at each switch a few times instead of at every simple path.
//
// Labels may be exponentially many in the number of scarce cuts, so the search ends at 1,000 for each vertex.
//
// Cost: each label kept is compared with all labels at its vertex and its path is checked anew, at the cost of its length. Overflow: none, labels hold counts of arcs.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/stop.h"
#include "packing/tree_grower.h"

namespace coppice {

class PathSearch {
 public:
  PathSearch(const Digraph& graph, std::span<const std::uint8_t> terminal, CutFamily& cuts);

  /// Finds a path from a terminal that `tree` has reached to one that it has not, within residuals and learned cuts,
  /// with few arcs. For trees without a group.
  /// Returns: Its arcs; empty where there is none; nothing where more than 1,000 labels for each vertex were kept before
  ///   that was known. Throws Cancelled when `stop` says so.
  std::optional<std::vector<Arc>> find(const TreeGrower& tree, const StopFlag& stop);

 private:
  struct Label {
    Vertex vertex;
    Arc arc;            // that leads here, -1 at the start
    std::int32_t from;  // label at the tail of `arc`
    std::vector<std::pair<std::int32_t, Amount>> entered;  // (scarce cut, times entered), ascending
  };

  void path_to(std::int32_t label, std::vector<Arc>& path) const;
  std::vector<std::pair<std::int32_t, Amount>> entered_with(const Label& label, Arc e) const;
  bool is_dominated(const Label& label) const;

  const Digraph& graph_;
  std::span<const std::uint8_t> terminal_;
  CutFamily& cuts_;
  Amount most_entries_;                               // of a simple path through switches into one set
  std::vector<Label> labels_;
  std::vector<std::vector<std::int32_t>> labels_at_;  // per vertex
};

}  // namespace coppice
