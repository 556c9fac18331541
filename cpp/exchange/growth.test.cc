#include "exchange/growth.h"

#include <deque>

#include "testing/networks.h"
#include "testing/testing.h"

using namespace coppice;
using namespace coppice::testing;

namespace {

std::vector<std::int32_t> ones(const Digraph& graph) { return std::vector<std::int32_t>(graph.num_arcs(), 1); }

// GPU-to-GPU hops from a vertex to every terminal; -1 where there is no way.
std::vector<std::int32_t> hops(const Network& network, Vertex root) {
  Digraph graph = network.graph();
  std::vector<std::int32_t> hops(network.num_vertices(), -1);
  std::deque<Vertex> open{root};
  for (hops[root] = 0; !open.empty(); open.pop_front()) {
    const Vertex v = open.front();
    for (Arc e : graph.out(v)) {
      const Vertex to = graph.head(e);
      const std::int32_t length = hops[v] + network.terminal[to];
      if (hops[to] >= 0 && hops[to] <= length) continue;
      hops[to] = length;
      open.push_back(to);
    }
  }
  return hops;
}

}  // namespace

TEST(a_switch_is_entered_anew_when_the_way_in_is_used_up) {
  Network network;
  const Vertex middle = network.add(false), last = network.add(false);
  for (int k = 0; k < 6; ++k) network.link(network.add(true), k < 3 ? middle : last, 1);
  network.link(middle, last, 1);
  network.roots[2] = 1;
  Digraph graph = network.graph();
  const auto lengths = ones(graph);
  for (std::int32_t most_height : {1, 3, 5}) {
    Bundles bundles(graph, network.terminal, network.roots, network.capacity);
    Growth(bundles, lengths, 1, most_height).grow(0);
    CHECK_EQ(bundles[0].missing, 5 - most_height);
    CHECK_EQ(bundles.height(), most_height);
  }
}

TEST(with_room_everywhere_steep_growth_hangs_each_terminal_as_high_as_can_be) {
  Dice dice(5);
  int deep = 0;
  for (int round = 0; round < 300; ++round) {
    Network network = random_network({.terminals = 1 + dice(9), .switches = dice(8), .cycles = dice(6), .series_nodes = dice(4)}, dice);
    for (Amount& capacity : network.capacity) capacity = 1000 * (1 + dice(9));
    Digraph graph = network.graph();
    const auto lengths = ones(graph);
    Bundles bundles(graph, network.terminal, network.roots, network.capacity);
    Growth growth(bundles, lengths, 1e3, network.num_vertices());
    for (std::int32_t b = 0; b < bundles.size(); ++b) {
      growth.grow(b);
      const auto least = hops(network, bundles[b].root);
      for (Vertex v : bundles.terminals()) CHECK_EQ(bundles[b].depth[bundles.index(v)], least[v]);
    }
    deep += bundles.height() > 2;
  }
  CHECK(deep > 50);
}

TEST(what_grows_stays_within_the_capacities) {
  Dice dice(6);
  std::int64_t missing = 0, places = 0;
  for (int round = 0; round < 300; ++round) {
    Network network = random_network({.terminals = 2 + dice(9), .switches = dice(8), .cycles = dice(9), .series_nodes = dice(4)}, dice);
    CHECK(network.scale_to_bound());
    Digraph graph = network.graph();
    const auto lengths = ones(graph);
    Bundles bundles(graph, network.terminal, network.roots, network.capacity);
    const std::int32_t most_height = 1 + dice(6);
    Growth growth(bundles, lengths, 1 + dice(3), most_height);
    for (int again = 0; again < 2; ++again) {
      for (std::int32_t b = 0; b < bundles.size(); ++b) growth.grow(b);
      for (Arc e = 0; e < graph.num_arcs(); ++e) CHECK(bundles.residual(e) >= 0);
      CHECK(bundles.height() <= most_height);
    }
    missing += bundles.missing(), places += bundles.places();
  }
  CHECK(missing > 0 && 2 * missing < places);
}
