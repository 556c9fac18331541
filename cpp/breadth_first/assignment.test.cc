#include "breadth_first/assignment.h"

#include <vector>

#include "testing/testing.h"
#include "testing/networks.h"

using namespace coppice;
using namespace coppice::testing;

TEST(flows_keep_to_room_and_ways_and_shortages_are_real) {
  Dice dice(5);
  int routed = 0, short_of_room = 0;
  for (int round = 0; round < 150; ++round) {
    Network network = random_network({.terminals = 3 + dice(12), .switches = 0, .cycles = dice(25)}, dice);
    Digraph graph = network.graph();
    Distances distances(graph);
    Arrivals arrivals(graph, network.capacity, distances);
    Assignment assignment(arrivals);
    for (Vertex target = 0; target < network.num_vertices(); ++target) {
      arrivals.look_at(target);
      const std::size_t num_links = arrivals.links.size();
      for (const auto& groups : arrivals.steps) {
        const Amount unit = 1 + dice(4), per_capacity = 1 + dice(6);
        std::vector<Amount> room;
        for (Amount c : arrivals.link_capacity) room.push_back(per_capacity * c);
        if (!assignment.route(groups, unit, room)) {
          // Nothing but links of this capacity brings so many sources, and their room is too little for them.
          CHECK(assignment.wanting * unit > assignment.capacity * per_capacity);
          Amount all = 0;
          for (const auto& group : groups) all += group.size();
          CHECK(assignment.wanting <= all);
          ++short_of_room;
          continue;
        }
        ++routed;
        for (std::size_t g = 0; g < groups.size(); ++g) {
          Amount sent = 0;
          for (std::size_t link = 0; link < num_links; ++link) {
            CHECK(assignment.flow(g, link) >= 0);
            if (!arrivals.may_use(groups[g], link)) CHECK_EQ(assignment.flow(g, link), 0);
            sent += assignment.flow(g, link);
          }
          CHECK_EQ(sent, groups[g].size() * unit);
        }
        for (std::size_t link = 0; link < num_links; ++link) {
          Amount taken = 0;
          for (std::size_t g = 0; g < groups.size(); ++g) taken += assignment.flow(g, link);
          CHECK(taken <= room[link]);
        }
      }
    }
  }
  CHECK(routed > 100);
  CHECK(short_of_room > 100);
}
