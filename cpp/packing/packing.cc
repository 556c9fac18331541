#include "packing/packing.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "core/wide.h"
#include "cuts/feasibility.h"
#include "graph/traversal.h"
#include "packing/cut_family.h"
#include "packing/path_search.h"
#include "packing/shortening.h"
#include "packing/tree_grower.h"
#include "splitting/splitting.h"

namespace coppice {

namespace {

constexpr std::size_t kSetsToSplit = 32;
constexpr std::size_t kWidths = 8;  // of arcs, by which parts are told apart

// The fast search has made all the checks that it may.
struct BudgetSpent {};

class Packer {
 public:
  Packer(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
         std::span<const Amount> capacity, const GroupAction& action, const PackingOptions& options, const StopFlag& stop)
      : graph_(graph),
        terminal_(terminal),
        action_(action),
        options_(options),
        stop_(stop),
        cuts_(graph, action),
        residual_(action.num_classes(), 0),
        roots_left_(graph.num_vertices(), 0),
        representative_(action.num_orbits, -1),
        grower_(graph, action, terminal, cuts_, residual_),
        check_(graph, terminal, action.order > 1 ? std::span<const std::int32_t>(action.orbit) : std::span<const std::int32_t>()),
        check_capacity_(graph.num_arcs()),
        check_supply_(graph.num_vertices()) {
    for (Arc e = 0; e < graph.num_arcs(); ++e) residual_[action.arc_class[e]] = capacity[e];
    inside_.assign(graph.num_vertices(), 0);
    for (Vertex v = graph.num_vertices(); v-- > 0;) representative_[action.orbit[v]] = v;
    check_amounts(roots, capacity);
    for (Vertex v = 0; v < graph.num_vertices(); ++v) {
      if (representative_[action.orbit[v]] != v) continue;
      roots_left_[v] = roots[v];
      remaining_ += roots[v] * action.order;
      largest_root_ = std::max(largest_root_, roots[v]);
      if (roots[v] > 0) root_queue_.push_back(v);
    }
    first_residual_ = residual_;
  }

  Packing run() {
    if (auto sets = violated_sets(1); !sets.empty()) {
      result_.violated = std::move(sets.front());
      result_.complete = false;
      return result();
    }
    if (action_.order > 1) {  // a stuck template cannot be checked, so start from the cuts that are tight
      auto tight = violated_sets(graph_.num_vertices(), remaining_ + 1);
      strengthen(tight);
      learn(std::move(tight));
    }
    if (!options_.always_exhaustive)
      most_checks_ = result_.stats.checks + (options_.most_checks < 0 ? fast_checks(graph_, terminal_) : options_.most_checks);
    try {
      search();
    } catch (const BudgetSpent&) {
      if (grower_.growing()) grower_.abandon();
      for (const Tree& tree : batch_) change_trees(tree, -tree.multiplicity);
      batch_.clear();
      result_.complete = action_.order == 1;
      if (result_.complete) split();
    }
    if (result_.complete) shorten_trees(graph_, action_, terminal_, residual_, trees_, stop_);
    return result();
  }

 private:
  // Grows all trees, or as many templates as it finds.
  void search() {
    if (options_.begun && options_.most_checks != 0) take_begun(*options_.begun);
    while (remaining_ > 0) {
      while (static_cast<std::int32_t>(batch_.size()) < batch_size_ && remaining_ > 0) {
        if (!add_tree(next_root())) {
          check_batch();
          if (learn_parts()) continue;
          result_.complete = false;
          return;
        }
      }
      check_batch();
    }
  }

  // Packs what remains in strongly polynomial time. The trees taken for good left (I) true, so there is a way.
  void split() {
    for (Arc e = 0; e < graph_.num_arcs(); ++e) check_capacity_[e] = residual_[action_.arc_class[e]];
    const Packing rest = pack_by_splitting(graph_, terminal_, roots_left_, check_capacity_, stop_);
    result_.stats.flows = rest.stats.flows;
    take(rest, trees_);
  }

  void count_check() {
    if (result_.stats.checks >= most_checks_) throw BudgetSpent{};
    ++result_.stats.checks;
  }

