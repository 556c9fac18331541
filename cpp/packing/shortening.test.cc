#include "packing/shortening.h"

#include "testing/testing.h"
#include "testing/packings.h"

using namespace coppice;
using namespace coppice::testing;

namespace {

/// Hops between terminals to each terminal, by following every edge to its start.
TreeDepth depth_by_definition(const Network& network, Vertex root, std::span<const Arc> arcs) {
  std::vector<Vertex> parent(network.num_vertices(), -1);
  Vertex from = -1;
  for (Arc e : arcs) {
    if (from < 0) from = network.tail[e];
    if (!network.terminal[network.head[e]]) continue;
    parent[network.head[e]] = from;
    from = -1;
  }
  TreeDepth depth;
  for (Vertex v = 0; v < network.num_vertices(); ++v) {
    if (!network.terminal[v]) continue;
    std::int32_t hops = 0;
    for (Vertex u = v; u != root; u = parent[u]) ++hops;
    depth.height = std::max(depth.height, hops);
    depth.sum += hops;
  }
  return depth;
}

/// A spanning tree by random walks, without regard to capacities; each arc is taken once for each walk.
Tree random_tree(const SymmetricNetwork& symmetric, Vertex root, Amount multiplicity, Dice& dice) {
  const Network& network = symmetric.network;
  Digraph graph = network.graph();
  Tree tree{root, multiplicity, {}, {}};
  std::vector<Vertex> reached{root};
  auto terminals = static_cast<std::size_t>(std::count(network.terminal.begin(), network.terminal.end(), 1));
  while (reached.size() < terminals) {
    std::vector<Vertex> path{reached[dice(2) ? reached.size() - 1 : static_cast<std::size_t>(dice(static_cast<int>(reached.size())))]};
    std::vector<Arc> arcs;
    for (;;) {
      auto out = graph.out(path.back());
      if (out.empty()) break;
      arcs.push_back(out[dice(static_cast<int>(out.size()))]);
      Vertex to = graph.head(arcs.back());
      if (std::count(path.begin(), path.end(), to) || std::count(reached.begin(), reached.end(), to)) break;
      path.push_back(to);
      if (!network.terminal[to]) continue;
      reached.push_back(to);
      tree.arcs.insert(tree.arcs.end(), arcs.begin(), arcs.end());
      break;
    }
  }
  std::vector<Amount> use(symmetric.action.num_classes(), 0);
  for (Arc e : tree.arcs) use[symmetric.action.arc_class[e]] += symmetric.action.images_per_arc[symmetric.action.arc_class[e]];
  for (std::int32_t arc_class = 0; arc_class < symmetric.action.num_classes(); ++arc_class)
    if (use[arc_class] > 0) tree.use.emplace_back(arc_class, use[arc_class]);
  return tree;
}

void charge(const Tree& tree, std::vector<Amount>& residual, Amount sign) {
  for (auto [arc_class, units] : tree.use) residual[arc_class] += sign * tree.multiplicity * units;
}

/// Shortens random trees with random room beside them; returns how many became shallower.
int shorten_random_trees(const SymmetricNetwork& symmetric, Dice& dice) {
  const Network& network = symmetric.network;
  Digraph graph = network.graph();
  std::vector<Tree> trees;
  for (int i = 1 + dice(4); i > 0; --i) {
    Vertex root = dice(network.num_vertices());
    while (!network.terminal[root]) root = dice(network.num_vertices());
    trees.push_back(random_tree(symmetric, root, 1 + dice(3), dice));
    CHECK_EQ(tree_fault(network, root, trees.back().arcs), "");
  }
  std::vector<Amount> capacity(symmetric.action.num_classes());
  for (Amount& c : capacity) c = dice(4);
  std::vector<Amount> residual = capacity;
  for (const Tree& tree : trees) charge(tree, capacity, 1);
  std::vector<Tree> before = trees;
  shorten_trees(graph, symmetric.action, network.terminal, residual, trees);
  int shallower = 0;
  for (std::size_t i = 0; i < trees.size(); ++i) {
    CHECK(trees[i].root == before[i].root && trees[i].multiplicity == before[i].multiplicity);
    CHECK_EQ(tree_fault(network, trees[i].root, trees[i].arcs), "");
    TreeDepth then = depth_by_definition(network, before[i].root, before[i].arcs);
    TreeDepth now = depth_by_definition(network, trees[i].root, trees[i].arcs);
    CHECK(now <= then);
    shallower += now < then;
    charge(trees[i], capacity, -1);
  }
  CHECK(capacity == residual);
  for (Amount left : residual) CHECK(left >= 0);
  return shallower;
}

}  // namespace

