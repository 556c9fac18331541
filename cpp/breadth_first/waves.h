// Loads of breadth-first broadcast for all vertices at once, where there are few arcs into each of them.
//
// The sources at distance t from every vertex are sets of bits, and those of step t follow from those of step t - 1 by
// unions. Then every set W of arcs into a vertex is looked at: a source counts for W if no arc outside W may bring it,
// and sums over subsets give these numbers for all W at once. Ten arcs have 1,024 sets; beyond, flows are better.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "graph/digraph.h"
#include "cuts/feasibility.h"

namespace coppice {

/// Sources per unit of capacity that the busiest arc brings in a step, in lowest terms.
struct Load {
  Amount numerator, denominator;
  Load(Amount p, Amount q) : numerator(p / std::gcd(p, q)), denominator(q / std::gcd(p, q)) {}
  bool operator<(const Load& other) const {
    return Wide{numerator} * other.denominator < Wide{other.numerator} * denominator;
  }
};

/// Who reaches whom in which step: sets of sources as bits.
class Waves {
 public:
  /// Gives up where the sets would not fit into a modest memory, or some vertex is not reached by all.
  /// Throws Cancelled.
  Waves(const Digraph& graph, const StopFlag& stop);

  /// Raises `worst` to the loads that the target needs in each step. False where it is left to flows: where the sets
  /// are not known, or too many sets of links would have to be looked at.
  bool settle(Vertex target, std::span<const Amount> capacity, std::vector<Load>& worst);

 private:
  using Word = std::uint64_t;
  static constexpr std::size_t kBits = 64;
  static constexpr std::size_t kMostWords = std::size_t{1} << 24;
  static constexpr std::size_t kFewLinks = 10;

  bool harmless(const Word* here, const Load& load) const;
  void count_sets(const Word* here);

  const Digraph& graph_;
  std::size_t words_;                     // words of a set of sources
  std::vector<std::vector<Word>> waves_;  // waves_[t][v * words_ ..]: sources at distance t from v
  bool complete_ = false;
  std::vector<const Word*> before_;  // of each link into the target: the sources that its tail has received last
  std::vector<Amount> limit_;        // capacity of each set of these links
  std::vector<Amount> within_;
};

}  // namespace coppice
