// Moves trees of a forest off lost or slow links within a limit on every link's load.
//
// A hop is moved in one of two ways. A detour keeps who sends to whom and takes another switch. Re-hanging cuts the subtree
// below the hop off and hangs it to any rank of the rest of its tree; it may be entered at another of its ranks, and the
// edges between that one and its old top are turned round. The cheapest way is taken (Dijkstra's search from the subtree,
// guided by what the cheapest way to any rank costs), where a link costs what a unit of weight takes on it. Where only a
// part of a tree's weight fits, the tree is split. Heaps are ordered by (cost, cost ahead, node), so that results are the
// same everywhere, and those of the readable reference.
//
// Cost: O(m + n log n) a search with n nodes and m links, one for every subtree that is moved; O(n) for every tree that is
// touched; O(nodes of all paths) for the result. Overflow: the caller keeps limits and scale times load below 2^62.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "core/stop.h"
#include "rehanging/damage.h"

namespace coppice {

struct Limits {
  std::int64_t scale;          // units of weight that one of the forest's becomes: weights can be split that far
  std::vector<Amount> limit;   // most units that each link may carry
  bool low;                    // prefer new parents near the root, where that costs little more
  std::int32_t tallest;        // hops that a tree may have at most after a subtree is hung; -1 is any number
};

class Rehanging {
 public:
  Rehanging(const Damage& damage, Limits limits);

  /// Moves affected subtrees; whether all found a place within the limits. Throws Cancelled where `stop` says so.
  bool run(const StopFlag& stop = {});

  /// The trees as they are now, at `scale` units for one of the forest's, without unused paths.
  MadeForest forest() const;

  std::vector<Amount> load() const;
  std::size_t num_moved() const { return moved_.size(); }
  std::size_t num_split() const { return split_.size(); }
  /// Trees in which every rank has its old parent, some over other switches.
  std::size_t num_rerouted() const;

 private:
  struct Tree {
    Vertex root;
    Amount weight;
    bool reduces;
    std::vector<Vertex> parent;      // by node, -1 at the root and elsewhere
    std::vector<std::int32_t> path;  // by node
    std::vector<Vertex> children;    // in the order of their rows
    std::vector<std::uint8_t> detached;
  };
  struct Hanging {
    Vertex parent, entry;
    std::vector<Vertex> path;
    std::vector<std::vector<Vertex>> turned;
    std::vector<Arc> gained, freed;
    Amount units;
  };
  struct Pending {
    Tree* tree;
    std::deque<Vertex> children;
  };
  using Rows = std::vector<std::int64_t>;

  Rows detour(const Rows& rows, Arc crowded);
  bool rehang_broken(const Rows& rows, const StopFlag& stop);
  bool rehang_crowded(const Rows& rows, Arc link, const StopFlag& stop);
  bool regrow(Tree& tree);
  bool grown(Tree& tree, std::int32_t tallest);
  bool search(const Tree& tree, Vertex child, Arc banned, bool crowding, Hanging& found);
  void measure(const Tree& tree, Vertex child, Vertex parent, Hanging& found) const;
  bool turned(const Tree& tree, Vertex kid, double& cost) const;
  void hang(Tree& tree, Vertex child, const Hanging& found, Amount units);
  Tree* halved(Tree& tree, Amount units);
  Tree& tree(std::int32_t number);
  std::pair<Tree*, Vertex> child_of(std::int64_t row);
  std::vector<Pending> by_tree(const Rows& rows);

  std::vector<std::pair<Arc, Rows>> crowded() const;
  std::span<const Vertex> path(std::int32_t number) const;
  std::vector<Arc> links_of(std::span<const Vertex> nodes) const;
  bool uses(std::int32_t path, Arc link) const;
  void use_path(std::int32_t path, Amount units);
  std::int32_t add_path(std::vector<Vertex> nodes);
  double price(Arc link) const;
  std::int32_t depth(const Tree& tree, Vertex node) const;
  std::int32_t height_with(const Tree& tree, Vertex child, Vertex parent, Vertex entry) const;
  std::vector<double> cost_ahead(bool backwards) const;
  std::span<const Arc> around(Vertex node, bool backwards) const;

  const Damage& damage_;
  Limits limits_;
  std::vector<Amount> room_;
  std::vector<std::int32_t> edge_path_;
  std::int32_t first_new_;
  std::vector<std::vector<Vertex>> new_paths_;
  std::deque<Tree> trees_;                  // addresses stay
  std::map<std::int32_t, Tree*> moved_;     // by the number of the tree
  std::vector<Tree*> split_;
  std::set<std::int32_t> rerouted_;
  double deeper_;
  std::vector<double> ahead_[2];            // [reduces]
  // Of the search: valid where the stamp is that of this search.
  std::vector<std::uint32_t> seen_, done_, below_;
  std::uint32_t stamp_ = 0;
  std::vector<double> best_;
  std::vector<Vertex> origin_, first_kid_, next_kid_;
};

}  // namespace coppice
