// Packs all trees at once and mends what does not fit by exchanging edges between trees.
//
// The packer (packing/packing.h) keeps the cut condition (I) true after every tree, so it can always go on. But most of
// its time goes into finding out which cuts have to be respected, and the trees that come last take what is left, so
// they are tall. Here no cut is looked at:
//
// 1. *Grow.* Every tree is grown over what the others leave (growth.h) and may miss some terminals. Then each is grown
//    again while all others stand, so that it gives back what others need more: the rip-up and re-route of circuit
//    routing (McMurchie and Ebeling, PathFinder, 1995).
// 2. *Halve.* Capacities are rarely multiples of the number of equal trees. Bundles that miss something are split in
//    two, down to single trees, and grown again.
// 3. *Exchange.* A terminal that is missing still takes a path with arcs that are full. Edges of other trees are moved
//    off these, to paths with room or to full ones in turn, a few levels deep.
//
// Every step keeps the loads within the capacities, so a packing without missing terminals needs no proof. The limits
// below end the search after polynomially many steps, found or not; that there is a packing in the end is what the
// packer promises, which is asked then.
//
// 4. *Lower.* What hangs deepest is taken off and put back higher by exchanges, one level after the other, as long as
// that succeeds.
//
// How steep growth is (growth.h) decides between low trees and even use. Small problems try several ways and keep the
// best shape. Large ones take the first of three that works, from steep to flat, and mend briefly: where nearly all
// trees are whole and the rest cannot be mended, as in networks without any slack, they are handed to the packer, which
// keeps what leaves room for the others and grows those with an eye on the cuts.
//
// 5. *Draw.* Where low trees of a single root are asked for and none of that finds them, all its trees are grown one by
// one with costs drawn anew, as long as the work is small. One draw in fifty gives 8 trees of height 3 on two
// boxes of eight GPUs, where the root may not send to all of its box in any tree.
//
// All of it runs on the graph without the switches that only pass on (graph/chains.h), as NICs do.
//
// Cost: with B bundles, N terminals and m arcs, growth takes O(B m log m) for each of at most three rounds. An exchange
// searches backwards from a terminal over the arcs of the switches, O(m), for each of at most some thousand edges; the
// height limit is raised where nothing else helps. Draws grow 300,000 vertices of trees at most, in a fraction of a second.
// Overflow: as of bundles.h.
#pragma once

#include <optional>
#include <span>

#include "core/stop.h"
#include "packing/packing.h"

namespace coppice {

/// Arguments as of pack_trees, without a group.
/// Args:
///   most_height: No tree may be taller; 0 sets no limit.
///   begun: Receives, on large problems, the trees that spanned everything when growth missed least, within the
///     capacities: enough to begin a packing with (PackingOptions::begun). Null where nobody wants them.
/// Returns: Nothing where no packing was found, which does not say that there is none. Throws Cancelled when `stop`
/// says so, std::overflow_error where the trees or the sum of the capacities reach 2^62.
std::optional<Packing> pack_by_exchange(const Digraph& graph, std::span<const std::uint8_t> terminal,
                                        std::span<const Amount> roots, std::span<const Amount> capacity,
                                        std::int32_t most_height = 0, Packing* begun = nullptr, const StopFlag& stop = {});

/// A complete packing, whoever made it, lowered as in step 4: as tall as it is, or less. Other arguments as above.
Packing lowered_by_exchange(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                            std::span<const Amount> capacity, const Packing& packing, const StopFlag& stop = {});

}  // namespace coppice
