// Packs spanning trees that together reach the bound, on physical paths, without removing the switches first.
//
// Theory. Let c be capacities in units of trees, r(v) the trees to root at v and T = sum r. A packing in which switches
// never copy exists iff
//
//     (I)   c(in(X)) + r(X) >= T  for every X that contains a terminal,      (II)  c(in(w)) >= c(out(w))  at switches w.
//
// Necessity is counting. Sufficiency: the switches can be split off (pairs of arcs u -> w -> t become u -> t) while (I)
// lasts, as long as (II) does, and Edmonds' branching theorem (1973; Frank 1978 for partial trees) packs what is left.
// A tree edge laid along a path through switches keeps (II). So it is enough to lay trees on paths one by one and keep
// (I), and (I) is a cheap check (cuts/feasibility.h).
//
// Method: *learn cuts, then grow.* Trees are grown breadth-first within the cuts learned so far (cut_family.h). A batch
// of trees is taken, then (I) is checked once. Each violated cut is learned, and the latest trees that overdraw it are
// lowered or given back until it holds: slack only falls as trees are added, so this restores (I). The batch doubles
// while checks pass. A tree that gets stuck half-way is checked together with the state (an extra source feeds what
// it has reached): a violated cut is learned and the tree restarts; otherwise the tree is right so far and only the
// search for a path failed: its multiplicity is halved, and at 1 the search becomes exact (path_search.h).
//
// With a group of automorphisms (symmetry/group_action.h) the same code packs templates: one tree for one root per
// orbit stands for all its images. Then a packing need not exist for given multiplicities, and the result says so. A
// template that is stuck cannot be checked half-way (each image would need a source of its own), so the packer starts
// from the tight cuts and moves vertices between classes of arcs (TreeGrower::exchange). If one is stuck nevertheless, the
// packer learns the parts that wide arcs join, boxes of GPUs mostly, and goes on.
//
// Cost: a feasibility check for each batch, for each round in which trees are given back and for each tree that gets
// stuck; trees are grown at the cost that tree_grower.h states. Batches double while checks pass, so that large
// packings of few cuts need few checks. How many checks the search takes in the worst case is not known, so it has a
// budget: fast_checks() of them, and as many labels of the exact search as path_search.h says. When that is spent, the
// trees that are taken keep (I) true, and what remains is packed by splitting off switches (splitting/splitting.h), whose
// number of max-flows is bounded by a polynomial of vertices and arcs, whatever the capacities are. So packing without a
// group is strongly polynomial, and always ends with a packing where (I) and (II) hold (docs/theory.md, Theorem 18). With a
// group the result is not complete then.
// Overflow is checked once, at the start: all capacities, and all trees, must each add up to less than 2^62. All slacks
// are differences of two such sums.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "core/stop.h"
#include "symmetry/group_action.h"

namespace coppice {

struct Packing;

struct PackingStats {
  std::int64_t checks = 0;          // runs of the feasibility check
  std::int64_t cuts = 0;            // cuts learned
  std::int64_t trees_given_back = 0;
  std::int64_t restarts = 0;        // trees begun again after a partial check
  std::int64_t halvings = 0;
  std::int64_t exact_steps = 0;     // paths found by trying all of them
  std::int64_t flows = 0;           // max-flows of the packing by splitting; 0: the fast search found all trees
};

struct Packing {
  std::vector<Vertex> root;          // per tree
  std::vector<Amount> multiplicity;  // per tree
  std::vector<std::int64_t> start;   // arcs of tree t are arcs[start[t] .. start[t + 1])
  std::vector<Arc> arcs;             // an edge ends where an arc enters a terminal
  bool complete = true;              // false: templates for these multiplicities were not found
  std::vector<Vertex> violated;      // where the input breaks (I): the set that does
  PackingStats stats;
};

struct PackingOptions {
  std::int32_t largest_batch = 256;
  Amount pieces = 1;                 // no tree takes more than ceil(largest root / pieces) units
  bool always_exhaustive = false;    // for tests: find every path by the exact step
  std::int64_t most_checks = -1;     // of the fast search; 0: none of it, all by splitting; -1: fast_checks()
  const Packing* begun = nullptr;    // trees within the capacities to begin with; those that leave no room for others are given back
};

/// Checks of (I) that the fast search may make: 100 + V + E, and one for each pair of an arc into a switch and one out of
/// it, as splitting these off takes about as many. Machines take less than a third of that.
std::int64_t fast_checks(const Digraph& graph, std::span<const std::uint8_t> terminal);

/// Trees could not be finished: some switch has more capacity out than in, which (II) rules out.
struct NoPacking : std::invalid_argument {
  NoPacking() : std::invalid_argument("no packing was found: some switch has more capacity out than in") {}
};

/// Args:
///   terminal: Per vertex, whether trees must span it.
///   roots: Per vertex, trees to root there, per unit of multiplicity. With a group: equal along orbits.
///   capacity: Per arc, in trees. With a group: equal along orbits.
/// Returns: The trees; multiplicities of the trees of root v add up to roots[v]. With a group only the first vertex of
///   each orbit has trees.
/// Throws std::overflow_error where the trees or the sum of the capacities reach 2^62, Cancelled when `stop` says so,
/// NoPacking where (II) does not hold and the search ends.
Packing pack_trees(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                   std::span<const Amount> capacity, const GroupAction& action, const PackingOptions& options = {},
                   const StopFlag& stop = {});

}  // namespace coppice
