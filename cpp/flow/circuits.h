// Blocks between all pairs of terminals, each routed whole on one path, so that links are loaded alike.
//
// Method. As the routing of circuits in chips does (McMurchie and Ebeling, "PathFinder", FPGA 1995): block after block
// takes the cheapest path (Dijkstra), a link costing the more the fuller it is, and in later rounds is taken out and routed
// anew, at a higher power of the load and a lower fixed cost. With the block on it, link e that takes rate(e) to carry one
// block of the unit, and has load(e), costs
//
//     fixed(e) * message / (least rate of all)  +  min((load(e) + share) / rate(e), fullest)^power / rate(e).
//
// The round of the least load of the fullest link is kept, of about equal ones the first; rounds end where links are loaded
// alike. Of two ways to a node that cost the same the one stays that was found first, nodes of equal distance in the order
// of their numbers, so that the result does not depend on the machine.
//
// Cost: for each round, part and pair of terminals, O(E log V) for V nodes and E links; powers are taken anew of links
// whose load has changed only. Overflow: none; loads are doubles.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"

namespace coppice {

struct CircuitLinks {
  std::int32_t num_nodes = 0;
  std::span<const std::int32_t> tail;  // per link, a node
  std::span<const std::int32_t> head;
  std::span<const double> rate;        // load of a link that is full, above 0
  std::span<const double> fixed;       // per link, cost of a message
};

struct CircuitRound {
  std::int32_t power = 1;  // of the load, 0 or more
  double message = 0;      // what fixed costs are multiplied by
};

struct Circuits {
  double load = 0;                  // of the fullest link, to its rate, in the round that was kept
  std::vector<double> loads;        // per link, to its rate, after the last round
  std::vector<std::int64_t> start;  // links of path p: links[start[p] .. start[p + 1]), by sender, receiver and part
  std::vector<std::int32_t> links;
};

/// Routes `parts` parts, each of 1 / parts, from each terminal to each other one.
/// Args:
///   fullest: Loads above this one cost alike.
///   even: A load that is good enough; a round counts as better where it is so much (less 1) below the best one.
/// Throws std::invalid_argument where columns do not fit together or a terminal cannot be reached, Cancelled where `stop`
/// says so.
Circuits route_circuits(const CircuitLinks& network, std::span<const std::int32_t> terminals, std::int32_t parts,
                        std::span<const CircuitRound> rounds, double fullest, double even, const StopFlag& stop = {});

}  // namespace coppice
