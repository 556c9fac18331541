// The least time in which one sink can have what others hold: the quickest transshipment to one sink.
//
// Model. Arc e = (x, y) takes up to rate(e) bytes in a unit of time; what enters it at t is at y at t + latency(e).
// Vertices keep what they have. Vertex u holds supply(u) bytes at time 0, the sink wants all of them by time T.
//
// Theory. A *labelling* gives each vertex x a time p(x) in [0, T], the sink T, and is read as a cut that moves: before p(x)
// vertex x is on the side of the sink, from p(x) on on that of the sources. A byte of a vertex with p = 0 starts on the side
// of the sources and ends at the sink, so somewhere it enters an arc (x, y) at a t >= p(x) and comes out at t + latency <
// p(y), or at the sink at T. So for every labelling
//
//     supply of {u : p(u) = 0}  <=  sum over e = (x, y) of rate(e) * max(0, p(y) - p(x) - latency(e))          (*)
//
// is necessary, and it is enough: both sides are the cuts and the flows of the network expanded over time, and for a fixed
// set A of sources the least right side over all labellings is the most that can arrive from A by T (Ford and Fulkerson's
// flow over time; the labels are the dual of its static min-cost flow). That all sets A must be looked at is the theorem of
// Hoppe and Tardos, "The quickest transshipment problem", Math. of Operations Research 25 (2000), for one sink.
//
// Which labels. A best labelling takes values in L and T - L, L being sums and differences of latencies along residual
// paths, none longer than that of all vertices. All of them are looked at if they are few (`most_offsets`), else those of
// fewest terms: then the result is a true bound but may lie below the least time.
//
// Search. For a T, the labelling that violates (*) most is a minimum cut of a network with a vertex for each vertex and
// label: an arc offers rate times the length of the time between two labels in which it is open. The violated inequality
// says how much later T must be (each label moves with T or stands, as its offset says), which is Newton's method over
// cuts; the last T has no violated labelling. Capacities are doubles: what is found here proves nothing by itself. Who
// needs a proof takes the labelling, whose offsets are whole numbers, and counts both sides of (*) exactly.
//
// From one source no labels are needed to see that `least` is enough: the best flow that is repeated along its paths tells
// (Ford and Fulkerson, "Constructing maximal dynamic flows from static flows", Operations Research 6, 1958). Only where
// it is not is the labelling looked for that proves more.
//
// Cost: a maximum flow (Dinic) on vertices * labels for each step of Newton, of which there are few (three to eight in
// practice); to see that `least` is enough from one source, a shortest path for each path of the flow. Overflow: latencies are whole units of time below 2^40, checked; sums of them stay below 2^62.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"
#include "graph/digraph.h"

namespace coppice {

/// A network in which everything takes time.
struct TimedNetwork {
  const Digraph& graph;
  std::span<const double> rate;            // bytes per unit of time of each arc, > 0
  std::span<const std::int64_t> latency;   // units of time of each arc, 0 .. 2^40 - 1
};

/// A labelling: p(x) = offset(x), or T - offset(x) where from_end(x).
struct Labelling {
  std::vector<std::int64_t> offset;
  std::vector<std::uint8_t> from_end;
};

struct Quickest {
  double time = 0;       // units; the least time, or a bound on it where offsets were too many
  Labelling labelling;   // violates (*) from `since` until `time`, up to rounding; empty where `least` was feasible already
  double since = 0;
  bool complete = true;  // all offsets were looked at
  int steps = 0;         // maximum flows
};

/// Args:
///   supply: Bytes of each vertex, >= 0; what the sink has of its own does not count.
///   least: A time that is known to be needed; the search begins there.
///   most_offsets: Offsets are this many at most.
/// Throws std::invalid_argument where columns do not fit together, a number is out of range, or a supply cannot reach the
/// sink; Cancelled where `stop` says so.
Quickest quickest_to(const TimedNetwork& network, std::span<const double> supply, Vertex sink, double least,
                     std::size_t most_offsets, const StopFlag& stop = {});

}  // namespace coppice
