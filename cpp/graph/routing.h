// Default routes for many pairs at once.
//
// For one destination, a breadth-first search against the arcs gives the hops h(v) to it and, level by level, the width
// w(v) = max over arcs v -> u with h(u) = h(v) - 1 of min(c(v, u), w(u)): the best bottleneck over the shortest paths.
// The vertices u of these arcs, in id order, are the choices at v. A route from s takes at every vertex one of the
// choices whose min(c(v, u), w(u)) reaches w(s), by a hash of (s, destination, channel, position). All sources of a
// destination share its search, and a source costs no more than the choices on its way.
//
// Cost, with n vertices and m arcs: O(m + n log n) for each run of requests to one destination, twice that where a
// request needs relays; then O(choices on its way) for each request. Overflow: none, capacities are only compared.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"
#include "graph/digraph.h"

namespace coppice {

/// What the routes of one call have in common.
struct Routing {
  const Digraph& graph;
  std::span<const Amount> capacity;         // capacity[e] > 0 of arc e
  std::span<const std::uint8_t> forwards;   // forwards[v]: vertex v may be in the middle of any route
  bool relays;                              // where no such route exists, all other vertices may be, too
  std::uint64_t hash;                       // state in which the hash of every choice starts
};

struct Routes {
  std::vector<std::int64_t> start;  // route i is nodes[start[i] .. start[i + 1]), both ends included
  std::vector<Vertex> nodes;
};

/// Finds a route for every request (src[i], dst[i], channel[i]), in order, up to the first that has none.
/// Requests of one destination that follow one another share a search.
/// Throws std::invalid_argument where an end is not a vertex, Cancelled where `stop` says so.
Routes find_routes(const Routing& routing, std::span<const Vertex> src, std::span<const Vertex> dst,
                   std::span<const std::int64_t> channel, const StopFlag& stop = {});

}  // namespace coppice
