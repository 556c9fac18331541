// Colour refinement: the coarsest partition of the vertices in which any two vertices of a cell have the same number
// of arcs of each label to and from every cell. Automorphisms keep its cells, so it bounds and guides their search.
//
// The work list is Hopcroft's (after a split the largest piece need not be looked at again), so a refinement costs
// O(arcs log vertices), where permutations to commute with count as arcs. Arc counts are compared by a sum of 64-bit
// hashes: a collision leaves a cell too coarse, which costs the search time and never correctness, since what it finds
// is certified. Overflow: hashes wrap around on purpose.
//
// Two copies of one graph can be refined together: {u in copy 0, v in copy 1} is made a cell and refined; if some cell
// then holds unequally many vertices of the copies, no automorphism sends u to v.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/budget.h"
#include "symmetry/coloured_graph.h"

namespace coppice {

class Refinement {
 public:
  /// Args:
  ///   graph: Kept by reference.
  ///   symmetries: Permutations that the sought automorphisms commute with; they count as arcs v -> s[v]. Kept.
  ///   copies: 1 or 2. Item v + c * num_vertices is vertex v of copy c.
  Refinement(const ColouredGraph& graph, std::span<const VertexMap> symmetries, int copies);

  /// Starts from the same colours in each copy. `equitable`: they are known to be stable.
  void start(std::span<const std::int32_t> colour, bool equitable);

  /// Makes these items, all of one cell, a cell of their own.
  void individualise(std::span<const Vertex> items);

  /// Refines until stable; false where two copies turn out to differ (the partition is then unfinished).
  bool refine(Budget& budget);

  /// Cell of an item: a small number, the same for two items iff they share a cell.
  std::int32_t cell(Vertex item) const { return cell_[item]; }
  std::int32_t cell_size(std::int32_t cell) const { return size_[cell]; }

  /// Cells of the vertices of one copy.
  std::vector<std::int32_t> cells(int copy) const;

 private:
  void count_links(Vertex item);
  void touch(Vertex item, std::uint64_t weight);
  bool split(std::int32_t cell);
  void move(Vertex item, std::int32_t position);
  void enqueue(std::int32_t cell);
  bool balanced(std::int32_t first, std::int32_t last) const;

  const ColouredGraph& graph_;
  std::span<const VertexMap> symmetries_;
  std::vector<VertexMap> inverses_;
  Vertex num_vertices_;
  Vertex num_items_;
  int copies_;
  std::vector<Vertex> items_;          // a permutation; a cell is a range of it, named by its first position
  std::vector<std::int32_t> position_; // position_[item] in items_
  std::vector<std::int32_t> cell_;     // cell_[item]
  std::vector<std::int32_t> size_;     // size_[cell]
  std::vector<std::int32_t> touched_;  // touched_[cell]: its last so many items were counted
  std::vector<std::uint64_t> count_;   // count_[item]: hash of its links with the splitting cell, 0 = none
  std::vector<std::int32_t> touched_cells_;
  std::vector<std::int32_t> queue_;
  std::vector<std::uint8_t> queued_;
};

}  // namespace coppice