TEST(depth_counts_edges_between_terminals) {
  Dice dice(31);
  for (int trial = 0; trial < 200; ++trial) {
    RandomNetwork shape;
    shape.terminals = 1 + dice(7), shape.switches = dice(5);
    SymmetricNetwork network = without_symmetry(random_network(shape, dice));
    Tree tree = random_tree(network, 0, 1, dice);
    std::vector<std::int32_t> depth(network.network.num_vertices(), 99);
    TreeDepth found = tree_depth(network.network.graph(), network.network.terminal, 0, tree.arcs, depth);
    CHECK(found == depth_by_definition(network.network, 0, tree.arcs));
  }
}

TEST(shortened_trees_span_and_keep_the_books) {
  Dice dice(32);
  int shallower = 0;
  for (int trial = 0; trial < 400; ++trial) {
    RandomNetwork shape;
    shape.terminals = 1 + dice(8), shape.switches = dice(6);
    shallower += shorten_random_trees(without_symmetry(random_network(shape, dice)), dice);
  }
  CHECK(shallower > 200);
}

TEST(shortened_templates_span_and_keep_the_books) {
  Dice dice(33);
  int shallower = 0;
  for (int trial = 0; trial < 40; ++trial) {
    shallower += shorten_random_trees(torus({3 + dice(3), 3 + dice(3)}, {1, 1}), dice);
    shallower += shorten_random_trees(turning_boxes(2 + dice(2), 2 + dice(3), 1, 1), dice);
  }
  CHECK(shallower > 20);
}

TEST(a_chain_becomes_a_star_where_there_is_room) {
  Network network;
  for (int v = 0; v < 5; ++v) network.add(true);
  Tree chain{0, 2, {}, {}};
  for (Vertex a = 0; a < 5; ++a) {
    for (Vertex b = 0; b < 5; ++b) {
      if (a == b) continue;
      if (b == a + 1) chain.arcs.push_back(network.num_arcs()), chain.use.emplace_back(network.num_arcs(), 1);
      network.arc(a, b, 2);
    }
  }
  SymmetricNetwork plain = without_symmetry(network);
  std::vector<Amount> residual = network.capacity;
  charge(chain, residual, -1);
  std::vector<Tree> trees{chain};
  CHECK_THROWS(Cancelled, shorten_trees(network.graph(), plain.action, network.terminal, residual, trees, [] { return true; }));
  shorten_trees(network.graph(), plain.action, network.terminal, residual, trees);
  CHECK_EQ(depth_by_definition(network, 0, trees[0].arcs).height, 1);
}

TEST(a_tree_that_would_grow_deeper_stays) {
  // Growing again takes the wide way w -> b, from which c is three hops away instead of two.
  Network network;
  Vertex r = network.add(true), a = network.add(true), b = network.add(true), c = network.add(true), w = network.add(false);
  network.arc(r, w, 1), network.arc(w, a, 1), network.arc(a, b, 1), network.arc(a, c, 1);
  network.arc(w, b, 2), network.arc(b, a, 1), network.arc(r, c, 0);
  Tree tree{r, 1, {0, 1, 2, 3}, {{0, 1}, {1, 1}, {2, 1}, {3, 1}}};
  SymmetricNetwork plain = without_symmetry(network);
  std::vector<Amount> residual = network.capacity;
  charge(tree, residual, -1);
  std::vector<Amount> before = residual;
  std::vector<Tree> trees{tree};
  shorten_trees(network.graph(), plain.action, network.terminal, residual, trees);
  CHECK(trees[0].arcs == tree.arcs);
  CHECK(residual == before);
}
