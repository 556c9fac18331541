// Packs trees in strongly polynomial time: what the packer falls back on (packing/packing.h).
//
// Switches are split off into arcs between terminals that remember their physical strands (split_off.h), trees are packed
// on those (batches.h), and each batch is cut where a strand of one of its arcs ends. Strands are taken last in, first
// out, so a batch is cut at most once for each strand that it uses up.
//
// Cost: with V vertices, S switches, N terminals and p <= N (N - 1) arcs between terminals at most
//
//     S (V - 1)^2 N  +  (N - 1) (N + p + N p) + N p
//
// max-flows (docs/theory.md, Theorem 18), whatever the capacities are. Trees are taller and more than those of the fast
// search. Overflow: as of packing.h.
#pragma once

#include <span>

#include "core/stop.h"
#include "packing/packing.h"

namespace coppice {

/// Arguments as of pack_trees, without a group; they satisfy (I).
/// Returns: A packing whose `stats.flows` says what it took. Throws NoPacking where some switch has more out than in and
///   that got in the way, Cancelled when `stop` says so.
Packing pack_by_splitting(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                          std::span<const Amount> capacity, const StopFlag& stop = {});

}  // namespace coppice
