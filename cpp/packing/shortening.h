// Makes the trees of a finished packing shallower with the capacity that is left over.
//
// Once every tree is packed nothing but the loads counts: no cut has to be kept for trees to come. So each tree may be
// taken out and grown again breadth-first over what it used and what nobody uses; it stays if it became shallower.
// Repeated until a pass changes nothing. Trees that are as shallow as any tree from their root can be are skipped.
//
// Cost: at most eight passes, each of which grows every tree that is not as shallow as it can be once (tree_grower.h),
// and one breadth-first search per root. Overflow: none, residuals only get back what trees had taken.
#pragma once

#include <compare>
#include <span>
#include <vector>

#include "core/stop.h"
#include "symmetry/group_action.h"
#include "packing/tree_grower.h"

namespace coppice {

/// Args:
///   residual: Per arc class, capacity that the trees leave over; kept up to date.
///   trees: Spanning trees with their multiplicities; changed in place.
void shorten_trees(const Digraph& graph, const GroupAction& action, std::span<const std::uint8_t> terminal,
                   std::vector<Amount>& residual, std::vector<Tree>& trees, const StopFlag& stop = {});

/// Depth of the deepest terminal and sum of the depths of all, in edges between terminals.
struct TreeDepth {
  std::int32_t height = 0;
  std::int64_t sum = 0;
  auto operator<=>(const TreeDepth&) const = default;
};

/// Args:
///   arcs: Of one tree, as in Tree.
///   depth: Scratch, one entry per vertex.
TreeDepth tree_depth(const Digraph& graph, std::span<const std::uint8_t> terminal, Vertex root, std::span<const Arc> arcs,
                     std::vector<std::int32_t>& depth);

}  // namespace coppice
