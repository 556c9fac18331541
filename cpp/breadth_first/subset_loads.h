// Loads of breadth-first broadcast by looking at every set of arcs into a vertex, where there are few.
//
// The sources at distance t from every vertex are sets of bits, and those of step t follow from those of step t - 1 by
// unions. Then every set W of arcs into a vertex is looked at: a source counts for W if no arc outside W may bring it,
// and sums over subsets give these numbers for all W at once. Ten arcs have 1,024 sets; beyond, flows are better.
//
// Cost, with n vertices, m arcs and D steps to the farthest vertex: D (n + m) n / 64 words of bits once, in D n^2 / 8
// bytes; then per target with k arcs and per step n k / 64 words, and only where an arc may be overloaded k for each
// source that arrives and k 2^k for the sums. Overflow: loads are compared in 128 bits; sums of capacities are those
// that the caller has checked (breadth_first.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "breadth_first/load.h"
#include "core/stop.h"
#include "graph/digraph.h"

namespace coppice {

class SubsetLoads {
 public:
  /// Gives up where the sets would not fit into a modest memory, or some vertex is not reached by all.
  /// Throws Cancelled.
  SubsetLoads(const Digraph& graph, const StopFlag& stop);

  /// Raises `worst` to the loads that the target needs in each step. False where it is left to flows: where the sets
  /// are not known, or too many sets of links would have to be looked at.
  bool raise(Vertex target, std::span<const Amount> capacity, std::vector<Load>& worst);

 private:
  using Word = std::uint64_t;
  static constexpr std::size_t kBits = 64;
  static constexpr std::size_t kMostWords = std::size_t{1} << 24;
  static constexpr std::size_t kMostLinks = 10;

  bool each_link_could_take_all(const Word* arriving, const Load& load) const;
  void count_confined(const Word* arriving);

  const Digraph& graph_;
  std::size_t words_;                      // words of a set of sources
  std::vector<std::vector<Word>> layers_;  // layers_[t][v * words_ ..]: sources at distance t from v
  bool is_complete_ = false;               // every vertex is reached by all
  std::vector<const Word*> received_;      // of each link into the target: the sources that its tail has received last
  std::vector<Amount> set_capacity_;       // of each set of these links
  std::vector<Amount> confined_;           // of each set: sources that no other link may bring
};

}  // namespace coppice
