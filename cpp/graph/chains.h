// A graph without the switches that only pass on, as a NIC does between a GPU and a switch.
//
// A switch passes on where it has two neighbours at most, with at most one arc from each and to each: what comes in from one
// can only go to the other. The arcs along such switches, one after the other, are one arc of the shorter graph with the
// least of their capacities. Paths from terminal to terminal correspond, and so do the loads that fit.
//
// Cost: O(vertices + arcs).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/digraph.h"

namespace coppice {

class Chains {
 public:
  Chains(const Digraph& graph, std::span<const std::uint8_t> terminal);

  /// The shorter graph, with the vertices of the long one: no arc meets those that pass on.
  const Digraph& graph() const { return graph_; }
  /// Arcs of the long graph along which an arc of the shorter one leads.
  std::span<const Arc> arcs(Arc e) const { return {arcs_.data() + start_[e], arcs_.data() + start_[e + 1]}; }
  /// Per arc of the shorter graph: number of arcs along which it leads.
  std::vector<std::int32_t> lengths() const;
  /// Per arc of the shorter graph: the least of the capacities along it.
  std::vector<Amount> least(std::span<const Amount> capacity) const;

 private:
  Digraph graph_;
  std::vector<std::int32_t> start_{0};
  std::vector<Arc> arcs_;
};

}  // namespace coppice
