// Symmetries of boxes around hubs: where removing some switches leaves equal parts.
//
// Take a set H of switches ("hubs") such that the rest falls apart, and call two parts alike if an isomorphism between
// them keeps the links with every single hub. Permuting alike parts while all hubs stay is an automorphism. If every
// class of parts with compute vertices has a multiple of n members, the parts move in cycles of n (and parts without,
// such as the switches of a fabric, in cycles that divide n): a cyclic group of order n that is free on the compute
// vertices. Of every cycle keep the first part: an automorphism of what is kept that
// maps kept parts to kept parts lifts to one that commutes with the cycles, so the search goes on in the smaller graph
// and the two groups multiply.
//
// Cost: at most 66 sets of hubs are tried, the small ones first, each in O(m log n) for parts and cells, and with at
// most eight searches per part whose steps are limited to 64 times its links. Overflow: none, orders are numbers of
// parts.
#pragma once

#include <optional>

#include "core/budget.h"
#include "symmetry/coloured_graph.h"

namespace coppice {

struct HubReduction {
  std::int64_t order = 1;                   // n
  VertexMap shift;                          // generator of the cyclic group
  ColouredGraph quotient;                   // what is kept; colours tell cycles of different lengths apart
  std::vector<std::vector<Vertex>> copies;  // copies[q]: cycle of q's vertex; copies[q][i] is its image after i shifts

  /// The automorphism of the whole graph that belongs to one of the quotient.
  VertexMap lifted(const VertexMap& map) const;
};

/// Looks for hubs among unions of cells. Args: graph: with the cells of an equitable partition as colours.
/// Returns: the first reduction with n > 1, or nothing.
std::optional<HubReduction> reduce_by_hubs(const ColouredGraph& graph, Budget& budget);

}  // namespace coppice
