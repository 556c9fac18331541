#include "packing/tree_grower.h"

#include "testing/testing.h"
#include "testing/packings.h"

using namespace coppice;
using namespace coppice::testing;

namespace {

/// A grower with all that it refers to; cuts may be added.
struct Growing {
  explicit Growing(SymmetricNetwork symmetric)
      : network(std::move(symmetric)),
        graph(network.network.graph()),
        cuts(graph, network.action),
        residual(network.action.num_classes()),
        grower(graph, network.action, network.network.terminal, cuts, residual) {
    for (Arc e = 0; e < graph.num_arcs(); ++e) residual[network.action.arc_class[e]] = network.network.capacity[e];
  }
  explicit Growing(Network plain) : Growing(without_symmetry(std::move(plain))) {}

  SymmetricNetwork network;
  Digraph graph;
  CutFamily cuts;
  std::vector<Amount> residual;
  TreeGrower grower;
};

}  // namespace

TEST(trees_grow_breadth_first_and_are_charged) {
  Network network;
  for (int v = 0; v < 4; ++v) network.add(true);
  for (Vertex v = 0; v < 4; ++v) network.link(v, (v + 1) % 4, 3);
  Growing growing(network);
  growing.grower.start(0, 2);
  CHECK(growing.grower.growing());
  CHECK(growing.grower.grow());
  CHECK(growing.grower.spans());
  Tree tree = growing.grower.finish(7);
  CHECK(!growing.grower.growing());
  CHECK_EQ(tree.multiplicity, 3);  // what the residuals allow, more than was asked for while growing
  CHECK_EQ(tree_fault(network, tree.root, tree.arcs), "");
  CHECK_EQ(tree.arcs.size(), 3u);
  CHECK(network.tail[tree.arcs[0]] == 0 && network.tail[tree.arcs[1]] == 0);  // both neighbours first
  for (Arc e = 0; e < network.num_arcs(); ++e)
    CHECK_EQ(growing.residual[e], std::count(tree.arcs.begin(), tree.arcs.end(), e) ? 0 : 3);
  for (auto [arc_class, units] : tree.use) CHECK_EQ(units, 1);
}

TEST(abandoned_and_lowered_trees_give_back_what_they_used) {
  Dice dice(4);
  int stuck = 0;
  for (int trial = 0; trial < 300; ++trial) {
    RandomNetwork shape;
    shape.terminals = 2 + dice(5), shape.switches = dice(5), shape.cycles = dice(6);
    Growing growing(random_network(shape, dice));
    std::vector<Amount> before = growing.residual;
    growing.grower.start(0, 4);
    bool spans = growing.grower.grow();
    std::vector<Amount> at_four = growing.residual;
    growing.grower.lower_multiplicity(1);
    CHECK_EQ(growing.grower.multiplicity(), 1);
    for (std::size_t e = 0; e < before.size(); ++e) {
      CHECK_EQ((before[e] - at_four[e]) % 4, 0);
      CHECK_EQ(before[e] - growing.residual[e], (before[e] - at_four[e]) / 4);
    }
    if (!spans) ++stuck, spans = growing.grower.grow();
    CHECK(spans);  // every arc has room for one tree and no cut is known
    growing.grower.abandon();
    CHECK(before == growing.residual);
  }
  CHECK(stuck > 100);
}

TEST(spread_over_parallel_switches) {
  // Two switches of equal capacity between two GPUs: the second tree takes the other one.
  Network network;
  Vertex a = network.add(true), b = network.add(true);
  for (int i = 0; i < 2; ++i) {
    Vertex nic = network.add(false);
    network.link(a, nic, 2), network.link(nic, b, 2);
  }
  Growing growing(network);
  std::vector<Vertex> through;
  for (int i = 0; i < 2; ++i) {
    growing.grower.start(a, 1);
    CHECK(growing.grower.grow());
    through.push_back(network.head[growing.grower.finish(1).arcs.front()]);
  }
  CHECK(through[0] != through[1]);
}

