// The cheapest closed tour through a few points, by dynamic programming over subsets (Held and Karp).
//
// The tour begins at the last point. least[S][j] is the least cost from there through all points of S, ending at j in S:
//
//   least[S + j][j] = min over i in S of least[S][i] + cost[i][j]
//
// Cost: 2^(n-1) n^2 / 2 additions and 2^(n+3) doubles of memory; n = 16 takes some 2 ms and 4 MB.
// Overflow: none, as costs are doubles. Of equal tours the one is found whose points, from its end, are least.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

inline constexpr std::int32_t kMostTourPoints = 16;

/// The points in order, from point 0 on; empty where there is no tour.
/// Args:
///   cost: cost[i * points + j] of the step from i to j; infinite where there is none.
/// Throws std::invalid_argument unless 2 <= points <= kMostTourPoints, cost has points^2 entries and none is NaN.
std::vector<std::int32_t> cheapest_tour(std::int32_t points, std::span<const double> cost);

}  // namespace coppice
