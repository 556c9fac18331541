// Trees from one root that grow side by side, level by level, on arcs between terminals.
//
// Theory. Let trees j = 1 .. k have reached the sets R_j, and let c be the capacities that are left. They can all be
// completed iff
//
//     c(in(X)) >= #{j : R_j and X are disjoint}   for every vertex set X
//
// (Edmonds' branching theorem for branchings that have begun; Schrijver, Combinatorial Optimization, Theorem 53.1). As
// long as that holds each tree that does not span has an arc that keeps it true. Giving an arc into v to tree j only
// lowers the left side of sets that contain v, so one max-flow to v says whether it lasts: as many units as trees have
// not reached v, each from what its tree has reached. It ends close by, as trees are soon everywhere. A set that is tight
// stays tight, so an arc that a tree may not take is never asked for again.
//
// So no tree is ever taken back, and all are about as low as breadth-first search makes them: in a round a tree takes
// arcs of what it had reached before the round.
//
// Cost: k V flows and the arcs that are refused, at most k E, each of up to k searches through all arcs. There are as
// many rounds as the highest tree has levels, O(k E) each. Overflow: none; capacities above k count as k.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"
#include "graph/digraph.h"

namespace coppice {

/// Trees that span all vertices, each arc in at most as many of them as its capacity.
/// Args:
///   trees: k, 1 or more.
///   capacity: Per arc, 0 or more.
/// Returns: The arcs of one tree after the other, each in an order in which data can flow; none where there are no such
///   trees.
/// Throws std::invalid_argument where an argument is out of range, Cancelled when `stop` says so.
std::vector<Arc> grow_together(const Digraph& graph, Vertex root, std::int32_t trees, std::span<const Amount> capacity,
                               const StopFlag& stop = {});

}  // namespace coppice