  // `change` more units of a tree.
  void change_trees(const Tree& tree, Amount change) {
    roots_left_[tree.root] -= change;
    remaining_ -= change * action_.order;
    for (auto [arc_class, units] : tree.use) residual_[arc_class] -= change * units;
  }

  // Within these sums no slack overflows, and neither does a multiplicity times the images that share an arc.
  void check_amounts(std::span<const Amount> roots, std::span<const Amount> capacity) const {
    Wide trees = 0, all = std::accumulate(capacity.begin(), capacity.end(), Wide{0});
    for (Vertex v = 0; v < graph_.num_vertices(); ++v)
      if (representative_[action_.orbit[v]] == v) trees += Wide{roots[v]} * action_.order;
    require_below_limit(trees, "the number of trees must stay below 2^62");
    require_below_limit(all, "the sum of the capacities must stay below 2^62");
  }

  Packing result() {
    result_.stats.cuts = cuts_.size();
    result_.start.push_back(0);
    for (const Tree& tree : trees_) {
      result_.root.push_back(tree.root);
      result_.multiplicity.push_back(tree.multiplicity);
      result_.arcs.insert(result_.arcs.end(), tree.arcs.begin(), tree.arcs.end());
      result_.start.push_back(static_cast<std::int64_t>(result_.arcs.size()));
    }
    return std::move(result_);
  }

  Vertex next_root() {
    for (;;) {
      if (next_root_ >= root_queue_.size()) next_root_ = 0;
      Vertex root = root_queue_[next_root_++];
      if (roots_left_[root] > 0) return root;
    }
  }

  Amount share(Vertex root) const {
    return std::min(roots_left_[root], (largest_root_ + options_.pieces - 1) / options_.pieces);
  }

  // Takes trees that somebody else has grown as one batch.
  void take_begun(const Packing& begun) {
    take(begun, batch_);
    check_batch();
  }

  void take(const Packing& begun, std::vector<Tree>& trees) {
    std::vector<std::int32_t> classes;
    for (std::size_t t = 0; t < begun.root.size(); ++t) {
      Tree tree{begun.root[t], begun.multiplicity[t], {begun.arcs.begin() + begun.start[t], begun.arcs.begin() + begun.start[t + 1]}, {}};
      classes.clear();
      for (Arc e : tree.arcs) classes.push_back(action_.arc_class[e]);
      count_use(classes, action_, tree.use);
      change_trees(tree, tree.multiplicity);
      trees.push_back(std::move(tree));
    }
  }

  // Grows a tree at `root` and takes it, to be checked by check_batch(). False: a template was not found.
  bool add_tree(Vertex root) {
    grower_.start(root, share(root));
    for (;;) {
      poll(stop_);
      if (!options_.always_exhaustive && grower_.grow()) break;
      if (grower_.spans()) break;
      if (action_.order > 1 && grower_.exchange()) continue;
      if (!batch_.empty()) {  // the state is not known to be right: settle it before blaming the tree
        grower_.abandon();
        check_batch();
        if (roots_left_[root] == 0) return true;
        grower_.start(root, share(root));
        continue;
      }
      if (learn_from_partial_tree()) {
        ++result_.stats.restarts;
        grower_.start(root, share(root));
      } else if (grower_.multiplicity() > 1) {
        ++result_.stats.halvings;
        grower_.lower_multiplicity(grower_.multiplicity() / 2);
      } else if (action_.order > 1) {
        grower_.abandon();
        return false;
      } else {
        ++result_.stats.exact_steps;
        exhaustive_step();
      }
    }
    Tree tree = grower_.finish(share(root));
    roots_left_[root] -= tree.multiplicity;
    remaining_ -= tree.multiplicity * action_.order;
    batch_.push_back(std::move(tree));
    return true;
  }

  std::vector<std::vector<Vertex>> violated_sets(std::size_t limit) { return violated_sets(limit, remaining_); }

  std::vector<std::vector<Vertex>> violated_sets(std::size_t limit, Amount demand) {
    count_check();
    for (Arc e = 0; e < graph_.num_arcs(); ++e) check_capacity_[e] = residual_[action_.arc_class[e]];
    for (Vertex v = 0; v < graph_.num_vertices(); ++v) check_supply_[v] = supply_of(v);
    return check_.violated(check_capacity_, check_supply_, demand, limit, stop_);
  }

