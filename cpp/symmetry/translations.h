// Symmetries of direct networks: tori, rings, hypercubes, circulants, complete graphs and what else has translations.
//
// Starting from the trivial group, look for an automorphism that sends a fixed compute vertex v0 to a near one,
// commutes with the group so far and is free on the compute vertices; add it; go on until v0's orbit is as large as
// possible. Near images come first, and each is also tried as the first one, since a poor first choice bars others.
// Cells of vertices that refinement cannot tell apart bound the order: it divides all their sizes.
//
// Cost: effort is the sum over vertices of 1 + degree * min(degree, 64), about what one search takes. The first of five
// strategies may spend 4 million + 2 effort steps, each of the others a quarter of that. Overflow: steps are 64-bit,
// and the order of the group is at most the number of compute vertices.
#pragma once

#include "core/stop.h"
#include "symmetry/abelian.h"

namespace coppice {

/// Args:
///   graph: With the cells of an equitable partition as colours.
///   bound: The order divides this.
/// Returns: a group found within a work limit of a small multiple of the graph's size; trivial where none was found.
FreeAbelianGroup find_translations(const ColouredGraph& graph, std::int64_t bound, const StopFlag& stop);

}  // namespace coppice