TEST(a_switch_first_met_over_an_arc_now_used_up_is_met_over_another) {
  // x -> s (2) -> w (1) and x -> t (1) -> w: w -> b and w -> c need both ways into w.
  Network network;
  Vertex x = network.add(true), b = network.add(true), c = network.add(true);
  Vertex s = network.add(false), t = network.add(false), w = network.add(false);
  network.arc(x, s, 2), network.arc(s, w, 1), network.arc(x, t, 1), network.arc(t, w, 1);
  network.arc(w, b, 1), network.arc(w, c, 1);
  Growing growing(network);
  growing.grower.start(x, 1);
  CHECK(growing.grower.grow());
  CHECK_EQ(tree_fault(network, x, growing.grower.finish(1).arcs), "");
}

TEST(growth_keeps_the_learned_cuts) {
  // b is reached from a directly or over c; the cut {b, c} has no slack, so c must not be reached a second way.
  Network network;
  Vertex a = network.add(true), b = network.add(true), c = network.add(true);
  network.arc(a, b, 1), network.arc(a, c, 1), network.link(b, c, 1);
  Growing growing(network);
  growing.cuts.add({b, c}, 0);
  growing.grower.start(a, 1);
  CHECK(growing.grower.grow());
  Tree tree = growing.grower.finish(1);
  CHECK_EQ(tree.multiplicity, 1);
  CHECK_EQ(std::count_if(tree.arcs.begin(), tree.arcs.end(), [&](Arc e) { return network.tail[e] == a; }), 1);
  CHECK_EQ(growing.cuts.slack(0), 0);
}

TEST(a_single_terminal_is_a_tree_without_arcs) {
  Network network;
  Vertex only = network.add(true);
  network.link(only, network.add(false), 1);
  Growing growing(network);
  growing.grower.start(only, 5);
  CHECK(growing.grower.grow());
  Tree tree = growing.grower.finish(5);
  CHECK(tree.arcs.empty() && tree.use.empty());
  CHECK_EQ(tree.multiplicity, 5);
}

TEST(exchanges_let_templates_use_every_class_up) {
  // Four templates, each of 63 of the 252 units there are. Three are alike, the last one has to take what is left.
  SymmetricNetwork network = torus({8, 8}, {63, 63});
  Growing growing(network);
  growing.cuts.add({0}, 0);  // every way out of the first vertex is needed
  int exchanges = 0;
  for (Amount left = 4, units = 0; left > 0; left -= units) {
    growing.grower.start(0, left);
    while (!growing.grower.grow()) {
      if (growing.grower.exchange()) {
        ++exchanges;
      } else if (growing.grower.multiplicity() > 1) {
        growing.grower.lower_multiplicity(growing.grower.multiplicity() / 2);
      } else {
        break;
      }
    }
    CHECK(growing.grower.spans());
    if (!growing.grower.spans()) return;
    Tree tree = growing.grower.finish(left);
    units = tree.multiplicity;
    CHECK(units > 0);
    CHECK_EQ(tree_fault(network.network, tree.root, tree.arcs), "");  // edges in an order that can be sent
    Amount arcs = 0;
    for (auto [arc_class, times] : tree.use) arcs += times;
    CHECK_EQ(arcs, 63);
  }
  CHECK(exchanges > 0);
  for (Amount left : growing.residual) CHECK_EQ(left, 0);
}

TEST(exchanges_keep_the_books) {
  // With rates that leave no choice at random: residuals always are the capacity less what the tree uses.
  Dice dice(9);
  int exchanges = 0;
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<Amount> dims{3 + dice(4), 3 + dice(4)};
    SymmetricNetwork network = torus(dims, {1, 1});
    Amount left = dims[0] * dims[1] - 1;
    Growing growing(network);
    for (std::int32_t arc_class = 0; arc_class < 4; ++arc_class) {
      growing.residual[arc_class] = arc_class < 3 ? dice(static_cast<int>(left) + 1) : left;
      left -= growing.residual[arc_class];
    }
    std::vector<Amount> before = growing.residual;
    growing.grower.start(0, 1);
    bool spans = growing.grower.grow();
    while (!spans && growing.grower.exchange()) ++exchanges, spans = growing.grower.grow();
    if (!spans) {
      growing.grower.abandon();
      CHECK(before == growing.residual);
      continue;
    }
    Tree tree = growing.grower.finish(1);
    CHECK_EQ(tree.multiplicity, 1);
    CHECK_EQ(tree_fault(network.network, tree.root, tree.arcs), "");
    for (auto [arc_class, units] : tree.use) before[arc_class] -= units;
    CHECK(before == growing.residual);
  }
  CHECK(exchanges > 10);
}
