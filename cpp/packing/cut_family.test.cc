#include "packing/cut_family.h"

#include <limits>
#include <set>

#include "testing/testing.h"
#include "testing/networks.h"

using namespace coppice;
using namespace coppice::testing;

namespace {

/// The tree under construction as the definitions see it: arcs and terminals, each with all its images.
struct GrowingTree {
  const SymmetricNetwork& network;
  Vertex root;
  std::vector<Arc> arcs{};
  std::set<Vertex> landed{root};

  Amount times_entered(const std::vector<std::uint8_t>& inside, std::span<const Arc> path) const {
    Amount times = 0;
    for (const auto& image : network.arc_image)
      for (Arc e : path) times += inside[network.network.head[image[e]]] && !inside[network.network.tail[image[e]]];
    return times;
  }
  Amount missing(const std::vector<std::uint8_t>& inside, Vertex landing = -1) const {
    Amount images = 0;
    for (const auto& image : network.vertex_image) {
      bool found = landing >= 0 && inside[image[landing]];
      for (Vertex v : landed) found |= inside[image[v]] != 0;
      images += !found;
    }
    return images;
  }
  Amount potential(const std::vector<std::uint8_t>& inside) const {
    Amount rooted = 0;
    for (const auto& image : network.vertex_image) rooted += inside[image[root]];
    return times_entered(inside, arcs) + missing(inside) + rooted - network.action.order;
  }
  void take(std::span<const Arc> path, Vertex landing) {
    arcs.insert(arcs.end(), path.begin(), path.end());
    landed.insert(landing);
  }
};

/// A path from a vertex of the tree to a new terminal, at random; empty where the walk ends elsewhere.
std::vector<Arc> random_path(const Digraph& graph, const GrowingTree& tree, Dice& dice) {
  auto start = tree.landed.begin();
  std::advance(start, dice(static_cast<int>(tree.landed.size())));
  std::vector<Arc> path;
  for (Vertex v = *start; path.size() < 12;) {
    auto out = graph.out(v);
    if (out.empty()) break;
    path.push_back(out[dice(static_cast<int>(out.size()))]);
    v = graph.head(path.back());
    if (!tree.network.network.terminal[v]) continue;
    if (tree.landed.count(v)) break;
    return path;
  }
  return {};
}

struct KnownCut {
  std::vector<std::uint8_t> inside;
  Amount slack;
};

/// Grows random trees and compares every answer of the family with the definitions.
/// Returns how often a path was allowed and how often not.
std::pair<int, int> compare_with_definitions(const SymmetricNetwork& network, Dice& dice) {
  const Network& plain = network.network;
  Digraph graph = plain.graph();
  CutFamily cuts(graph, network.action);
  std::vector<KnownCut> known;
  auto potential_allows = [](Amount potential, Amount multiplicity, Amount slack) { return multiplicity * potential <= slack; };
  std::pair<int, int> counts;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 3; ++i) {
      KnownCut cut{std::vector<std::uint8_t>(plain.num_vertices(), 0), dice(4 * static_cast<int>(network.action.order))};
      std::vector<Vertex> nodes;
      for (Vertex v = plain.num_vertices(); v-- > 0;)
        if (dice(2)) cut.inside[v] = 1, nodes.push_back(v);
      bool has_terminal = std::any_of(nodes.begin(), nodes.end(), [&](Vertex v) { return plain.terminal[v] != 0; });
      if (!has_terminal) continue;
      auto index = cuts.add(nodes, cut.slack);
      if (index >= 0) known.push_back(cut);
      CHECK_EQ(cuts.add({nodes.rbegin(), nodes.rend()}, 0), -1);  // known in any order
      CHECK_EQ(cuts.size(), static_cast<std::int32_t>(known.size()));
    }
    Vertex root = dice(plain.num_vertices());
    while (!plain.terminal[root]) root = dice(plain.num_vertices());
    Amount multiplicity = 1 + dice(3);
    GrowingTree tree{network, root};
    cuts.start_tree(root, multiplicity);
    std::size_t terminals = std::count(plain.terminal.begin(), plain.terminal.end(), 1);
    for (int tries = 0; tree.landed.size() < terminals && tries < 2000; ++tries) {
      std::vector<Arc> path = random_path(graph, tree, dice);
      if (path.empty()) continue;
      Vertex landing = graph.head(path.back());
      bool lands = true, begins = true;
      for (const KnownCut& cut : known) {
        Amount now = tree.potential(cut.inside), times = tree.times_entered(cut.inside, path);
        Amount missing = tree.missing(cut.inside), found = missing - tree.missing(cut.inside, landing);
        if (times == 0) continue;
        lands &= potential_allows(now + times - std::min(found, times), multiplicity, cut.slack);
        begins &= potential_allows(now + times - std::min(missing, times), multiplicity, cut.slack);
      }
      CHECK_EQ(cuts.allows(path, landing), lands);
      CHECK_EQ(cuts.allows(path, -1), begins);
      ++(lands ? counts.first : counts.second);
      cuts.take(path, landing);  // allowed or not
      tree.take(path, landing);
    }
    if (tree.landed.size() < terminals) continue;
    Amount limit = 50;
    std::vector<Amount> growth;
    std::vector<std::pair<std::int32_t, Amount>> use;
    for (Arc e : tree.arcs) use.emplace_back(network.action.arc_class[e], network.action.images_per_arc[network.action.arc_class[e]]);
    cuts.growth_of(root, use, growth);
    for (std::size_t i = 0; i < known.size(); ++i) {
      Amount expected = tree.potential(known[i].inside);
      CHECK_EQ(growth[i], expected);
      if (expected > 0) limit = std::min(limit, known[i].slack / expected);
    }
    CHECK_EQ(cuts.largest_multiplicity(50), limit);
    cuts.charge_tree(limit);
    for (std::size_t i = 0; i < known.size(); ++i) {
      known[i].slack -= limit * growth[i];
      CHECK_EQ(cuts.slack(static_cast<std::int32_t>(i)), known[i].slack);
      CHECK(known[i].slack >= 0);
    }
  }
  return counts;
}

}  // namespace

