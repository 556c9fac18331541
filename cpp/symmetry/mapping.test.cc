#include "symmetry/mapping.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "testing/testing.h"

using namespace coppice;

namespace {

ColouredGraph rings(const std::vector<Vertex>& lengths) {
  std::vector<Vertex> tail, head;
  Vertex n = 0;
  for (Vertex length : lengths) {
    for (Vertex v = 0; v < length; ++v) {
      Vertex a = n + v, b = n + (v + 1) % length;
      tail.insert(tail.end(), {a, b});
      head.insert(head.end(), {b, a});
    }
    n += length;
  }
  ColouredGraph graph{Digraph(n, tail, head), {}, {}, {}};
  graph.colour.assign(n, 0);
  graph.label.assign(tail.size(), 0);
  graph.compute.assign(n, 1);
  return graph;
}

std::vector<Vertex> range(Vertex first, Vertex last) {
  std::vector<Vertex> vertices(last - first);
  std::iota(vertices.begin(), vertices.end(), first);
  return vertices;
}

struct Trial {
  explicit Trial(const ColouredGraph& g) : search(g) {
    rules.source_colour = g.colour;
    rules.target_colour = g.colour;
    rules.steps = 1'000'000;
  }
  bool run(std::pair<Vertex, Vertex> seed) {
    rules.sources = sources;
    rules.targets = targets;
    return search.run(rules, seed, budget, [](const VertexMap&) { return true; });
  }
  Budget budget{std::numeric_limits<std::int64_t>::max(), {}};
  MappingSearch search;
  MappingSearch::Rules rules;
  std::vector<Vertex> sources, targets;
};

}  // namespace

TEST(parts_map_only_onto_their_like) {
  ColouredGraph graph = rings({6, 3, 3, 6});
  Trial trial(graph);
  trial.sources = range(0, 6);
  trial.targets = range(6, 12);  // two triangles: all vertices look alike, but it is not a hexagon
  CHECK(!trial.run({-1, -1}));
  trial.targets = range(12, 18);
  CHECK(trial.run({-1, -1}));
  const VertexMap& map = trial.search.map();
  for (Vertex v = 0; v < 6; ++v) {
    Vertex step = std::abs(map[v] - map[(v + 1) % 6]);
    CHECK(step == 1 || step == 5);
  }
  for (Vertex v = 6; v < 18; ++v) CHECK_EQ(map[v], -1);
}

TEST(dense_parts_map_link_by_link) {
  // Complements of rings of 24, the second with scrambled ids: numbers of links alone leave room for wrong maps.
  std::mt19937 random(7);
  for (int trial_number = 0; trial_number < 20; ++trial_number) {
    std::vector<Vertex> place = range(24, 48), tail, head;
    std::shuffle(place.begin(), place.end(), random);
    std::set<std::pair<Vertex, Vertex>> links;  // in the order of ids, which tells nothing of the ring
    for (Vertex a = 0; a < 24; ++a)
      for (Vertex jump = 2; jump < 23; ++jump) {
        links.emplace(a, (a + jump) % 24);
        links.emplace(place[a], place[(a + jump) % 24]);
      }
    for (auto [a, b] : links) {
      tail.push_back(a);
      head.push_back(b);
    }
    ColouredGraph graph{Digraph(48, tail, head), {}, {}, {}};
    graph.colour.assign(48, 0);
    graph.compute.assign(48, 1);
    graph.label.assign(tail.size(), 0);
    Trial trial(graph);
    trial.sources = range(0, 24);
    trial.targets = range(24, 48);
    CHECK(trial.run({-1, -1}));
    for (Vertex a = 0; a < 24; ++a)
      for (Vertex jump = 2; jump < 23; ++jump)
        CHECK(links.contains({trial.search.map()[a], trial.search.map()[(a + jump) % 24]}));
  }
}

TEST(maps_commute_with_given_symmetries) {
  ColouredGraph graph = rings({12});
  std::vector<VertexMap> quarter{VertexMap(12)};
  for (Vertex v = 0; v < 12; ++v) quarter[0][v] = (v + 3) % 12;
  Trial trial(graph);
  trial.sources = trial.targets = range(0, 12);
  trial.rules.symmetries = quarter;
  CHECK(trial.run({0, 1}));  // of the rotation and the reflection that send 0 to 1 only the rotation commutes
  for (Vertex v = 0; v < 12; ++v) CHECK_EQ(trial.search.map()[v], (v + 1) % 12);
}

TEST(vertices_of_one_orbit_may_be_kept_apart) {
  ColouredGraph graph = rings({4});
  std::vector<std::int32_t> orbit{0, 1, 0, 1};
  Trial trial(graph);
  trial.sources = trial.targets = range(0, 4);
  CHECK(trial.run({0, 2}));
  trial.rules.orbit = orbit;
  CHECK(!trial.run({0, 2}));
  CHECK(trial.run({0, 1}));
}

TEST(displacements_count_shortest_paths) {
  ColouredGraph graph = rings({6});
  Budget budget(std::numeric_limits<std::int64_t>::max(), {});
  Displacements displacements(graph);
  auto opposite = displacements.relation(0, 3, budget);
  CHECK_EQ(opposite.distance, 3);
  CHECK(*displacements.related(1, opposite, budget) == std::vector<Vertex>{4});
  auto near = displacements.relation(0, 1, budget);
  CHECK(*displacements.related(0, near, budget) == (std::vector<Vertex>{1, 5}));
  CHECK(*displacements.related(0, displacements.relation(2, 2, budget), budget) == std::vector<Vertex>{0});
}

TEST(search_ends_at_its_work_limit) {
  ColouredGraph graph = rings({400});
  Trial trial(graph);
  trial.sources = trial.targets = range(0, 400);
  trial.rules.steps = 50;
  CHECK(!trial.run({0, 1}));
}