  Amount supply_of(Vertex v) const { return roots_left_[representative_[action_.orbit[v]]]; }

  // How much c(in(X)) changes when v moves into X (if it is outside) or out of X (if it is inside).
  Amount change_by_moving(Vertex v, const std::vector<Amount>& capacity) const {
    Amount joining = 0;
    for (Arc e : graph_.in(v))
      if (!inside_[graph_.tail(e)]) joining += capacity[action_.arc_class[e]];
    for (Arc e : graph_.out(v))
      if (inside_[graph_.head(e)]) joining -= capacity[action_.arc_class[e]];
    return inside_[v] ? -joining : joining;
  }

  // Among sets that are violated as badly, one that was scarcest from the beginning says most about trees to come: two
  // links in a row make equal cuts only after both are used up. Moves single switches until none improves.
  void tighten(std::vector<Vertex>& set) {
    for (Vertex v : set) inside_[v] = 1;
    std::vector<Vertex> touched = set;
    auto touch = [&](Vertex v) {
      if (!terminal_[v]) touched.push_back(v);
    };
    for (Vertex v : set) {
      for (Arc e : graph_.in(v)) touch(graph_.tail(e));
      for (Arc e : graph_.out(v)) touch(graph_.head(e));
    }
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (bool moved = true; moved;) {
      moved = false;
      for (Vertex v : touched) {
        if (terminal_[v]) continue;
        Amount now = change_by_moving(v, residual_);
        if (now > 0 || (now == 0 && change_by_moving(v, first_residual_) >= 0)) continue;
        inside_[v] ^= 1;
        moved = true;
      }
    }
    set.clear();
    for (Vertex v : touched)
      if (inside_[v]) set.push_back(v), inside_[v] = 0;
  }

