// Backtracking search for a map between two parts of a graph (or from the graph to itself) that keeps colours and links
// and commutes with given permutations.
//
// Vertices are mapped one by one, each next to mapped ones. After each choice what is forced is drawn: the neighbours
// of a mapped vertex go to the neighbours of its image by the same kind of link; where few are left, the candidates of
// each are checked one by one. Choosing x -> y also chooses s(x) -> s(y) for each permutation s, so that the search is
// over orbits.
//
// Two rules make it fast on Cayley graphs. *Chain first*: the next vertex to map is the image of the one before,
// v0 -> v -> ..., so that a cyclic shift is laid down before its consequences. *Constant displacement*: in an abelian
// group that is transitive on a cell, every vertex x of the cell and its image are in the same relation (distance, and
// kinds of the shortest paths), so that the first choice in a cell restricts all others to a handful.
//
// Cost: exponential in the worst case, so each search has a limit of steps; a step is a vertex mapped or a link looked
// at. Displacements are looked for among 512 vertices at most. Overflow: labels and colours must stay below 2^31, which
// find_symmetry checks, so that one word holds the kind of a link; hashes wrap around.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/budget.h"
#include "symmetry/coloured_graph.h"

namespace coppice {

/// Relations "at this distance, over such shortest paths" between vertices, found by local breadth-first searches.
class Displacements {
 public:
  struct Relation {
    std::int32_t distance = -1;  // -1: none, because a search would reach too far
    std::uint64_t paths = 0;     // hash of the kinds of the shortest paths
  };

  explicit Displacements(const ColouredGraph& graph);

  /// The relation of x to y.
  Relation relation(Vertex x, Vertex y, Budget& budget);

  /// All y in that relation to x, sorted; null where the search would reach too far.
  const std::vector<Vertex>* related(Vertex x, Relation relation, Budget& budget);

 private:
  struct Related {
    Relation relation;
    bool known = false;
    bool too_far = false;
    std::vector<Vertex> vertices;
  };
  bool search(Vertex x, std::int32_t distance, Vertex until, Budget& budget);

  const ColouredGraph& graph_;
  std::vector<std::int32_t> level_;
  std::vector<std::uint64_t> paths_;
  std::vector<Vertex> reached_;
  std::vector<Related> cache_;  // last answer for each x
};

/// Which cycles v0 -> v -> ... a search tries first.
enum class Chains {
  kLong,
  kInCliques,  // long ones that stay in a clique while it lasts: a dimension in which all are linked with all
  kShort,
};

class MappingSearch {
 public:
  struct Rules {
    std::span<const std::int32_t> source_colour;  // x may go to y only if source_colour[x] == target_colour[y]
    std::span<const std::int32_t> target_colour;
    std::span<const Vertex> sources;              // the vertices to map, preferred first
    std::span<const Vertex> targets;              // where they may go
    std::span<const VertexMap> symmetries;        // to commute with
    std::span<const std::int32_t> orbit;          // if given, no compute vertex goes to its own orbit
    bool constant_displacement = false;
    Chains chains = Chains::kLong;
    std::int64_t steps = 0;                       // work limit of this search
  };

  explicit MappingSearch(const ColouredGraph& graph);

  /// Looks for a map of all sources; `seed` (if its first is >= 0) is a pair that it must contain.
  /// `accept(map)` may refuse a complete map, and the search goes on.
  /// Returns: whether one was found; it is then in map(). Vertices that are not sources have the image -1.
  template <class Accept>
  bool run(const Rules& rules, std::pair<Vertex, Vertex> seed, Budget& budget, Accept&& accept) {
    begin(rules, seed, budget);
    while (complete())
      if (accept(std::as_const(map_))) return true;
      else if (!backtrack()) return false;
    return false;
  }

  const VertexMap& map() const { return map_; }

 private:
  struct Choice {
    Vertex source;
    std::vector<Vertex> candidates;
    std::size_t next;
    std::size_t trail;     // sizes to return to
    std::size_t settings;
    std::size_t frontier;
    std::size_t unmapped;
  };
  struct Neighbour {
    std::uint64_t kind;  // direction, label and colour
    Vertex vertex;
    bool operator<(const Neighbour& other) const {
      return kind != other.kind ? kind < other.kind : vertex < other.vertex;
    }
  };

  void begin(const Rules& rules, std::pair<Vertex, Vertex> seed, Budget& budget);
  bool complete();
  bool backtrack();
  bool advance();
  void undo(const Choice& choice);
  bool assign(Vertex x, Vertex y);
  bool propagate();
  bool propagate_from(Vertex x);
  bool permitted(Vertex x, Vertex y);
  void settle_displacement(Vertex x, Vertex y);
  bool links_agree(Vertex x, Vertex y);
  Vertex select();
  std::vector<Vertex> candidates(Vertex x);
  void free_neighbours(Vertex v, bool source, std::vector<Neighbour>& result);
  void spend(std::int64_t steps);

  const ColouredGraph& graph_;
  Rules rules_;
  Budget* budget_ = nullptr;
  std::int64_t floor_ = 0;  // stop when the budget is down to this
  Displacements displacements_;
  VertexMap map_, inverse_;
  std::vector<Vertex> sources_, targets_;
  std::vector<std::uint8_t> is_source_, is_target_;
  std::vector<Vertex> trail_;  // sources in the order in which they were mapped
  std::vector<Choice> choices_;
  std::vector<Vertex> queue_;
  std::vector<std::uint8_t> queued_;
  std::vector<std::int32_t> mark_;  // scratch of links_agree: label + 1 of the link to each neighbour
  std::unordered_map<std::int32_t, Displacements::Relation> settled_;  // relation of each settled colour
  std::vector<std::int32_t> settings_;                                  // settled colours in that order
  std::size_t frontier_ = 0;  // trail_ before this has no unmapped neighbours
  std::size_t unmapped_ = 0;  // sources before this are mapped
  Vertex chain_ = -1;         // where the chain starts
  bool alive_ = false;
};

}  // namespace coppice
