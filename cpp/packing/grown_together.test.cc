#include "packing/grown_together.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "testing/networks.h"
#include "testing/testing.h"

using namespace coppice;
using coppice::testing::Network;

namespace {

/// Whether arcs are so many trees from vertex 0 that span all vertices within the capacities.
bool are_trees(const Network& network, std::int32_t trees, const std::vector<Arc>& arcs) {
  const std::size_t edges = network.terminal.size() - 1;
  if (arcs.size() != static_cast<std::size_t>(trees) * edges) return false;
  std::vector<Amount> used(network.capacity.size(), 0);
  for (std::int32_t tree = 0; tree < trees; ++tree) {
    std::vector<std::uint8_t> reached(network.terminal.size(), 0);
    reached[0] = 1;
    for (std::size_t i = 0; i < edges; ++i) {
      const Arc e = arcs[static_cast<std::size_t>(tree) * edges + i];
      if (!reached[network.tail[e]] || reached[network.head[e]] || ++used[e] > network.capacity[e]) return false;
      reached[network.head[e]] = 1;
    }
  }
  return true;
}

std::vector<Arc> grown(const Network& network, std::int32_t trees) {
  return grow_together(network.graph(), 0, trees, network.capacity);
}

}  // namespace

TEST(trees_that_fill_all_arcs_are_grown_side_by_side) {
  const Network torus = coppice::testing::torus({4, 4, 4}, {1, 1, 1}).network;
  CHECK(are_trees(torus, 6, grown(torus, 6)));
  CHECK(grown(torus, 7).empty());
}

TEST(an_arc_that_another_tree_needs_is_refused) {
  // 0 -> 1 twice and 1 <-> 2 once: the arc 0 -> 2 belongs to the tree that does not go over 1.
  Network network;
  for (int i = 0; i < 3; ++i) network.add(true);
  network.arc(0, 1, 1), network.arc(0, 2, 1), network.arc(1, 2, 1), network.arc(2, 1, 1);
  CHECK(are_trees(network, 2, grown(network, 2)));
}

TEST(random_networks_have_trees_exactly_where_all_cuts_let_them_through) {
  coppice::testing::Dice dice(7);
  int found = 0;
  for (int sample = 0; sample < 300; ++sample) {
    Network network;
    const int vertices = 2 + dice(6), trees = 1 + dice(3);
    for (int i = 0; i < vertices; ++i) network.add(true);
    for (int i = 0; i < 5 * vertices; ++i) {
      const Vertex a = dice(vertices), b = dice(vertices);
      if (a != b) network.arc(a, b, 1 + dice(2));
    }
    bool fits = true;
    for (int set = 2; set < 1 << vertices; set += 2) {  // sets without the root
      Amount in = 0;
      for (Arc e = 0; e < network.num_arcs(); ++e)
        if (!(set >> network.tail[e] & 1) && (set >> network.head[e] & 1)) in += network.capacity[e];
      fits = fits && in >= trees;
    }
    const std::vector<Arc> arcs = grown(network, trees);
    CHECK(fits ? are_trees(network, trees, arcs) : arcs.empty());
    found += fits;
  }
  CHECK(found > 50 && found < 290);
}

TEST(arguments_of_trees_that_grow_together_have_to_fit) {
  const Network torus = coppice::testing::torus({3, 3}, {1, 1}).network;
  const std::vector<Amount> few(1, 1);
  std::vector<Amount> negative = torus.capacity;
  negative[0] = -1;
  CHECK_THROWS(std::invalid_argument, grow_together(torus.graph(), 9, 1, torus.capacity));
  CHECK_THROWS(std::invalid_argument, grow_together(torus.graph(), 0, 0, torus.capacity));
  CHECK_THROWS(std::invalid_argument, grow_together(torus.graph(), 0, 1, few));
  CHECK_THROWS(std::invalid_argument, grow_together(torus.graph(), 0, 1, negative));
}
