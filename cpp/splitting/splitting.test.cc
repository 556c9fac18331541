#include "splitting/splitting.h"

#include "testing/packings.h"
#include "testing/testing.h"

using namespace coppice;
using namespace coppice::testing;

namespace {

Packing split_packing(const Network& network, const StopFlag& stop = {}) {
  return pack_by_splitting(network.graph(), network.terminal, network.roots, network.capacity, stop);
}

/// The bound of splitting.h on the number of max-flows.
Amount most_flows(const Network& network) {
  Amount v = network.num_vertices(), n = std::count(network.terminal.begin(), network.terminal.end(), 1), p = n * (n - 1);
  return (v - n) * (v - 1) * (v - 1) * n + (n - 1) * (n + p + n * p) + n * p;
}

RandomNetwork random_shape(Dice& dice) {
  RandomNetwork shape;
  shape.terminals = 1 + dice(8), shape.switches = dice(9), shape.cycles = dice(14);
  shape.series_nodes = dice(3) == 0 ? dice(6) : 0;
  shape.largest_rate = 1 + dice(8);
  shape.weighted = dice(3) == 0, shape.one_root = dice(5) == 0;
  return shape;
}

}  // namespace

TEST(random_networks_are_packed_by_splitting_within_the_bound_on_flows) {
  Dice dice(91);
  Amount flows = 0, trees = 0;
  for (int trial = 0; trial < 600; ++trial) {
    Network network = random_network(random_shape(dice), dice);
    CHECK(network.scale_to_bound());
    network.scale(1 + dice(4));
    const Packing packing = split_packing(network);
    CHECK_EQ(packing_fault(network, packing), "");
    CHECK(packing.stats.flows <= most_flows(network));
    flows += packing.stats.flows, trees += static_cast<Amount>(packing.root.size());
  }
  CHECK(flows > trees);
}

TEST(what_capacities_are_does_not_change_how_many_flows_it_takes) {
  Dice dice(92);
  for (int trial = 0; trial < 30; ++trial) {
    RandomNetwork shape;
    shape.terminals = 3 + dice(4), shape.switches = dice(5), shape.cycles = 8, shape.largest_rate = 1 << 20;
    Network network = random_network(shape, dice);
    CHECK(network.scale_to_bound());
    const Amount most = (Amount{1} << 61) / std::max(network.num_trees(), std::accumulate(network.capacity.begin(), network.capacity.end(), Amount{1}));
    const Amount small = split_packing(network).stats.flows;
    network.scale(most);
    const Packing packing = split_packing(network);
    CHECK_EQ(packing_fault(network, packing), "");
    CHECK_EQ(packing.stats.flows, small);
  }
}

TEST(a_switch_that_would_have_to_copy_is_no_network_to_split) {
  Network star;  // three GPUs send 1 up to a switch and could get 4 each
  for (int gpu = 0; gpu < 3; ++gpu) star.add(true);
  const Vertex hub = star.add(false);
  star.roots[hub] = 0;
  for (Vertex gpu = 0; gpu < 3; ++gpu) star.arc(gpu, hub, 1), star.arc(hub, gpu, 4);
  CHECK_THROWS(NoPacking, split_packing(star));
}

TEST(splitting_stops_when_asked) {
  CHECK_THROWS(Cancelled, split_packing(dgx_a100(2), [] { return true; }));
}

TEST(machines_are_packed_by_splitting) {
  for (Network network : {dgx_a100(2), mi250(1), boxes(2, 4, 1, 3, 1, false)}) {
    CHECK(network.scale_to_bound());
    CHECK_EQ(packing_fault(network, split_packing(network)), "");
  }
}
