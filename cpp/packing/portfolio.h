// Packs a forest in more than one way and keeps the best shape.
//
// All packings of the same problem reach the same rate; they differ in height (latency) and in the number of distinct
// trees (chunks and channels on a GPU). Taking all units of a root as one tree gives few trees; taking them in pieces
// gives the last trees more room and so less height. Small problems afford both, large ones only the first.
//
// Cost: one packing, or two where the first has at most 200,000 arcs and some root has several units. Overflow: as of
// packing.h; mean heights are doubles, which decide between valid packings only.
#pragma once

#include "packing/packing.h"

namespace coppice {

/// Arguments as of pack_trees. The best packing by (largest height, mean height by multiplicity, number of trees).
Packing pack_best(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                  std::span<const Amount> capacity, const GroupAction& action, const PackingOptions& options = {},
                  const StopFlag& stop = {});

}  // namespace coppice