  // Sets to learn, in the state in which they were found violated.
  void strengthen(std::vector<std::vector<Vertex>>& sets) {
    auto drop_repeated = [&] {
      std::sort(sets.begin(), sets.end());
      sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
    };
    for (auto& set : sets) std::sort(set.begin(), set.end());
    drop_repeated();
    for (auto& set : sets) tighten(set);
    drop_repeated();
    if (grower_.growing()) return;  // what an unfinished tree has reached may lie in several parts
    // Only large sets are likely to leave several parts outside, and only few are large.
    std::sort(sets.begin(), sets.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
    for (std::size_t i = std::min(sets.size(), kSetsToSplit); i-- > 0;) split_outside(sets, i);
    drop_repeated();
  }

  // If V - X falls into parts without arcs between them, the slack of X is the sum of the slacks of the complements of
  // the parts, so one of those is violated, too, and says more. Replaces sets[i] by one set for each part.
  void split_outside(std::vector<std::vector<Vertex>>& sets, std::size_t i) {
    for (Vertex v : sets[i]) inside_[v] = 1;
    const auto parts = parts_without(graph_, inside_);
    for (Vertex v : sets[i]) inside_[v] = 0;
    if (parts.size() < 2) return;
    sets[i].clear();
    for (const auto& part : parts) {
      // A part without trees to root cannot be violated.
      if (std::none_of(part.begin(), part.end(), [&](Vertex v) { return supply_of(v) > 0; })) continue;
      for (Vertex v : part) inside_[v] = 1;
      std::vector<Vertex> rest;
      for (Vertex v = 0; v < graph_.num_vertices(); ++v)
        if (!inside_[v]) rest.push_back(v);
      for (Vertex v : part) inside_[v] = 0;
      sets.push_back(std::move(rest));
    }
    std::swap(sets[i], sets.back());
    sets.pop_back();
  }

  void learn(std::vector<std::vector<Vertex>> sets) {
    for (auto& set : sets) {
      for (Vertex v : set) inside_[v] = 1;
      Amount slack = -remaining_;
      for (Vertex v : set) {
        slack += supply_of(v);
        for (Arc e : graph_.in(v))
          if (!inside_[graph_.tail(e)]) slack += residual_[action_.arc_class[e]];
      }
      for (Vertex v : set) inside_[v] = 0;
      cuts_.add(std::move(set), slack);
    }
  }

  // Learns the parts that the widest arcs join, and those that narrower ones join in turn: boxes of GPUs have slack until
  // a template has used up the narrow arcs between them on its way to only some. False: that was done before.
  bool learn_parts() {
    if (std::exchange(parts_learned_, true)) return false;
    std::vector<Amount> widths = first_residual_;
    std::ranges::sort(widths, std::greater<>());
    widths.erase(std::unique(widths.begin(), widths.end()), widths.end());
    if (widths.size() > kWidths) widths.resize(kWidths);
    std::vector<std::vector<Vertex>> parts;
    for (Amount width : widths) {
      std::vector<Vertex> tail, head;
      for (Arc e = 0; e < graph_.num_arcs(); ++e)
        if (first_residual_[action_.arc_class[e]] >= width) tail.push_back(graph_.tail(e)), head.push_back(graph_.head(e));
      for (auto& part : parts_without(Digraph(graph_.num_vertices(), tail, head), inside_)) {
        const auto terminals = std::ranges::count_if(part, [&](Vertex v) { return terminal_[v] != 0; });
        const auto stands_for_images = [&](Vertex v) { return terminal_[v] && representative_[action_.orbit[v]] == v; };
        if (terminals > 1 && terminals < grower_.num_terminals() && std::ranges::any_of(part, stands_for_images))
          parts.push_back(std::move(part));
      }
    }
    strengthen(parts);
    learn(std::move(parts));
    return true;
  }

  // Checks the batch, gives trees back until (I) holds, learns every violated cut, and takes the rest for good.
  void check_batch() {
    std::size_t proposed = batch_.size();
    if (proposed == 0) return;
    bool clean = true;
    for (;;) {
      auto sets = violated_sets(graph_.num_vertices());
      if (sets.empty()) break;
      clean = false;
      std::int32_t first = cuts_.size();
      strengthen(sets);
      learn(std::move(sets));
      give_back(first);
    }
    std::erase_if(batch_, [](const Tree& tree) { return tree.multiplicity == 0; });
    auto kept = static_cast<std::int32_t>(batch_.size());
    std::move(batch_.begin(), batch_.end(), std::back_inserter(trees_));
    batch_.clear();
    batch_size_ = clean ? std::min(options_.largest_batch, 2 * batch_size_) : std::max(1, kept / 2);
  }

  // Lowers the latest trees that overdraw the cuts from `first` on until all have slack again.
  void give_back(std::int32_t first) {
    std::vector<std::vector<Amount>> growth(batch_.size());
    for (std::size_t i = 0; i < batch_.size(); ++i) cuts_.growth_of(batch_[i].root, batch_[i].use, growth[i]);
    for (std::int32_t cut = first; cut < cuts_.size(); ++cut) {
      for (std::size_t i = batch_.size(); i-- > 0 && cuts_.slack(cut) < 0;) {
        Tree& tree = batch_[i];
        if (tree.multiplicity == 0 || growth[i][cut] <= 0) continue;
        Amount excess = std::min(tree.multiplicity, (-cuts_.slack(cut) + growth[i][cut] - 1) / growth[i][cut]);
        tree.multiplicity -= excess;
        change_trees(tree, -excess);
        for (std::int32_t other = 0; other < cuts_.size(); ++other) cuts_.change_slack(other, excess * growth[i][other]);
        result_.stats.trees_given_back += tree.multiplicity == 0;
      }
    }
  }

  // Checks the state together with the unfinished tree: a source with supply a feeds what it has reached. Learns what
  // is violated and abandons the tree; returns whether anything was. Settled state only.
  bool learn_from_partial_tree() {
    if (action_.order > 1) return false;
    if (!partial_) partial_.emplace(graph_, terminal_);
    count_check();
    auto sets = partial_->violated(*this);
    if (sets.empty()) return false;
    strengthen(sets);
    grower_.abandon();
    learn(std::move(sets));
    return true;
  }

  // The graph with one more vertex, the source of the unfinished tree, and an arc from it to each terminal.
  struct PartialCheck {
    PartialCheck(const Digraph& graph, std::span<const std::uint8_t> terminals) : num_arcs(graph.num_arcs()), source(graph.num_vertices()) {
      std::vector<Vertex> tail, head;
      for (Arc e = 0; e < num_arcs; ++e) tail.push_back(graph.tail(e)), head.push_back(graph.head(e));
      for (Vertex v = 0; v < source; ++v)
        if (terminals[v]) tail.push_back(source), head.push_back(v);
      extended = std::make_unique<Digraph>(source + 1, tail, head);
      terminal.assign(terminals.begin(), terminals.end());
      terminal.push_back(0);
      check = std::make_unique<FeasibilityCheck<Amount>>(*extended, terminal);
      capacity.resize(extended->num_arcs());
      supply.resize(source + 1);
    }

    std::vector<std::vector<Vertex>> violated(Packer& packer) {
      Amount units = packer.grower_.multiplicity();
      for (Arc e = 0; e < num_arcs; ++e) capacity[e] = packer.residual_[packer.action_.arc_class[e]];
      for (Arc e = num_arcs; e < extended->num_arcs(); ++e) capacity[e] = packer.grower_.reached(extended->head(e)) ? units : 0;
      for (Vertex v = 0; v < source; ++v) supply[v] = packer.roots_left_[v];
      supply[packer.grower_.reached_list().front()] -= units;
      supply[source] = units;
      auto sets = check->violated(capacity, supply, packer.remaining_, 1, packer.stop_);
      for (auto& set : sets) std::erase(set, source);
      return sets;
    }

    Arc num_arcs;
    Vertex source;
    std::unique_ptr<Digraph> extended;
    std::vector<std::uint8_t> terminal;
    std::unique_ptr<FeasibilityCheck<Amount>> check;
    std::vector<Amount> capacity, supply;
  };

  // Takes one path to a new terminal, whichever the known cuts allow. The theorem promises one that keeps (I); one that
  // only keeps the known cuts teaches a new cut.
  void exhaustive_step() {
    if (!path_search_) path_search_.emplace(graph_, terminal_, cuts_);
    const auto path = path_search_->find(grower_, stop_);
    if (!path) throw BudgetSpent{};
    if (path->empty()) throw NoPacking{};
    Vertex root = grower_.reached_list().front();
    grower_.extend(*path);
    if (!learn_from_partial_tree()) return;
    ++result_.stats.restarts;
    grower_.start(root, share(root));
  }

  const Digraph& graph_;
  std::span<const std::uint8_t> terminal_;
  const GroupAction& action_;
  const PackingOptions& options_;
  const StopFlag& stop_;

  CutFamily cuts_;
  std::vector<Amount> residual_;         // per arc class, in trees
  std::vector<Amount> roots_left_;       // per vertex; only the first of each orbit counts
  std::vector<Vertex> representative_;   // per orbit, its first vertex
  Amount remaining_ = 0;                 // T: sum of roots_left_ over all vertices
  Amount largest_root_ = 0;
  std::vector<Vertex> root_queue_;
  std::size_t next_root_ = 0;
  TreeGrower grower_;
  std::vector<Tree> trees_;              // taken for good
  std::vector<Tree> batch_;              // taken, but not checked yet
  std::int32_t batch_size_ = 1;
  std::int64_t most_checks_ = std::numeric_limits<std::int64_t>::max();  // that the fast search may reach
  bool parts_learned_ = false;

  FeasibilityCheck<Amount> check_;
  std::vector<Amount> check_capacity_, check_supply_;
  std::optional<PartialCheck> partial_;
  std::optional<PathSearch> path_search_;
  std::vector<Amount> first_residual_;   // as it was given
  std::vector<std::uint8_t> inside_;
  Packing result_;
};

}  // namespace

std::int64_t fast_checks(const Digraph& graph, std::span<const std::uint8_t> terminal) {
  std::int64_t checks = 100 + static_cast<std::int64_t>(graph.num_vertices()) + graph.num_arcs();
  for (Vertex v = 0; v < graph.num_vertices(); ++v)
    if (!terminal[v]) checks += static_cast<std::int64_t>(graph.in(v).size() * graph.out(v).size());
  return checks;
}

Packing pack_trees(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                   std::span<const Amount> capacity, const GroupAction& action, const PackingOptions& options, const StopFlag& stop) {
  return Packer(graph, terminal, roots, capacity, action, options, stop).run();
}

}  // namespace coppice
