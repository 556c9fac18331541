// A forest on a network that some of its paths may no longer fit: what every link carries, and what is broken.
//
// Rows whose parent is gone have -1 as parent and path; a node of a path that is gone is num_nodes.
//
// Cost: O(nodes of all paths + links of all edges). Overflow: loads are 64-bit; the caller makes sure that the sum of the
// weights of all edges stays below 2^62, which is checked.
#pragma once

#include <vector>

#include "graph/digraph.h"
#include "graph/link_table.h"
#include "rehanging/forest.h"

namespace coppice {

struct Network {
  Vertex num_nodes;
  std::span<const Vertex> src;
  std::span<const Vertex> dst;
  std::span<const std::int32_t> rank;  // of each node, -1 where it is none
  std::span<const double> cost;        // what a unit of weight takes on each link
};

class Damage {
 public:
  /// Throws std::invalid_argument where columns do not fit together, std::overflow_error as said above.
  Damage(const Network& network, const ForestColumns& forest);

  /// The rows whose paths use each of the `wanted` links, in their order; nothing for the others.
  std::vector<std::vector<std::int64_t>> rows_over(const std::vector<std::uint8_t>& wanted) const;

  /// Link from position `at` of path_nodes to the next: kMissing where there is none.
  Arc hop(std::int64_t at) const { return hop_link_[at]; }

  Network network;
  ForestColumns forest;
  Digraph graph;
  LinkTable links;
  std::vector<Amount> load;          // units of weight on every link, those of broken paths on what is left of them included
  std::vector<std::int64_t> broken;  // rows whose path uses a link that is not there, or whose parent is gone

 private:
  std::vector<Arc> hop_link_;
};

}  // namespace coppice
