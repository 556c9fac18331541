// Packs a forest in more than one way and keeps the best shape.
//
// All packings of the same problem reach the same rate; they differ in height (latency) and in the number of distinct
// trees (chunks and channels on a GPU). Taking all units of a root as one tree gives few trees; taking them in halves, or
// those of a single root one by one, gives the last trees more room and so less height: a broadcast to 7 others in a box
// of eight is a chain as one tree, but of height 2 or 3 as seven. Small problems afford all ways, large ones only the first.
//
// Without a group, all trees may also be packed at once and mended (exchange/exchange.h): lower and much quicker on
// large networks with little symmetry, so it is the first way there and one more way on small ones. There the best of all is
// lowered by exchanges, and searches with less and less height follow while they succeed.
//
// Where that leaves a few trees unfinished, the packer goes on from those that are whole (PackingOptions::begun).
//
// Cost: for 2,000 trees' ends (roots times terminals) or more one search by exchange, where that finds a packing.
// Otherwise one packing, a second where the first has at most 200,000 arcs and some root has several units, a third where
// a single root has at most 128, and searches by exchange for small ones, one for each height that they reach. Overflow:
// as of packing.h; mean heights are doubles, which decide between valid packings only.
#pragma once

#include "packing/packing.h"

namespace coppice {

/// Arguments as of pack_trees. The best packing by (largest height, mean height by multiplicity, number of trees); its
/// `stats` are those of the first search by the packer. With `most_checks` 0 nothing is searched by exchange either.
Packing pack_best(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                  std::span<const Amount> capacity, const GroupAction& action, const PackingOptions& options = {},
                  const StopFlag& stop = {});

}  // namespace coppice
