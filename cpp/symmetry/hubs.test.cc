#include "symmetry/hubs.h"

#include <limits>

#include "testing/testing.h"

using namespace coppice;

/// Boxes of two linked compute vertices, all on one switch: the last vertex.
static ColouredGraph boxes_on_a_switch(Vertex num_boxes) {
  std::vector<Vertex> tail, head;
  auto link = [&](Vertex a, Vertex b) {
    tail.insert(tail.end(), {a, b});
    head.insert(head.end(), {b, a});
  };
  for (Vertex box = 0; box < num_boxes; ++box) {
    link(2 * box, 2 * box + 1);
    link(2 * box, 2 * num_boxes);
    link(2 * box + 1, 2 * num_boxes);
  }
  ColouredGraph graph{Digraph(2 * num_boxes + 1, tail, head), {}, {}, {}};
  graph.label.assign(tail.size(), 0);
  graph.colour.assign(2 * num_boxes + 1, 0);
  graph.compute.assign(2 * num_boxes + 1, 1);
  graph.colour.back() = 1;
  graph.compute.back() = 0;
  return graph;
}

TEST(boxes_move_in_one_cycle_around_their_switch) {
  Budget budget(std::numeric_limits<std::int64_t>::max(), {});
  ColouredGraph graph = boxes_on_a_switch(5);
  auto reduction = reduce_by_hubs(graph, budget);
  CHECK(reduction.has_value());
  if (!reduction) return;
  CHECK_EQ(reduction->order, 5);
  CHECK_EQ(reduction->quotient.graph.num_vertices(), 3);
  CHECK_EQ(reduction->quotient.graph.num_arcs(), 6);
  CHECK_EQ(reduction->shift[10], 10);
  for (Vertex v = 0; v < 10; ++v) CHECK(reduction->shift[v] / 2 == (v / 2 + 1) % 5);
  // Exchanging the two vertices of the box that is kept exchanges them in every box.
  VertexMap lifted = reduction->lifted({1, 0, 2});
  for (Vertex v = 0; v < 10; ++v) {
    CHECK_EQ(lifted[v], v ^ 1);
    CHECK_EQ(lifted[reduction->shift[v]], reduction->shift[lifted[v]]);
  }
  CHECK_EQ(lifted[10], 10);
}

TEST(unequal_boxes_do_not_move) {
  Budget budget(std::numeric_limits<std::int64_t>::max(), {});
  ColouredGraph graph = boxes_on_a_switch(5);
  graph.label[0] = graph.label[1] = 1;
  CHECK(!reduce_by_hubs(graph, budget).has_value());
}
