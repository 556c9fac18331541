// Breadth-first broadcast: every vertex's data spread eagerly along shortest paths, in the best balance.
//
// Theory. In step t vertex u receives the data of all sources v at distance t. An arc (w, u) is eligible for v if w is
// at distance t - 1 from v, so that w has received them before. Let c(e) be the capacity of arc e. The busiest arc into
// u carries, per unit of capacity and for sources of one unit each, at least
//
//     U(u, t) = max over nonempty sets W of arcs into u:  |{v at distance t : eligible(v) is within W}| / c(W),
//
// and by max-flow/min-cut a fractional assignment attains it. Sources of equal eligible sets form one group, so that a
// bipartite flow between a few groups (arrivals.h) and the arcs into u decides whether a load p/q is attained: in units
// of 1/q each source supplies q and arc e takes p * c(e) (assignment.h). A flow that falls short leaves a set W that
// asks for more; its ratio is tried next (Newton's method), and the ratios rise strictly to U(u, t). Integral flows say
// which pieces take which arc. A step is as slow as its slowest vertex, so the search starts from the slowest vertex so
// far: most vertices cost one flow. Where there are few arcs into a vertex, all their sets are looked at instead
// (subset_loads.h).
//
// Cost, for n vertices, m arcs and a target with k arcs into it: k + 1 breadth-first searches, of which all targets
// share those to one vertex (O(n m) time and n^2 words in all), O(n k) and a sort to group the sources, and per step
// one flow or a few (assignment.h). Overflow: n times the sum of the capacities is checked against 2^62, and for
// deliveries also the pieces times the largest load and capacity; room and supply of every flow lie below these.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"
#include "graph/digraph.h"

namespace coppice {

/// Load of the busiest arc in each step, per unit of its capacity: numerator[t - 1] / denominator[t - 1] in step t.
struct StepLoads {
  std::vector<Amount> numerator;
  std::vector<Amount> denominator;
};

/// Which pieces arrive where: a run of pieces of `source` enters the head of `arc` in `step`, counted from 1.
struct Deliveries {
  std::vector<std::int32_t> step;
  std::vector<Vertex> source;
  std::vector<Arc> arc;
  std::vector<std::int32_t> first;  // the pieces first .. first + count - 1
  std::vector<std::int32_t> count;
};

/// The least loads that breadth-first broadcast to `targets` attains.
/// Args:
///   capacity: Per arc, > 0; the number of vertices times their sum must stay below 2^62.
///   targets: Vertices whose arrivals count: all of them, or one of each orbit of automorphisms.
/// Throws std::invalid_argument where a column does not fit or a target is not reached by every vertex, Cancelled.
StepLoads balanced_loads(const Digraph& graph, std::span<const Amount> capacity, std::span<const Vertex> targets,
                         const StopFlag& stop = {});

/// Deliveries to `targets` whose loads stay within `loads`, with every source cut into equal pieces. Where the number of
/// pieces cannot express a load, arcs take up to the next whole number of pieces.
/// Args:
///   loads: As balanced_loads returns them; the number of pieces times every numerator times the largest capacity must
///     stay below 2^62.
///   pieces: 1 or more.
/// Returns: Rows target by target, step by step.
/// Throws as balanced_loads does.
Deliveries balanced_deliveries(const Digraph& graph, std::span<const Amount> capacity, std::span<const Vertex> targets,
                               const StepLoads& loads, Amount pieces, const StopFlag& stop = {});

}  // namespace coppice
