// Can every terminal be reached by all trees at once?
//
// Theory. Let arcs have capacities c(e), vertices supplies r(v) >= 0 (trees rooted there) and let D = demand be the
// number of trees. Trees that all span the terminals exist only if
//
//     (I)   c(in(X)) + r(X) >= D    for every vertex set X that contains a terminal,
//
// since each tree is rooted in X or enters X. By max-flow/min-cut (I) says that each terminal t receives a flow of D
// from a source s that feeds r(v) to every v. Testing that needs no independent flows: once t is certified, every X
// that contains t is known to be fine, so t can be *merged* into the source (unlimited supply from then on). The next
// flow, to a terminal close by, is then local: search backwards from it until supply is met, stop at D. A flow that
// falls short leaves the least violated sink side, namely the vertices that still reach the terminal.
//
// Terminals are taken in breadth-first order, so the cost is one global flow plus |terminals| - 1 local ones.
// Flows are Dinic's, on levels counted from the sink, after a first greedy search that settles the common case.
//
// In the worst case one of these is Dinic's O(V^2 E); memory is O(V + E). Overflow cannot happen: no two capacities are
// added up, flows stay within the capacity of their arc and within D. Who makes products for arguments checks them, or
// takes Wide for Int (bound.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"
#include "core/wide.h"
#include "graph/digraph.h"

namespace coppice {

/// The check for one graph and one set of terminals; capacities and supplies change from call to call.
template <class Int>
class FeasibilityCheck {
 public:
  /// Args:
  ///   orbit: Per vertex, its orbit under automorphisms that keep all capacities and supplies to come, or empty. Then
  ///     what is found for one terminal holds for its orbit, and only one of each is looked at.
  FeasibilityCheck(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const std::int32_t> orbit = {});

  /// Finds sets that violate (I).
  /// Args:
  ///   capacity: Per arc, >= 0.
  ///   supply: Per vertex, >= 0.
  ///   demand: D.
  ///   limit: Stop after this many violated sets.
  ///   stop: Polled now and then.
  /// Returns: Sink sides X, at most one per terminal, each the least violated set of its terminal given the
  ///   terminals certified before it. Empty: (I) holds.
  std::vector<std::vector<Vertex>> violated(std::span<const Int> capacity, std::span<const Int> supply, Int demand,
                                            std::size_t limit, const StopFlag& stop = {});

  /// The least set of least c(in(X)) + r(X) among those that hold `sink`, if that is below `demand`; else empty. One flow.
  std::vector<Vertex> violated_at(Vertex sink, std::span<const Int> capacity, std::span<const Int> supply, Int demand);

 private:
  void forget_flow();
  bool reaches_demand(Vertex sink, Int demand);
  bool levels_from(Vertex sink);
  Int push(Vertex v, Int limit);
  Int push_greedily(Vertex v, Int limit, int depth);
  Int take_supply(Vertex v, Int limit);

  const Digraph& graph_;
  std::vector<Vertex> order_;          // terminals in breadth-first order, with orbits the first of each
  std::vector<std::vector<Vertex>> orbit_of_;  // orbit_of_[i]: the terminals that order_[i] stands for
  std::span<const Int> capacity_;
  std::span<const Int> supply_;
  std::vector<std::uint8_t> merged_;   // merged_[v]: terminal v is certified and supplies without limit
  std::vector<Int> flow_;              // flow_[e] of the current sink
  std::vector<Int> taken_;             // taken_[v]: supply of v that the current flow uses
  std::vector<std::int32_t> level_;    // distance to the sink in the residual graph, -1 where unknown
  std::vector<std::int32_t> cursor_;   // next residual arc to try from v
  std::vector<Vertex> seen_;           // vertices that have a level
  std::vector<Arc> touched_arcs_;      // arcs with flow to reset
  std::vector<Vertex> touched_vertices_;
};

extern template class FeasibilityCheck<Amount>;
extern template class FeasibilityCheck<Wide>;

}  // namespace coppice
