#include "packing/portfolio.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "exchange/exchange.h"
#include "packing/shortening.h"
#include "testing/testing.h"
#include "testing/packings.h"

using namespace coppice;
using namespace coppice::testing;

namespace {

/// (Largest height, sum of heights by multiplicity, number of trees): the order of preference.
using Shape = std::tuple<std::int32_t, Amount, std::size_t>;

Shape shape_of(const Network& network, const Packing& packing) {
  std::int32_t largest = 0;
  Amount sum = 0;
  Digraph graph = network.graph();
  std::vector<std::int32_t> depth(network.num_vertices(), 0);
  for (std::size_t t = 0; t < packing.root.size(); ++t) {
    std::span<const Arc> arcs(packing.arcs.data() + packing.start[t], packing.arcs.data() + packing.start[t + 1]);
    auto height = tree_depth(graph, network.terminal, packing.root[t], arcs, depth).height;
    largest = std::max(largest, height);
    sum += height * packing.multiplicity[t];
  }
  return {largest, sum, packing.root.size()};
}

Packing best_of(const Network& network, const StopFlag& stop = {}) {
  Digraph graph = network.graph();
  return pack_best(graph, network.terminal, network.roots, network.capacity, GroupAction::trivial(graph), {}, stop);
}

/// A broadcast.
void keep_one_root(Network& network) {
  const auto first = std::find_if(network.roots.begin(), network.roots.end(), [](Amount r) { return r > 0; });
  std::fill(first + 1, network.roots.end(), 0);
}

}  // namespace

TEST(the_best_packing_is_right_and_as_good_as_all_ways) {
  Dice dice(41);
  int by_pieces = 0, by_units = 0, by_exchange = 0, lowered = 0;
  for (int trial = 0; trial < 75; ++trial) {
    RandomNetwork shape;
    shape.terminals = 1 + dice(8), shape.switches = dice(5), shape.cycles = dice(10), shape.weighted = dice(3) == 0;
    Network network = random_network(shape, dice);
    if (trial % 2) keep_one_root(network);
    CHECK(network.scale_to_bound());
    network.scale(1 + dice(4));
    Packing best = best_of(network);
    CHECK_EQ(packing_fault(network, best), "");
    PackingOptions halves, one_by_one;
    halves.pieces = 2;
    one_by_one.pieces = *std::max_element(network.roots.begin(), network.roots.end());
    Shape whole = shape_of(network, pack(network)), pieces = shape_of(network, pack(network, halves));
    Shape least = std::min(whole, pieces);
    const auto rooted = std::count_if(network.roots.begin(), network.roots.end(), [](Amount r) { return r > 0; });
    if (rooted == 1 && one_by_one.pieces > 2 && one_by_one.pieces <= 128) {
      const Shape units = shape_of(network, pack(network, one_by_one));
      by_units += units < least;
      least = std::min(least, units);
    }
    if (auto exchanged = pack_by_exchange(network.graph(), network.terminal, network.roots, network.capacity)) {
      by_exchange += shape_of(network, *exchanged) < least;
      least = std::min(least, shape_of(network, *exchanged));
    }
    CHECK(shape_of(network, best) <= least);
    lowered += shape_of(network, best) < least;
    by_pieces += pieces < whole;
  }
  CHECK(by_pieces > 2);
  CHECK(by_units > 2);
  CHECK(by_exchange > 2);
  CHECK(lowered > 0);
}

TEST(one_way_that_packs_is_enough) {
  // Where switches have more out than in, one way may fail and the other succeed.
  Dice dice(42);
  auto if_any = [](auto&& packed) -> std::optional<Packing> {
    try {
      return packed();
    } catch (const std::invalid_argument&) {
      return std::nullopt;
    }
  };
  int only_whole = 0, only_pieces = 0, neither = 0;
  for (int trial = 0; trial < 750; ++trial) {
    RandomNetwork shape;
    shape.terminals = 2 + dice(4), shape.switches = 2 + dice(4), shape.cycles = dice(8);
    Network network = random_network(shape, dice);
    for (int i = 0; i < 3; ++i) network.capacity[dice(network.num_arcs())] *= 1 + dice(6);
    CHECK(network.scale_to_bound());
    PackingOptions halves;
    halves.pieces = 2;
    bool whole = if_any([&] { return pack(network); }).has_value();
    bool pieces = if_any([&] { return pack(network, halves); }).has_value();
    std::optional<Packing> best = if_any([&] { return best_of(network); });
    bool divisible = *std::max_element(network.roots.begin(), network.roots.end()) > 1;
    CHECK(best.has_value() || !(whole || (divisible && pieces)));
    if (best) CHECK_EQ(packing_fault(network, *best), "");
    only_whole += whole && !pieces, only_pieces += pieces && !whole, neither += !whole && !pieces;
  }
  CHECK(only_whole > 0 && only_pieces > 0 && neither > 0);
}

TEST(the_best_packing_of_templates_stands_for_all_images) {
  for (const auto& dims : std::vector<std::vector<Amount>>{{6}, {4, 4}, {3, 5}, {2, 2, 4}}) {
    SymmetricNetwork symmetric = torus(dims, std::vector<Amount>(dims.size(), 1));
    CHECK(symmetric.network.scale_to_bound());
    symmetric.network.scale(2);
    const Network& network = symmetric.network;
    Packing best = pack_best(network.graph(), network.terminal, network.roots, network.capacity, symmetric.action);
    CHECK_EQ(packing_fault(symmetric, best), "");
  }
}

TEST(the_best_packing_of_too_many_trees_names_a_set) {
  Network network = dgx_a100(1);
  CHECK(network.scale_to_bound());
  for (Amount& r : network.roots) r *= 2;
  Packing packing = best_of(network);
  CHECK(!packing.complete && really_violated(network, packing.violated));
}

TEST(boxes_of_eight_reach_height_two) {
  Network network = dgx_a100(4);
  CHECK(network.scale_to_bound());
  CHECK_EQ(std::get<0>(shape_of(network, best_of(network))), 2);
}

TEST(broadcasts_to_boxes_of_eight_are_of_height_three) {
  for (Vertex boxes : {1, 2}) {
    Network network = dgx_a100(boxes);
    keep_one_root(network);
    CHECK(network.scale_to_bound());
    CHECK(std::get<0>(shape_of(network, pack(network))) > 3);
    const Packing best = best_of(network);
    CHECK_EQ(packing_fault(network, best), "");
    CHECK_EQ(std::get<0>(shape_of(network, best)), 3);
  }
}

TEST(the_portfolio_stops_when_asked) {
  Network network = mi250(1);
  CHECK(network.scale_to_bound());
  int polls = 0;
  CHECK_EQ(packing_fault(network, best_of(network, [&] { return ++polls, false; })), "");
  for (int stop_at : {0, polls / 4, polls / 2, polls - 1}) {
    int left = stop_at;
    CHECK_THROWS(Cancelled, best_of(network, [&] { return --left < 0; }));
  }
}
