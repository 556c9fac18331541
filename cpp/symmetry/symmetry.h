// A large abelian group of automorphisms that acts freely on the compute vertices, from the graph alone.
//
// "Freely" (semiregularly): no element but the identity fixes a compute vertex, so all orbits of compute vertices have
// as many members as the group, and a tree at one root has exactly one image at every root of its orbit. Two means,
// used in turn: parts that hang alike on hubs are moved in cycles and folded into one (hubs.h), and translations are
// searched in what remains (translations.h). The group need not be the largest there is; work limits end the search on
// graphs where there is little to find.
//
// Cost: at each folding a refinement in O(m log n) and the search for hubs; then the search for translations within its
// work limits. The link orbits take O(g m log m) for g generators. Overflow: colours and labels are checked against
// 2^30, so that the searches can pack them into 64 bits; the order of the group divides the number of compute vertices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"
#include "symmetry/coloured_graph.h"

namespace coppice {

/// The group is the direct product of cyclic groups of the given orders. Elements have mixed-radix indices with the
/// first generator as the fastest digit: c_0 + n_0 (c_1 + n_1 (c_2 + ...)).
struct Symmetry {
  std::vector<std::int64_t> orders;           // n_i > 1
  std::vector<VertexMap> generators;          // generators[i][v]: image of v under generator i
  std::vector<std::int32_t> node_orbit;       // orbits are numbered by their least vertex, the representative
  std::vector<std::int64_t> node_element;     // an element that sends the representative to the vertex; for a
                                              // compute vertex the only one
  std::vector<std::int32_t> link_orbit;       // numbered by their least arc
  std::vector<std::int64_t> link_orbit_size;  // per arc
};

/// Args:
///   graph: Without parallel arcs.
///   colour: Per vertex; automorphisms keep it.
///   label: Per arc; automorphisms keep it.
///   compute: Per vertex; the group is free on these.
///   stop: Polled now and then.
/// Throws std::invalid_argument where columns have wrong lengths, colours or labels are outside 0 .. 2^30 - 1, or arcs
/// are parallel.
Symmetry find_symmetry(const Digraph& graph, std::span<const std::int32_t> colour, std::span<const std::int32_t> label,
                       std::span<const std::uint8_t> compute, const StopFlag& stop = {});

}  // namespace coppice
