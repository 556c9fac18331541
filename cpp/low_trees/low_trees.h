// Trees of bounded height on a table of costs: grown by cheapest paths, and with ranks hung below cheaper ones.
//
// A tree grows by the cheapest path to a rank outside it that keeps the limit of hops (Takahashi and Matsuyama, "An
// approximate solution for the Steiner problem in graphs", Math. Japonica 24, 1980): layers of Bellman and Ford, one for
// each hop. Of equal costs the least rank is taken, so that results are the same everywhere.
//
// Cost: with R ranks and height H a tree takes O(R^3 H), and hanging its ranks anew O(R^2) a round and O(R) a rank that
// moves. Overflow: none; costs are added as they come, and infinite ones stand for arcs that are not there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

struct CostTable {
  std::int32_t num_ranks = 0;
  std::span<const double> cost;  // num_ranks x num_ranks, by sender, never negative

  std::span<const double> from(std::int32_t sender) const {
    return cost.subspan(static_cast<std::size_t>(sender) * static_cast<std::size_t>(num_ranks),
                        static_cast<std::size_t>(num_ranks));
  }
};

/// Edges in an order in which data can flow.
struct LowTree {
  std::vector<std::int32_t> sender, receiver;
};

/// A tree of at most `height` hops to all ranks; without edges where some rank does not fit (or there is only one).
/// Args:
///   far: hops to each rank from the root.
///   turn: Below 0: it grows by the nearest ranks first. Otherwise by the farthest ones first, of equally far ones by
///     other ones for each number. Where the near ones have taken the room it begins anew with the farthest.
/// Throws std::invalid_argument where columns do not fit together.
LowTree grow_low_tree(const CostTable& table, std::span<const double> far, std::int32_t root, std::int32_t height,
                      std::int32_t turn);

/// The tree with ranks below other ones where that is cheaper and none is more than `height` hops from the root.
/// Throws std::invalid_argument where columns do not fit together.
LowTree rehung_low_tree(const CostTable& table, const LowTree& tree, std::int32_t root, std::int32_t height);

}  // namespace coppice
