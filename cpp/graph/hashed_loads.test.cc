#include "graph/hashed_loads.h"

#include <numeric>
#include <stdexcept>
#include <vector>

#include "testing/testing.h"

using namespace coppice;

namespace {

/// Ranks 0 and 1 below switch 4, 2 and 3 below switch 5, and the spines 6 and 7 between; every link has capacity 1.
struct TwoSpines {
  TwoSpines() {
    std::vector<Vertex> tail, head;
    auto join = [&](Vertex a, Vertex b) { tail.insert(tail.end(), {a, b}), head.insert(head.end(), {b, a}); };
    join(0, 4), join(1, 4), join(2, 5), join(3, 5), join(4, 6), join(4, 7), join(5, 6), join(5, 7);
    graph = Digraph(8, tail, head);
    capacity.assign(tail.size(), 1);
    forwards = {0, 0, 0, 0, 1, 1, 1, 1};
  }
  Routing routing(std::uint64_t hash = 0) const { return {graph, capacity, forwards, false, hash}; }

  Digraph graph;
  std::vector<Amount> capacity;
  std::vector<std::uint8_t> forwards;
  std::vector<Vertex> src{0, 1}, dst{2, 3};
  std::vector<std::int64_t> channel{0, 0}, units{1, 1};
};

}  // namespace

TEST(draws_are_those_of_routes) {
  TwoSpines net;
  HashedLoads found = hashed_loads(net.routing(), {net.src, net.dst, net.channel, net.units}, 0, 200);
  double collisions = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Routes routes = find_routes(net.routing(seed_state(seed)), net.src, net.dst, net.channel);
    const double expected = routes.nodes[2] == routes.nodes[7] ? 2.0 : 1.0;
    CHECK_EQ(found.busiest[seed], expected);
    CHECK_EQ(found.busiest_chosen[seed], expected);
    collisions += expected - 1.0;
  }
  CHECK(collisions > 70 && collisions < 130);  // half of them
}

TEST(dealt_parts_do_not_collide_and_expectations_are_even) {
  TwoSpines net;
  HashedLoads found = hashed_loads(net.routing(), {net.src, net.dst, net.channel, net.units, 2, true}, 1, 20);
  for (double busy : found.busiest) CHECK_EQ(busy, 1.0);
  std::vector<double> load = expected_loads(net.routing(), {net.src, net.dst, net.channel, net.units});
  CHECK_EQ(std::accumulate(load.begin(), load.end(), 0.0), 8.0);
  for (double each : load) CHECK(each == 0.0 || each == 1.0);
}

TEST(flows_without_routes_and_numbers_too_large_are_refused) {
  TwoSpines net;
  net.channel.pop_back();
  CHECK_THROWS(std::invalid_argument, hashed_loads(net.routing(), {net.src, net.dst, net.channel, net.units}, 0, 1));
  net.channel.push_back(0);
  net.units[0] = std::int64_t{1} << 53;
  CHECK_THROWS(std::overflow_error, hashed_loads(net.routing(), {net.src, net.dst, net.channel, net.units}, 0, 1));
  net.units[0] = 1;
  net.forwards[5] = 0;
  CHECK_THROWS(std::invalid_argument, hashed_loads(net.routing(), {net.src, net.dst, net.channel, net.units}, 0, 1));
  net.forwards[5] = 1;
  CHECK_THROWS(Cancelled, hashed_loads(net.routing(), {net.src, net.dst, net.channel, net.units}, 0, 1, [] { return true; }));
}
