#include "symmetry/refinement.h"

#include <limits>
#include <set>

#include "testing/testing.h"

using namespace coppice;

static ColouredGraph both_ways(Vertex n, const std::vector<std::pair<Vertex, Vertex>>& edges) {
  std::vector<Vertex> tail, head;
  for (auto [a, b] : edges) {
    tail.insert(tail.end(), {a, b});
    head.insert(head.end(), {b, a});
  }
  ColouredGraph graph{Digraph(n, tail, head), {}, {}, {}};
  graph.colour.assign(n, 0);
  graph.label.assign(tail.size(), 0);
  graph.compute.assign(n, 1);
  return graph;
}

static std::size_t num_cells(const Refinement& refinement) {
  auto cells = refinement.cells(0);
  return std::set<std::int32_t>(cells.begin(), cells.end()).size();
}

TEST(refinement_of_a_path_pairs_ends) {
  Budget budget(std::numeric_limits<std::int64_t>::max(), {});
  ColouredGraph path = both_ways(7, {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}});
  Refinement refinement(path, {}, 1);
  refinement.start(path.colour, false);
  CHECK(refinement.refine(budget));
  CHECK_EQ(num_cells(refinement), 4u);
  for (Vertex v = 0; v < 7; ++v) CHECK_EQ(refinement.cell(v), refinement.cell(6 - v));
}

TEST(refinement_sees_labels_and_directions) {
  Budget budget(std::numeric_limits<std::int64_t>::max(), {});
  ColouredGraph ring = both_ways(6, {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 0}});
  Refinement plain(ring, {}, 1);
  plain.start(ring.colour, false);
  plain.refine(budget);
  CHECK_EQ(num_cells(plain), 1u);
  ring.label[0] = 1;  // 0 -> 1 alone is different, which no vertex has twice
  Refinement marked(ring, {}, 1);
  marked.start(ring.colour, false);
  marked.refine(budget);
  CHECK_EQ(num_cells(marked), 6u);
}

TEST(copies_are_told_apart_where_no_automorphism_exists) {
  // A triangle and a square, joined at a vertex each: all degrees but two are alike.
  Budget budget(std::numeric_limits<std::int64_t>::max(), {});
  ColouredGraph graph = both_ways(8, {{0, 1}, {1, 2}, {2, 3}, {3, 0}, {4, 5}, {5, 6}, {6, 7}, {7, 4}, {0, 4}, {1, 3}});
  auto possible = [&](Vertex u, Vertex v) {
    Refinement pair(graph, {}, 2);
    pair.start(graph.colour, false);
    Vertex items[] = {u, v + 8};
    return pair.refine(budget) && pair.cell(u) == pair.cell(v + 8) && (pair.individualise(items), pair.refine(budget));
  };
  CHECK(possible(1, 3));
  CHECK(possible(5, 7));
  CHECK(!possible(1, 5));
  CHECK(!possible(0, 4));
  CHECK(!possible(2, 6));
}

TEST(individualised_rings_fall_apart_by_distance) {
  Budget budget(std::numeric_limits<std::int64_t>::max(), {});
  std::vector<std::pair<Vertex, Vertex>> edges;
  for (Vertex v = 0; v < 1000; ++v) edges.emplace_back(v, (v + 1) % 1000);
  ColouredGraph ring = both_ways(1000, edges);
  Refinement pair(ring, {}, 2);
  pair.start(ring.colour, true);
  Vertex items[] = {0, 1300};
  pair.individualise(items);
  CHECK(pair.refine(budget));
  CHECK_EQ(num_cells(pair), 501u);
  for (Vertex v = 0; v < 1000; ++v) CHECK_EQ(pair.cell(v), pair.cell(1000 + (v + 300) % 1000));
}
