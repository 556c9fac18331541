// Packs spanning trees on arcs between terminals, in strongly polynomial time.
//
// Theory (Tarjan, 1974; with capacities Bérczi and Frank, 2010, and Schrijver, "Combinatorial Optimization", chapter 53). A
// batch is m equal partial trees that have reached the set R. All batches can be completed as long as
//
//     f(X) = c(in(X)) - (sum of m over batches with R and X disjoint)  >=  0    for every set X that is not empty.
//
// An arc x -> y may join a batch for at most the least f(X) over the sets with y, without x, that meet R: one max-flow
// from x to y in which every other batch feeds what it has reached. What exceeds that stays behind as a batch of its own.
//
// f never rises, so a tight set stays tight, and forbids an arc that enters it to every batch that has reached something
// in it. That is kept as marks (arc, terminal reached), and a forbidden arc costs no flow. With N terminals and p arcs a
// batch stays behind only where an arc is used up or a mark is made: there are at most N + p + N p batches and at most
//
//     (N - 1) (N + p + N p) + N p
//
// flows: one for each arc that joins, one for each that finds itself forbidden (docs/theory.md, Theorem 18). In practice it
// is about one flow for each arc of each tree.
//
// Cost: as said, Dinic's O(V^2 E) for a flow in the worst case. Memory: N p marks, and the batches that wait, which are
// finished last in, first out. Overflow: sums of trees are below 2^62, which the packer has checked.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"
#include "graph/digraph.h"

namespace coppice {

/// Equal spanning trees.
struct Batch {
  Vertex root = -1;
  Amount weight = 0;            // trees
  std::vector<Vertex> reached;  // the root, then the head of each arc
  std::vector<Arc> arcs;
};

struct Batches {
  std::vector<Batch> batches;
  std::int64_t flows = 0;  // max-flows that this took
};

/// Args:
///   graph: No two arcs have the same ends. Vertices that are no terminals have no arcs.
///   terminal, roots, capacity: As of pack_trees (packing/packing.h).
/// Throws NoPacking where some set violates (I), Cancelled when `stop` says so.
Batches pack_batches(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                     std::span<const Amount> capacity, const StopFlag& stop = {});

}  // namespace coppice