TEST(cuts_count_as_the_definitions_do) {
  Dice dice(11);
  std::pair<int, int> counts;
  for (int trial = 0; trial < 150; ++trial) {
    RandomNetwork shape;
    shape.terminals = 2 + dice(5), shape.switches = dice(5), shape.cycles = 2 + dice(6);
    Network network = random_network(shape, dice);
    auto [allowed, barred] = compare_with_definitions(without_symmetry(network), dice);
    counts.first += allowed, counts.second += barred;
  }
  CHECK(counts.first > 500 && counts.second > 500);
}

TEST(cuts_count_all_images_of_a_template) {
  Dice dice(12);
  std::pair<int, int> counts;
  std::vector<SymmetricNetwork> networks{torus({5}, {1}), torus({3, 4}, {1, 2}), torus({2, 2, 3}, {1, 1, 1}),
                                         turning_boxes(2, 3, 10, 1), turning_boxes(3, 2, 1, 4),
                                         turning_leaves(3, 2, 1, 1), ring_of_switches(5, 1, 1)};
  for (const SymmetricNetwork& network : networks) {
    for (int trial = 0; trial < 20; ++trial) {
      auto [allowed, barred] = compare_with_definitions(network, dice);
      counts.first += allowed, counts.second += barred;
    }
  }
  CHECK(counts.first > 500 && counts.second > 500);
}

TEST(parallel_arcs_enter_a_cut_once_each) {
  Network network;
  Vertex a = network.add(true), b = network.add(true);
  for (int i = 0; i < 3; ++i) network.arc(a, b, 1);
  Digraph graph = network.graph();
  GroupAction action = GroupAction::trivial(graph);
  CutFamily cuts(graph, action);
  CHECK_EQ(cuts.add({b}, 0), 0);
  for (Arc e = 0; e < 3; ++e) CHECK(cuts.entered(e).size() == 1 && cuts.entered(e)[0] == (std::pair<std::int32_t, Amount>{0, 1}));
  cuts.start_tree(a, 1);
  std::vector<Arc> first{0}, second{1};
  CHECK(cuts.allows(first, b));
  cuts.take(first, b);
  CHECK(!cuts.allows(second, b));
}

TEST(a_tight_cut_may_be_entered_once_and_only_to_land) {
  // a -> w -> b with a way back: the set {w, b} has no slack.
  Network network;
  Vertex a = network.add(true), b = network.add(true), w = network.add(false), outside = network.add(false);
  network.arc(a, w, 2), network.arc(w, b, 1), network.arc(w, outside, 1), network.arc(outside, w, 1);
  Digraph graph = network.graph();
  GroupAction action = GroupAction::trivial(graph);
  CutFamily cuts(graph, action);
  cuts.add({w, b}, 0);
  cuts.start_tree(a, 1);
  CHECK_EQ(cuts.entries_left(0), 0);
  std::vector<Arc> begin{0}, lands{0, 1}, detour{0, 2, 3, 1};
  CHECK(cuts.allows(begin, -1));
  CHECK(cuts.allows(lands, b));
  CHECK(!cuts.allows(detour, b));
  cuts.change_slack(0, 1);
  CHECK_EQ(cuts.entries_left(0), 1);
  CHECK(cuts.allows(detour, b));
  cuts.lower_multiplicity(1), cuts.take(detour, b);
  CHECK_EQ(cuts.entries_left(0), 0);
  CHECK_EQ(cuts.largest_multiplicity(7), 1);
}

TEST(an_exchange_counts_like_its_classes) {
  SymmetricNetwork network = torus({4, 4}, {1, 1});
  Digraph graph = network.network.graph();
  CutFamily cuts(graph, network.action);
  cuts.add({0, 1, 4, 5}, 1000);
  GrowingTree tree{network, 0};
  cuts.start_tree(0, 1);
  Dice dice(3);
  std::vector<std::uint8_t> inside(16, 0);
  for (Vertex v : {0, 1, 4, 5}) inside[v] = 1;
  while (tree.landed.size() < 16) {
    std::vector<Arc> path = random_path(graph, tree, dice);
    if (path.empty()) continue;
    cuts.take(path, graph.head(path.back()));
    tree.take(path, graph.head(path.back()));
  }
  constexpr Amount kNoLimit = std::numeric_limits<Amount>::max();
  for (int trial = 0; trial < 20; ++trial) {
    std::size_t which = static_cast<std::size_t>(dice(static_cast<int>(tree.arcs.size())));
    Arc spent = dice(graph.num_arcs());
    cuts.exchange(network.action.arc_class[tree.arcs[which]], network.action.arc_class[spent]);
    tree.arcs[which] = spent;
    CHECK_EQ(cuts.largest_multiplicity(kNoLimit), 1000 / tree.potential(inside));
  }
}
