// Replaces switches by logical arcs between terminals, so that trees need not think of switches any more.
//
// Theory (edge splitting: Mader, 1982; Jackson, 1988; Frank, 1988; with capacities ForestColl, arXiv 2402.06787).
// Splitting a units off u -> w -> t takes a from each of the two arcs and gives a to an arc u -> t (to none if u = t).
// Every cut that it lowers falls by exactly a. So after a tentative split of all that both arcs have, one check of the cut
// condition (cuts/feasibility.h) names the worst violated set, and the split is right once it is smaller by what that set
// lacks. An amount that is used up never comes back, since no cut ever rises: one pass over all pairs of a
// switch splits off all of its capacity where no switch has more out than in (docs/theory.md, Theorem 1).
//
// A set that has become tight forbids its pairs for good, so those are remembered and pairs that they forbid cost nothing.
//
// Cost: at most one check for each pair (u, t) of neighbours of each switch, which is one max-flow for each terminal.
// Memory: the physical path of every strand. Overflow: sums of capacities only fall, and the packer has checked them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"
#include "graph/digraph.h"

namespace coppice {

/// A simple path through switches, and how many trees fit on it.
struct Strand {
  std::vector<Arc> path;
  Amount amount = 0;
};

/// Capacity from one terminal to another as physical strands; no two arcs have the same ends.
struct LogicalArc {
  Vertex tail = -1, head = -1;
  Amount capacity = 0;  // of all strands
  std::vector<Strand> strands;
};

struct SplitNetwork {
  std::vector<LogicalArc> arcs;
  std::int64_t flows = 0;  // max-flows that this took
};

/// Args: as of pack_trees (packing/packing.h); they satisfy the cut condition (I).
/// Returns: Arcs between terminals that satisfy (I), too, where no switch has more out than in. Throws Cancelled when
///   `stop` says so.
SplitNetwork split_off_switches(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                                std::span<const Amount> capacity, const StopFlag& stop = {});

}  // namespace coppice
