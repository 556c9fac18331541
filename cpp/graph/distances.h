// Shortest distances from many vertices under lengths of arcs of 0 or more.
//
// Theory: Dijkstra's algorithm from each source, with a binary heap from which stale entries are dropped.
// Cost: O(sources * arcs * log arcs). Overflow: none where the sum of all lengths stays below kUnreached.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"
#include "graph/digraph.h"

namespace coppice {

inline constexpr Amount kUnreached = Amount{1} << 62;

/// result[i * vertices + v]: from sources[i] to v, kUnreached where no path leads.
/// Throws std::invalid_argument where a source is no vertex, a length is negative, or lengths are too many, and
/// std::overflow_error where their sum reaches kUnreached.
std::vector<Amount> shortest_distances(const Digraph& graph, std::span<const Amount> length, std::span<const Vertex> sources,
                                       const StopFlag& stop = {});

}  // namespace coppice
