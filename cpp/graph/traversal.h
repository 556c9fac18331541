// Breadth-first walks that take arcs both ways. They cost O(vertices + arcs).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/digraph.h"

namespace coppice {

/// All vertices in breadth-first order, starting at `start`, then at the least unseen vertex.
std::vector<Vertex> breadth_first_order(const Digraph& graph, Vertex start);

/// The connected parts that are left without the vertices in `removed` (a flag per vertex), in the order of their least
/// vertices; each in breadth-first order from there.
std::vector<std::vector<Vertex>> parts_without(const Digraph& graph, std::span<const std::uint8_t> removed);

}  // namespace coppice
