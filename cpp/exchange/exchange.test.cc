#include "exchange/exchange.h"

#include "packing/shortening.h"
#include "testing/packings.h"
#include "testing/testing.h"

using namespace coppice;
using namespace coppice::testing;

namespace {

std::optional<Packing> exchanged(const Network& network, std::int32_t most_height = 0, const StopFlag& stop = {}) {
  Digraph graph = network.graph();
  return pack_by_exchange(graph, network.terminal, network.roots, network.capacity, most_height, nullptr, stop);
}

std::int32_t height_of(const Network& network, const Packing& packing) {
  Digraph graph = network.graph();
  std::vector<std::int32_t> depth(network.num_vertices(), 0);
  std::int32_t height = 0;
  for (std::size_t t = 0; t < packing.root.size(); ++t) {
    std::span<const Arc> arcs(packing.arcs.data() + packing.start[t], packing.arcs.data() + packing.start[t + 1]);
    height = std::max(height, tree_depth(graph, network.terminal, packing.root[t], arcs, depth).height);
  }
  return height;
}

}  // namespace

TEST(what_is_found_is_a_packing_and_it_is_found_mostly) {
  Dice dice(77);
  int found = 0;
  for (int trial = 0; trial < 600; ++trial) {
    RandomNetwork shape;
    shape.terminals = 1 + dice(8), shape.switches = dice(5), shape.cycles = dice(10), shape.weighted = dice(3) == 0;
    shape.series_nodes = dice(4);
    Network network = random_network(shape, dice);
    CHECK(network.scale_to_bound());
    network.scale(1 + dice(4));
    auto packing = exchanged(network);
    if (!packing) continue;
    ++found;
    CHECK_EQ(packing_fault(network, *packing), "");
  }
  CHECK(found > 450);
}

TEST(no_tree_is_taller_than_it_may_be) {
  Network network = dgx_a100(4);
  CHECK(network.scale_to_bound());
  auto low = exchanged(network, 2);
  CHECK(low.has_value());
  CHECK_EQ(packing_fault(network, *low), "");
  CHECK(height_of(network, *low) <= 2);
}

TEST(a_packing_of_another_hand_is_lowered) {
  Dice dice(78);
  int lowered = 0;
  for (int trial = 0; trial < 300; ++trial) {
    RandomNetwork shape;
    shape.terminals = 2 + dice(7), shape.switches = dice(5), shape.cycles = dice(10), shape.series_nodes = dice(4);
    Network network = random_network(shape, dice);
    CHECK(network.scale_to_bound());
    network.scale(1 + dice(6));
    const Packing packing = pack(network);
    const Packing found = lowered_by_exchange(network.graph(), network.terminal, network.roots, network.capacity, packing);
    CHECK_EQ(packing_fault(network, found), "");
    CHECK(height_of(network, found) <= height_of(network, packing));
    lowered += height_of(network, found) < height_of(network, packing);
  }
  CHECK(lowered > 30);
}

TEST(nothing_is_found_where_a_cut_is_too_narrow) {
  Network network;
  Vertex a = network.add(true), b = network.add(true);
  network.link(a, b, 1);
  network.roots = {2, 2};
  CHECK(!exchanged(network).has_value());
}

TEST(a_search_can_be_stopped) {
  Network network = dgx_a100(4);
  CHECK(network.scale_to_bound());
  CHECK_THROWS(Cancelled, exchanged(network, 0, [] { return true; }));
}
