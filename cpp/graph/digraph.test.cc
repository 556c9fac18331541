#include "graph/digraph.h"

#include <stdexcept>

#include "testing/testing.h"
#include "testing/networks.h"

using namespace coppice;
using namespace coppice::testing;

TEST(digraph_rows_hold_each_arc_once_and_in_order) {
  Dice dice(5);
  for (int trial = 0; trial < 200; ++trial) {
    Vertex n = 2 + dice(8);
    std::vector<Vertex> tail, head;
    for (int e = dice(30); e > 0; --e) {
      Vertex a = dice(n), b = dice(n);
      if (a != b) tail.push_back(a), head.push_back(b);  // often parallel
    }
    Digraph graph(n, tail, head);
    CHECK_EQ(graph.num_vertices(), n);
    CHECK_EQ(graph.num_arcs(), static_cast<Arc>(tail.size()));
    for (Arc e = 0; e < graph.num_arcs(); ++e) CHECK(graph.tail(e) == tail[e] && graph.head(e) == head[e]);
    for (Vertex v = 0; v < n; ++v) {
      std::vector<Arc> out, in;
      for (Arc e = 0; e < graph.num_arcs(); ++e) {
        if (tail[e] == v) out.push_back(e);
        if (head[e] == v) in.push_back(e);
      }
      CHECK(std::equal(out.begin(), out.end(), graph.out(v).begin(), graph.out(v).end()));
      CHECK(std::equal(in.begin(), in.end(), graph.in(v).begin(), graph.in(v).end()));
    }
  }
}

TEST(digraph_may_be_empty) {
  CHECK_EQ(Digraph().num_vertices(), 0);
  CHECK_EQ(Digraph(0, {}, {}).num_arcs(), 0);
  Digraph lonely(3, {}, {});
  CHECK(lonely.out(2).empty() && lonely.in(0).empty());
}

TEST(digraph_refuses_loops_and_ends_outside) {
  auto build = [](Vertex n, std::vector<Vertex> tail, std::vector<Vertex> head) { return Digraph(n, tail, head); };
  CHECK_THROWS(std::invalid_argument, build(2, {0}, {2}));
  CHECK_THROWS(std::invalid_argument, build(2, {-1}, {0}));
  CHECK_THROWS(std::invalid_argument, build(2, {1}, {1}));
  CHECK_THROWS(std::invalid_argument, build(2, {0, 1}, {1}));
  CHECK_THROWS(std::invalid_argument, build(-1, {}, {}));
}
