// Which arcs into a vertex may bring which data in which step, when all data spread along shortest paths.
//
// In step t a vertex u receives the data of all sources at distance t. An arc (w, u) may bring those that w is at
// distance t - 1 from: w has received them before. Sources of equal sets of arcs form one group.
//
// Cost per target with k arcs into it: k + 1 searches of O(vertices + arcs), done once per vertex and kept, O(n k) for
// the sets, and a sort of the n sources, by counting where there are few arcs. Overflow: none, these are distances and
// sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/digraph.h"

namespace coppice {

/// Distances to vertices, looked for when they are first asked for.
class Distances {
 public:
  explicit Distances(const Digraph& graph) : graph_(graph), hops_(graph.num_vertices()), queue_(graph.num_vertices()) {}

  /// Hops from each vertex to `to`, -1 where no path leads there.
  /// Throws std::invalid_argument where `to` is no vertex.
  const std::int32_t* towards(Vertex to);

 private:
  void search(Vertex to, std::vector<std::int32_t>& hops);

  const Digraph& graph_;
  std::vector<std::vector<std::int32_t>> hops_;  // hops_[to][v]; empty where nobody has asked
  std::vector<Vertex> queue_;
};

/// The sources of one target, by step and by the set of arcs that may bring them.
class Arrivals {
 public:
  struct Group {
    std::size_t first, last;  // the sources sources[first .. last)
    Amount size() const { return static_cast<Amount>(last - first); }
  };

  /// Args:
  ///   capacity: Per arc.
  Arrivals(const Digraph& graph, std::span<const Amount> capacity, Distances& distances)
      : graph_(graph), capacity_(capacity), distances_(distances) {}

  /// Turns to another target.
  /// Throws std::invalid_argument where it is no vertex, or not reached by every vertex.
  void look_at(Vertex target);

  bool may_use(const Group& group, std::size_t link) const {
    return eligible(sources[group.first])[link / kBits] >> (link % kBits) & 1;
  }

  std::vector<Arc> links;                 // arcs into the target
  std::vector<Amount> link_capacity;      // of each of them
  std::vector<Vertex> sources;            // all other vertices, group by group
  std::vector<std::vector<Group>> steps;  // steps[t - 1]: groups at distance t, those of few links first

 private:
  using Word = std::uint64_t;
  static constexpr std::size_t kBits = 64;
  static constexpr std::size_t kBins = 4;  // bins of a counting sort per thing sorted

  const Word* eligible(Vertex source) const { return eligible_.data() + source * words_; }
  bool alike(const std::int32_t* hops, Vertex a, Vertex b) const;
  void sort_sources(const std::int32_t* hops);
  int ways(const Group& group) const;

  const Digraph& graph_;
  std::span<const Amount> capacity_;
  Distances& distances_;
  std::size_t words_ = 0;           // words of a set of links
  std::vector<Word> eligible_;      // eligible_[v * words_ ..]: links that may bring source v
  std::vector<std::size_t> place_;  // where the next source of each bin goes
  std::vector<Vertex> sorted_;
};

}  // namespace coppice
