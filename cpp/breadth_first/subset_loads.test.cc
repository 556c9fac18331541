#include "breadth_first/subset_loads.h"

#include <vector>

#include "breadth_first/breadth_first.h"
#include "testing/testing.h"
#include "testing/networks.h"

using namespace coppice;
using namespace coppice::testing;

TEST(subsets_and_flows_find_the_same_loads) {
  Dice dice(9);
  int settled = 0;
  for (int round = 0; round < 200; ++round) {
    Network network = random_network({.terminals = 5 + dice(80), .switches = 0, .cycles = dice(30)}, dice);
    Digraph graph = network.graph();
    SubsetLoads loads(graph, {});
    for (Vertex target = 0; target < network.num_vertices(); ++target) {
      std::vector<Load> found;
      const bool few = graph.in(target).size() <= 10;
      CHECK_EQ(loads.raise(target, network.capacity, found), few);
      if (!few) continue;
      ++settled;
      // One target among many vertices is left to flows.
      StepLoads expected = balanced_loads(graph, network.capacity, std::vector<Vertex>{target});
      CHECK_EQ(found.size(), expected.numerator.size());
      for (std::size_t step = 0; step < found.size(); ++step) {
        CHECK_EQ(found[step].numerator, expected.numerator[step]);
        CHECK_EQ(found[step].denominator, expected.denominator[step]);
      }
    }
  }
  CHECK(settled > 1000);
}

TEST(subsets_raise_loads_and_never_lower_them) {
  Network ring;
  for (int v = 0; v < 4; ++v) ring.add(true);
  for (Vertex v = 0; v < 4; ++v) ring.arc(v, (v + 1) % 4, 2);
  Digraph graph = ring.graph();
  SubsetLoads loads(graph, {});
  std::vector<Load> worst{Load(6, 2), Load(1, 4)};
  CHECK(loads.raise(0, ring.capacity, worst));
  CHECK_EQ(worst.size(), 3u);
  CHECK_EQ(worst[0].numerator, 3);
  CHECK_EQ(worst[0].denominator, 1);
  for (std::size_t step : {1u, 2u}) {
    CHECK_EQ(worst[step].numerator, 1);
    CHECK_EQ(worst[step].denominator, 2);
  }
}

TEST(subsets_give_up_where_a_vertex_is_not_reached_and_stop_when_told) {
  Digraph path(3, std::vector<Vertex>{0, 1}, std::vector<Vertex>{1, 2});
  std::vector<Amount> capacity{1, 1};
  std::vector<Load> worst;
  CHECK(!SubsetLoads(path, {}).raise(2, capacity, worst));
  CHECK(worst.empty());
  CHECK_THROWS(Cancelled, SubsetLoads(path, [] { return true; }));
}
