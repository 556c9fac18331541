// A directed graph in compressed rows: the arcs that leave and that enter each vertex.
//
// Cost: made in O(vertices + arcs), by counting. Overflow: fewer than 2^31 - 1 vertices and arcs, checked when it is
// made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

using Vertex = std::int32_t;
using Arc = std::int32_t;
using Amount = std::int64_t;  // capacity, flow or multiplicity

/// Capacities are kept outside, indexed by arc: many computations run over one graph.
class Digraph {
 public:
  Digraph() = default;

  /// Args:
  ///   num_vertices: Vertices are 0 .. num_vertices - 1.
  ///   tail, head: Arc e goes from tail[e] to head[e]; parallel arcs are allowed, loops are not.
  /// Throws std::invalid_argument where an end is out of range or an arc is a loop.
  Digraph(Vertex num_vertices, std::span<const Vertex> tail, std::span<const Vertex> head);

  Vertex num_vertices() const { return num_vertices_; }
  Arc num_arcs() const { return static_cast<Arc>(tail_.size()); }
  Vertex tail(Arc e) const { return tail_[e]; }
  Vertex head(Arc e) const { return head_[e]; }
  std::span<const Arc> out(Vertex v) const { return {out_arcs_.data() + out_start_[v], out_arcs_.data() + out_start_[v + 1]}; }
  std::span<const Arc> in(Vertex v) const { return {in_arcs_.data() + in_start_[v], in_arcs_.data() + in_start_[v + 1]}; }

 private:
  Vertex num_vertices_ = 0;
  std::vector<Vertex> tail_;            // tail_[e] is where arc e starts
  std::vector<Vertex> head_;            // head_[e] is where arc e ends
  std::vector<std::int32_t> out_start_; // arcs leaving v are out_arcs_[out_start_[v] .. out_start_[v + 1])
  std::vector<std::int32_t> in_start_;  // arcs entering v likewise in in_arcs_
  std::vector<Arc> out_arcs_;
  std::vector<Arc> in_arcs_;
};

}  // namespace coppice
