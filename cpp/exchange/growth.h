// Grows one tree at a time over the capacity that all others leave, cheap and shallow at once.
//
// From what the tree has reached, the terminal that is hung next is the one to which the way costs least. An arc costs
// the inverse of what is left of it, so that arcs of all capacities are used up evenly, links inside a box are taken
// before those between boxes (a second entry into a box costs more than any way inside it), and arcs that other trees
// need are spared. A way that starts d edges below the root costs s^d times as much: the *steepness* s trades height
// for even use. That is Prim's order on the paths through switches, kept in a heap as in Dijkstra's algorithm.
//
// All ways through a switch share their beginning, and cost more as soon as one of them is used. So a switch puts only
// its cheapest arc into that heap and keeps the others in a heap of its own: what its ways cost is found again once for
// each arc that is taken, not once for each that waits.
//
// A way that has run out of capacity since it was found is mended where it broke: the switch there takes its next best
// way in. Mending may leave ways that lead round in a circle; they are too long to be ways and are mended as well.
//
// Cost: O(m log m) for a graph of m arcs, and for every mended way the arcs into one switch. Memory: 16 bytes for each
// arc out of a switch. Overflow: costs are doubles, which decide between trees that are all within the capacities.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "exchange/bundles.h"

namespace coppice {

class Growth {
 public:
  /// Args:
  ///   lengths: Per arc, the number of arcs that it stands for (graph/chains.h). It costs as many times as much.
  ///   steepness: s >= 1.
  ///   most_height: No terminal is hung deeper.
  ///   seed: Of what arcs cost more in each tree, up to a quarter; 0 is nothing.
  Growth(Bundles& bundles, std::span<const std::int32_t> lengths, double steepness, std::int32_t most_height, std::uint64_t seed = 0);

  /// Clears bundle b and hangs every terminal that can be reached.
  void grow(std::int32_t b);

 private:
  struct Way {
    double cost = 0;           // of its arcs
    std::int32_t depth = 0;    // where it starts
    double order = 0;          // cost times s^depth
  };
  struct Candidate {
    double order;
    Vertex v;
    Vertex by;  // switch whose next arc leads to v; -1: the way that from_ holds
    bool operator>(const Candidate& other) const { return order != other.order ? order > other.order : v > other.v; }
  };
  struct Waiting {
    double cost;
    Arc e;
    bool operator>(const Waiting& other) const { return cost != other.cost ? cost > other.cost : e > other.e; }
  };

  double cost(Arc e) const;
  Way extended(const Way& way, Arc e) const;
  void offer_arcs_from(const Bundle& tree, Vertex v);
  void open(const Bundle& tree, Vertex v, const Way& way);
  Arc next_arc(const Bundle& tree, Vertex v, const Way& way);
  void offer_next(const Bundle& tree, Vertex v, const Way& way);
  void take_next(std::int32_t b, Vertex v, double order);
  void arrive(std::int32_t b, Vertex v, const Way& way);
  bool trace(const Bundle& tree, Vertex v, Way& way, Vertex& broken, Vertex without) const;
  bool mend(const Bundle& tree, Vertex v, Way& way);
  void push(const Candidate& candidate);

  Bundles& bundles_;
  const Digraph& graph_;
  std::span<const std::int32_t> lengths_;
  std::int32_t most_height_;
  std::uint64_t seed_, tree_seed_ = 0;
  double most_;                          // largest capacity
  std::vector<double> power_;            // s^d
  std::vector<double> order_;            // per vertex: of the way that was offered
  std::vector<Arc> from_;                // per vertex: last arc of that way
  std::vector<std::int32_t> stamp_of_;   // stamp_of_[v] == stamp_: v has a way in this tree
  std::int32_t stamp_ = 0;
  std::vector<Candidate> heap_;
  std::vector<std::vector<Waiting>> waiting_;  // per switch: heap of the arcs out of it that have not been taken
  std::vector<double> offered_;          // per switch: order at which its next arc is in heap_
  std::vector<Arc> path_;
};

}  // namespace coppice
