// What links carry under many hashes of flows: equal-cost multipath, drawn again and again.
//
// A flow takes the route of graph/routing.h: at every vertex one of the shortest and widest ways on, by a hash of (seed,
// source, destination, channel, position). Ways on depend on the destination and on the width that the source reaches, and
// are listed once for each such pair; what a flow crosses before its first choice is counted once for all draws. A draw
// then walks every flow from its first choice on.
//
// A flow may be cut into parts with hashes of their own (queue pairs: channel * parts + part), or dealt over consecutive
// ways of its first choice from the hashed one on (paths).
//
// Cost: a search for each destination; then O(flows times parts times hops) for each draw. Overflow: units times capacity
// are only compared as doubles; sums of units stay below 2^53, which is checked, so that doubles hold them exactly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"
#include "graph/routing.h"

namespace coppice {

struct HashedFlows {
  std::span<const Vertex> src;            // sorted by destination, or searches are repeated
  std::span<const Vertex> dst;
  std::span<const std::int64_t> channel;
  std::span<const std::int64_t> units;    // what each sends
  std::int64_t parts = 1;
  bool dealt = false;                     // parts take consecutive ways instead of hashed ones
};

struct HashedLoads {
  std::vector<double> busiest;        // of each draw: units over capacity of the busiest link
  std::vector<double> busiest_chosen; // the same among links that are one of several choices
  std::vector<std::int64_t> hits;     // of each flow: draws in which it crosses the busiest link
};

/// The state in which hashes of a seed start, as `Routing::hash`.
std::uint64_t seed_state(std::uint64_t seed);

/// Draws the seeds first_seed .. first_seed + draws - 1. `routing.hash` is not used.
/// Throws std::invalid_argument where a flow has no route or columns differ in length, std::overflow_error as said above,
/// Cancelled where `stop` says so.
HashedLoads hashed_loads(const Routing& routing, const HashedFlows& flows, std::uint64_t first_seed, std::int64_t draws,
                         const StopFlag& stop = {});

/// Expected units on every link: at each choice every way is as likely as the others.
std::vector<double> expected_loads(const Routing& routing, const HashedFlows& flows, const StopFlag& stop = {});

}  // namespace coppice
