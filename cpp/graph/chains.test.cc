#include "graph/chains.h"

#include <vector>

#include "cuts/feasibility.h"
#include "testing/networks.h"
#include "testing/testing.h"

using namespace coppice;
using namespace coppice::testing;

TEST(a_nic_is_passed_and_what_leads_back_or_nowhere_is_left_out) {
  // GPU 0 <-> NIC 1 <-> switch 2 <-> GPUs 3 and 4; NIC 5 leads from GPU 0 nowhere else, NIC 6 only from GPU 3 to GPU 4.
  Digraph graph(7, std::vector<Vertex>{0, 1, 1, 2, 2, 3, 2, 4, 0, 5, 3, 6}, std::vector<Vertex>{1, 0, 2, 1, 3, 2, 4, 2, 5, 0, 6, 4});
  Chains chains(graph, std::vector<std::uint8_t>{1, 0, 0, 1, 1, 0, 0});
  std::vector<std::vector<Arc>> along;
  for (Arc e = 0; e < chains.graph().num_arcs(); ++e) along.emplace_back(chains.arcs(e).begin(), chains.arcs(e).end());
  CHECK(along == (std::vector<std::vector<Arc>>{{0, 2}, {3, 1}, {4}, {5}, {6}, {7}, {10, 11}}));
  CHECK(chains.lengths() == (std::vector<std::int32_t>{2, 2, 1, 1, 1, 1, 2}));
  CHECK(chains.least(std::vector<Amount>{9, 1, 7, 3, 4, 5, 6, 7, 8, 9, 2, 8}) == (std::vector<Amount>{7, 1, 4, 5, 6, 7, 2}));
}

TEST(switches_with_parallel_arcs_or_more_neighbours_stay) {
  Digraph parallel(3, std::vector<Vertex>{0, 0, 1}, std::vector<Vertex>{1, 1, 2});
  CHECK_EQ(Chains(parallel, std::vector<std::uint8_t>{1, 0, 1}).graph().num_arcs(), 3);
  Digraph terminals(3, std::vector<Vertex>{0, 1}, std::vector<Vertex>{1, 2});
  CHECK_EQ(Chains(terminals, std::vector<std::uint8_t>{1, 1, 1}).graph().num_arcs(), 2);
  CHECK_EQ(Chains(terminals, std::vector<std::uint8_t>{1, 0, 1}).graph().num_arcs(), 1);
}

TEST(what_fits_is_the_same_on_the_shorter_graph) {
  Dice dice(8);
  int shorter = 0, feasible = 0;
  for (int round = 0; round < 400; ++round) {
    Network network = random_network({.terminals = 2 + dice(5), .switches = dice(5), .cycles = dice(6), .series_nodes = dice(9)}, dice);
    for (Amount& capacity : network.capacity) capacity = std::max<Amount>(capacity + dice(3) - 1, 0);
    Digraph graph = network.graph();
    Chains chains(graph, network.terminal);
    shorter += chains.graph().num_arcs() < graph.num_arcs();
    const auto fits = [&](const Digraph& of, const std::vector<Amount>& capacity) {
      FeasibilityCheck<Amount> check(of, network.terminal);
      return check.violated(capacity, network.roots, network.num_trees(), 1).empty();
    };
    const auto least = chains.least(network.capacity);
    CHECK_EQ(fits(graph, network.capacity), fits(chains.graph(), least));
    feasible += fits(graph, network.capacity);
    for (Arc e = 0; e < chains.graph().num_arcs(); ++e) {
      Vertex at = chains.graph().tail(e);
      for (Arc along : chains.arcs(e)) {
        CHECK_EQ(graph.tail(along), at);
        CHECK(least[e] <= network.capacity[along]);
        at = graph.head(along);
        CHECK(at == chains.graph().head(e) || !network.terminal[at]);
      }
      CHECK_EQ(at, chains.graph().head(e));
    }
  }
  CHECK(shorter > 100 && feasible > 20 && feasible < 380);
}
