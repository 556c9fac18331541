#include "graph/routing.h"

#include <initializer_list>
#include <stdexcept>
#include <vector>

#include "core/hash.h"
#include "testing/testing.h"

using namespace coppice;

namespace {

/// Links both ways with one capacity each; vertices from `first_switch` on forward.
struct RoutedNetwork {
  struct Link {
    Vertex a, b;
    Amount capacity;
  };

  RoutedNetwork(Vertex n, Vertex first_switch, std::initializer_list<Link> links) {
    std::vector<Vertex> tail, head;
    for (auto [a, b, c] : links) {
      tail.insert(tail.end(), {a, b});
      head.insert(head.end(), {b, a});
      capacity.insert(capacity.end(), {c, c});
    }
    graph = Digraph(n, tail, head);
    for (Vertex v = 0; v < n; ++v) forwards.push_back(v >= first_switch);
  }

  Routes routes(std::vector<Vertex> src, std::vector<Vertex> dst, std::vector<std::int64_t> channel, bool relays = false,
                std::uint64_t hash = 0, const StopFlag& stop = {}) const {
    return find_routes({graph, capacity, forwards, relays, hash}, src, dst, channel, stop);
  }

  std::vector<Vertex> route(Vertex src, Vertex dst, bool relays = false) const {
    return routes({src}, {dst}, {0}, relays).nodes;
  }

  Digraph graph;
  std::vector<Amount> capacity;
  std::vector<std::uint8_t> forwards;
};

using Nodes = std::vector<Vertex>;

}  // namespace

TEST(routes_are_shortest_then_widest) {
  // 0 -> 1 over switch 2 (narrow), 3 (wide), or 4 and 5 (widest, a hop more).
  RoutedNetwork network(6, 2, {{0, 2, 1}, {2, 1, 1}, {0, 3, 2}, {3, 1, 3}, {0, 4, 9}, {4, 5, 9}, {5, 1, 9}});
  CHECK((network.route(0, 1) == Nodes{0, 3, 1}));
  CHECK((network.route(1, 0) == Nodes{1, 3, 0}));
  CHECK((network.route(1, 1) == Nodes{1}));
}

TEST(a_wide_way_on_is_not_left_for_a_narrow_one_after_the_first_hop) {
  // At switch 2 the ways over 3 and 4 are equally short; only 4 keeps the width of 5.
  RoutedNetwork network(5, 2, {{0, 2, 5}, {2, 3, 5}, {3, 1, 4}, {2, 4, 7}, {4, 1, 5}});
  for (std::int64_t channel = 0; channel < 32; ++channel)
    CHECK((network.routes({0}, {1}, {channel}).nodes == Nodes{0, 2, 4, 1}));
}

TEST(a_wide_way_is_not_preferred_where_the_first_hop_is_narrow) {
  RoutedNetwork network(5, 2, {{0, 2, 1}, {2, 3, 5}, {3, 1, 5}, {2, 4, 1}, {4, 1, 1}});
  std::vector<int> used(5);
  for (std::int64_t channel = 0; channel < 32; ++channel) ++used[network.routes({0}, {1}, {channel}).nodes[2]];
  CHECK(used[3] > 4);
  CHECK(used[4] > 4);
}

TEST(destinations_do_not_leave_choices_to_one_another) {
  RoutedNetwork star(9, 8, {{0, 8, 1}, {1, 8, 2}, {2, 8, 1}, {3, 8, 2}, {4, 8, 1}, {5, 8, 2}, {6, 8, 1}, {7, 8, 2}});
  std::vector<Vertex> src, dst;
  Nodes expected;
  for (Vertex to = 0; to < 8; ++to)
    for (Vertex from = 0; from < 8; ++from) {
      src.push_back(from);
      dst.push_back(to);
      Nodes route = from == to ? Nodes{from} : Nodes{from, 8, to};
      expected.insert(expected.end(), route.begin(), route.end());
    }
  std::vector<std::int64_t> channel(src.size());
  CHECK(star.routes(src, dst, channel).nodes == expected);
}

TEST(destinations_do_not_leave_widths_to_one_another) {
  // From switch 3 on, vertex 0 is reached at 5, and vertex 1 at 1 in two ways.
  RoutedNetwork network(6, 3, {{2, 3, 9}, {3, 0, 5}, {3, 4, 1}, {3, 5, 1}, {4, 1, 1}, {5, 1, 1}});
  Nodes alone = network.route(2, 1), nodes{2, 3, 0};
  nodes.insert(nodes.end(), alone.begin(), alone.end());
  CHECK_EQ(alone.size(), 4u);
  CHECK(network.routes({2, 2}, {0, 1}, {0, 0}).nodes == nodes);
}

TEST(gpus_forward_only_where_allowed_and_needed) {
  RoutedNetwork line(3, 3, {{0, 1, 1}, {1, 2, 1}});
  CHECK(line.route(0, 2).empty());
  CHECK((line.route(0, 2, true) == Nodes{0, 1, 2}));
  RoutedNetwork detour(5, 3, {{0, 1, 1}, {1, 2, 1}, {0, 3, 1}, {3, 4, 1}, {4, 2, 1}});
  CHECK((detour.route(0, 2, true) == Nodes{0, 3, 4, 2}));
}

TEST(routes_end_before_the_first_that_is_missing) {
  RoutedNetwork network(4, 3, {{0, 3, 1}, {3, 1, 1}});
  Routes found = network.routes({0, 1, 2, 0}, {1, 0, 0, 1}, {0, 0, 0, 0}, true);
  CHECK((found.start == std::vector<std::int64_t>{0, 3, 6}));
  CHECK((found.nodes == Nodes{0, 3, 1, 1, 3, 0}));
}

TEST(the_hash_spreads_channels_over_equal_ways_in_any_order_of_links) {
  RoutedNetwork up(6, 2, {{0, 2, 1}, {0, 3, 1}, {0, 4, 1}, {0, 5, 1}, {2, 1, 1}, {3, 1, 1}, {4, 1, 1}, {5, 1, 1}});
  RoutedNetwork down(6, 2, {{5, 1, 1}, {4, 1, 1}, {3, 1, 1}, {2, 1, 1}, {0, 5, 1}, {0, 4, 1}, {0, 3, 1}, {0, 2, 1}});
  std::vector<int> used(6);
  bool seeded = false;
  for (std::int64_t channel = 0; channel < 400; ++channel) {
    Nodes nodes = up.routes({0}, {1}, {channel}).nodes;
    std::uint64_t hash = mixed(mixed(mixed(mixed(0, 0), 1), static_cast<std::uint64_t>(channel)), 1);
    CHECK_EQ(nodes[1], static_cast<Vertex>(2 + hash % 4));
    CHECK(down.routes({0}, {1}, {channel}).nodes == nodes);
    seeded |= up.routes({0}, {1}, {channel}, false, mixed(0, 7)).nodes != nodes;
    ++used[nodes[1]];
  }
  for (Vertex v = 2; v < 6; ++v) CHECK(used[v] > 60);
  CHECK(seeded);
}

TEST(routing_stops_when_told_and_refuses_ends_outside) {
  RoutedNetwork pair(2, 2, {{0, 1, 1}});
  CHECK_THROWS(Cancelled, pair.routes({0}, {1}, {0}, false, 0, [] { return true; }));
  CHECK_THROWS(std::invalid_argument, pair.route(0, 2));
  CHECK_THROWS(std::invalid_argument, pair.route(-1, 1));
  CHECK(pair.routes({}, {}, {}).start.size() == 1);
}
