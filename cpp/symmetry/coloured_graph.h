// Graphs with colours, and maps between their vertices: what the search for automorphisms works on.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/digraph.h"

namespace coppice {

/// A graph whose vertices and arcs have colours; automorphisms keep them. No parallel arcs.
struct ColouredGraph {
  Digraph graph;
  std::vector<std::int32_t> colour;   // colour[v] >= 0
  std::vector<std::int32_t> label;    // label[e] >= 0
  std::vector<std::uint8_t> compute;  // compute[v]: symmetries must not fix v
};

/// A vertex map; map[v] is the image of v, or -1 where there is none yet.
using VertexMap = std::vector<Vertex>;

}  // namespace coppice
