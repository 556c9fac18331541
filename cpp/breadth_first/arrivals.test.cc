#include "breadth_first/arrivals.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

#include "testing/testing.h"
#include "testing/networks.h"

using namespace coppice;
using namespace coppice::testing;

namespace {

Network ring_of_six() {
  Network ring;
  for (int v = 0; v < 6; ++v) ring.add(true);
  for (Vertex v = 0; v < 6; ++v) ring.link(v, (v + 1) % 6, 1 + v);
  return ring;
}

std::set<std::size_t> ways(const Arrivals& arrivals, const Arrivals::Group& group) {
  std::set<std::size_t> found;
  for (std::size_t link = 0; link < arrivals.links.size(); ++link)
    if (arrivals.may_use(group, link)) found.insert(link);
  return found;
}

}  // namespace

TEST(what_is_opposite_on_a_ring_arrives_from_both_sides) {
  Network ring = ring_of_six();
  Digraph graph = ring.graph();
  Distances distances(graph);
  CHECK_EQ(distances.towards(0)[4], 2);
  Arrivals arrivals(graph, ring.capacity, distances);
  arrivals.look_at(2);
  CHECK_EQ(arrivals.steps.size(), 3u);
  CHECK_EQ(arrivals.steps[0].size(), 2u);
  CHECK_EQ(arrivals.steps[2].size(), 1u);
  CHECK_EQ(arrivals.sources[arrivals.steps[2][0].first], 5);
  CHECK_EQ(ways(arrivals, arrivals.steps[2][0]).size(), 2u);
  for (std::size_t link = 0; link < 2; ++link) CHECK_EQ(arrivals.link_capacity[link], ring.capacity[arrivals.links[link]]);
}

TEST(groups_hold_every_source_once_by_distance_and_set_of_arcs) {
  Dice dice(3);
  std::size_t most_links = 0, fewest_links = 1000;
  for (int round = 0; round < 100; ++round) {
    RandomNetwork shape{.terminals = 4 + dice(20), .switches = 0, .cycles = dice(60)};
    Network network = random_network(shape, dice);
    Digraph graph = network.graph();
    Distances distances(graph);
    Arrivals arrivals(graph, network.capacity, distances);
    for (Vertex target = 0; target < network.num_vertices(); ++target) {
      arrivals.look_at(target);
      most_links = std::max(most_links, arrivals.links.size());
      fewest_links = std::min(fewest_links, arrivals.links.size());
      std::set<Vertex> seen;
      for (std::size_t step = 1; step <= arrivals.steps.size(); ++step) {
        std::set<std::set<std::size_t>> sets;
        std::size_t fewest = 0;
        for (const auto& group : arrivals.steps[step - 1]) {
          auto found = ways(arrivals, group);
          CHECK(sets.insert(found).second);
          CHECK(found.size() >= fewest);
          fewest = found.size();
          for (std::size_t place = group.first; place < group.last; ++place) {
            Vertex source = arrivals.sources[place];
            CHECK(seen.insert(source).second);
            CHECK_EQ(distances.towards(target)[source], static_cast<std::int32_t>(step));
            for (std::size_t link = 0; link < arrivals.links.size(); ++link) {
              auto before = distances.towards(graph.tail(arrivals.links[link]))[source];
              CHECK_EQ(before + 1 == static_cast<std::int32_t>(step), found.contains(link));
            }
          }
        }
      }
      CHECK_EQ(seen.size(), static_cast<std::size_t>(network.num_vertices()) - 1);
      CHECK(!seen.contains(target));
    }
  }
  CHECK(fewest_links < 4);  // sorted by counting
  CHECK(most_links > 16);   // sorted by comparing
}

TEST(targets_that_are_none_or_out_of_reach_are_refused) {
  Digraph path(3, std::vector<Vertex>{0, 1}, std::vector<Vertex>{1, 2});
  std::vector<Amount> capacity{1, 1};
  Distances distances(path);
  CHECK_EQ(distances.towards(0)[2], -1);
  CHECK_THROWS(std::invalid_argument, distances.towards(3));
  CHECK_THROWS(std::invalid_argument, distances.towards(-1));
  Arrivals arrivals(path, capacity, distances);
  CHECK_THROWS(std::invalid_argument, arrivals.look_at(1));
  arrivals.look_at(2);
  CHECK_EQ(arrivals.steps.size(), 2u);
}
