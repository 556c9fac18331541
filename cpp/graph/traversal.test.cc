#include "graph/traversal.h"

#include <algorithm>
#include <vector>

#include "testing/networks.h"
#include "testing/testing.h"

using namespace coppice;
using namespace coppice::testing;

TEST(orders_go_outwards_and_then_on_from_the_least_unseen_vertex) {
  // 4 -> 1 <- 3 and 2 -> 0.
  Digraph graph(5, std::vector<Vertex>{4, 3, 2}, std::vector<Vertex>{1, 1, 0});
  CHECK(breadth_first_order(graph, 4) == (std::vector<Vertex>{4, 1, 3, 0, 2}));
  CHECK(breadth_first_order(graph, 5) == (std::vector<Vertex>{0, 2, 1, 4, 3}));
  CHECK(breadth_first_order(Digraph{}, 0).empty());
}

TEST(parts_are_joined_within_and_apart_from_each_other) {
  Dice dice(21);
  int several = 0;
  for (int round = 0; round < 300; ++round) {
    Network network = random_network({.terminals = 3 + dice(12), .switches = dice(8), .cycles = dice(6)}, dice);
    Digraph graph = network.graph();
    std::vector<std::uint8_t> removed(network.num_vertices());
    for (auto& flag : removed) flag = dice(3) == 0;
    auto parts = parts_without(graph, removed);
    std::vector<std::int32_t> part_of(network.num_vertices(), -1);
    for (std::size_t p = 0; p < parts.size(); ++p) {
      CHECK_EQ(*std::min_element(parts[p].begin(), parts[p].end()), parts[p].front());
      if (p > 0) CHECK(parts[p - 1].front() < parts[p].front());
      for (std::size_t i = 0; i < parts[p].size(); ++i) {
        Vertex v = parts[p][i];
        CHECK_EQ(part_of[v], -1);
        part_of[v] = static_cast<std::int32_t>(p);
        bool joined = i == 0;
        for (std::size_t j = 0; j < i && !joined; ++j) {
          for (Arc e : graph.out(v)) joined |= graph.head(e) == parts[p][j];
          for (Arc e : graph.in(v)) joined |= graph.tail(e) == parts[p][j];
        }
        CHECK(joined);
      }
    }
    for (Vertex v = 0; v < network.num_vertices(); ++v) CHECK_EQ(part_of[v] < 0, removed[v] != 0);
    for (Arc e = 0; e < graph.num_arcs(); ++e)
      if (!removed[graph.tail(e)] && !removed[graph.head(e)]) CHECK_EQ(part_of[graph.tail(e)], part_of[graph.head(e)]);
    several += parts.size() > 1;
  }
  CHECK(several > 30);
}
