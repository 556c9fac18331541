// A bipartite flow: which arcs into a vertex bring how much of which groups of sources in one step.
//
// Augmenting paths lead from the groups to the arcs. A flow that falls short leaves the arcs that the last search
// reached: all full, and by max-flow/min-cut too little for the sources that have no other way.
//
// Cost, for g groups and k links: O(g k) to fill greedily and O(g k) per augmenting path. Paths are the shortest ones,
// so each group needs at most O((g + k) g k) of them whatever the amounts are (Edmonds and Karp). Overflow: amounts
// stay within the room and the supply given, which the caller checks (breadth_first.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "breadth_first/arrivals.h"

namespace coppice {

/// A flow from the groups of one step to the links of the target.
class Assignment {
 public:
  explicit Assignment(const Arrivals& arrivals) : arrivals_(arrivals) {}

  /// Sends `unit` from every source to the links, each of which takes up to its room. False where that is impossible;
  /// then `wanting` sources have no way but links of capacity `capacity` in all, whose room does not suffice.
  bool route(const std::vector<Arrivals::Group>& groups, Amount unit, std::span<const Amount> room);

  /// What the link takes of the group, by number in the groups routed last.
  Amount flow(std::size_t group, std::size_t link) const { return flow_[group * arrivals_.links.size() + link]; }

  Amount wanting = 0;
  Amount capacity = 0;

 private:
  Amount augment(const std::vector<Arrivals::Group>& groups, std::size_t g, Amount limit);
  Amount shift(std::size_t g, std::size_t link, Amount amount);
  bool note_shortage(const std::vector<Arrivals::Group>& groups);

  const Arrivals& arrivals_;
  std::vector<Amount> left_;            // room left on each link
  std::vector<Amount> flow_;            // flow_[group * links + link]
  std::vector<std::int32_t> group_of_;  // group_of_[link]: group that found the link in the search, or -1
  std::vector<std::int32_t> link_of_;   // link_of_[group]: link that led to the group, or -1
  std::vector<std::size_t> queue_;
};

}  // namespace coppice
