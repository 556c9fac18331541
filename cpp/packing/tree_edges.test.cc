#include "packing/tree_edges.h"

#include <set>
#include <span>
#include <vector>

#include "testing/packings.h"
#include "testing/testing.h"

using namespace coppice;
using namespace coppice::testing;

namespace {

std::vector<Vertex> path_of(const TreeEdges& edges, std::size_t edge) {
  const std::int32_t path = edges.path[edge];
  return {edges.path_vertices.begin() + edges.path_start[path], edges.path_vertices.begin() + edges.path_start[path + 1]};
}

}  // namespace

TEST(edges_name_the_terminals_and_the_path_between_them) {
  // 0 -> switch 3 -> 1 and 0 -> 2, twice; then a tree from 1 that shares no path with them.
  Digraph graph(4, std::vector<Vertex>{0, 3, 0, 1, 1}, std::vector<Vertex>{3, 1, 2, 0, 2});
  Packing packing;
  packing.start = {0, 3, 6, 8};
  packing.arcs = {0, 1, 2, 2, 0, 1, 3, 4};
  TreeEdges edges = tree_edges(graph, std::vector<std::uint8_t>{1, 1, 1, 0}, packing);
  CHECK(edges.tree_start == (std::vector<std::int64_t>{0, 2, 4, 6}));
  CHECK(edges.src == (std::vector<Vertex>{0, 0, 0, 0, 1, 1}));
  CHECK(edges.dst == (std::vector<Vertex>{1, 2, 2, 1, 0, 2}));
  CHECK(edges.path == (std::vector<std::int32_t>{0, 1, 1, 0, 2, 3}));
  CHECK(edges.path_start == (std::vector<std::int64_t>{0, 3, 5, 7, 9}));
  CHECK(edges.path_vertices == (std::vector<Vertex>{0, 3, 1, 0, 2, 1, 0, 1, 2}));
}

TEST(edges_of_no_trees_are_none) {
  Packing packing;
  packing.start = {0};
  TreeEdges edges = tree_edges(Digraph{}, {}, packing);
  CHECK(edges.tree_start == std::vector<std::int64_t>{0});
  CHECK(edges.src.empty() && edges.path_vertices.empty());
}

TEST(edges_of_packings_give_their_arcs_back_with_every_path_once) {
  Dice dice(31);
  for (int trial = 0; trial < 60; ++trial) {
    Network network = random_network({.terminals = 2 + dice(6), .switches = dice(4), .cycles = 3 + dice(8)}, dice);
    if (!network.scale_to_bound()) continue;
    Digraph graph = network.graph();
    Packing packing = pack(network);
    TreeEdges edges = tree_edges(graph, network.terminal, packing);
    CHECK_EQ(edges.tree_start.size(), packing.start.size());
    for (std::size_t t = 0; t + 1 < packing.start.size(); ++t) {
      std::int64_t arc = packing.start[t];
      for (auto i = static_cast<std::size_t>(edges.tree_start[t]); i < static_cast<std::size_t>(edges.tree_start[t + 1]); ++i) {
        std::vector<Vertex> path = path_of(edges, i);
        CHECK_EQ(path.front(), edges.src[i]);
        CHECK_EQ(path.back(), edges.dst[i]);
        CHECK(network.terminal[path.front()] && network.terminal[path.back()]);
        for (std::size_t k = 0; k + 1 < path.size(); ++k, ++arc) {
          CHECK_EQ(graph.tail(packing.arcs[arc]), path[k]);
          CHECK_EQ(graph.head(packing.arcs[arc]), path[k + 1]);
          if (k > 0) CHECK(!network.terminal[path[k]]);
        }
      }
      CHECK_EQ(arc, packing.start[t + 1]);
    }
    std::set<std::vector<Vertex>> distinct;
    for (std::size_t i = 0; i < edges.path.size(); ++i) distinct.insert(path_of(edges, i));
    CHECK_EQ(distinct.size() + 1, edges.path_start.size());
  }
}

TEST(thousands_of_paths_are_found_again_as_the_table_grows) {
  const Vertex n = 3000;  // a star: the path to each leaf
  std::vector<Vertex> tail(n - 1, 0), head;
  Packing packing;
  packing.start = {0};
  for (Vertex v = 1; v < n; ++v) head.push_back(v);
  for (int tree = 0; tree < 2; ++tree) {
    for (Arc e = 0; e + 1 < n; ++e) packing.arcs.push_back(e);
    packing.start.push_back(static_cast<std::int64_t>(packing.arcs.size()));
  }
  TreeEdges edges = tree_edges(Digraph(n, tail, head), std::vector<std::uint8_t>(n, 1), packing);
  CHECK_EQ(edges.path_start.size(), static_cast<std::size_t>(n));
  for (std::int32_t e = 0; e + 1 < n; ++e) {
    CHECK_EQ(edges.path[e], e);
    CHECK_EQ(edges.path[n - 1 + e], e);
  }
}
