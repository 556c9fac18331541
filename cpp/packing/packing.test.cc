#include "packing/packing.h"

#include <stdexcept>

#include "testing/testing.h"
#include "testing/packings.h"

using namespace coppice;
using namespace coppice::testing;

namespace {

RandomNetwork random_shape(Dice& dice) {
  RandomNetwork shape;
  shape.terminals = 1 + dice(8), shape.switches = dice(8), shape.cycles = dice(14);
  shape.series_nodes = dice(3) == 0 ? dice(8) : 0;
  shape.largest_rate = 1 + dice(8);
  shape.weighted = dice(3) == 0, shape.one_root = dice(5) == 0;
  return shape;
}

/// A random balanced network in trees that just fit, several times as many as need be.
Network random_problem(Dice& dice) {
  Network network = random_network(random_shape(dice), dice);
  CHECK(network.scale_to_bound());
  network.scale(1 + dice(4));
  return network;
}

/// A stop flag that fails a test instead of letting it hang.
StopFlag at_most(int polls) {
  return [polls]() mutable { return --polls < 0; };
}

/// Two GPUs b and c behind a switch that would have to copy, and switches that lead nowhere.
Network copying_switch_beside_a_mesh(int mesh) {
  Network network;
  Vertex a = network.add(true), b = network.add(true), c = network.add(true), w = network.add(false);
  network.roots = {1, 0, 0, 0};
  network.arc(a, w, 1), network.arc(w, b, 1), network.arc(w, c, 1);
  Vertex first = network.num_vertices();
  for (int i = 0; i < mesh; ++i) {
    Vertex v = network.add(false);
    for (Vertex u = first; u < v; ++u) network.link(u, v, 1);
    network.arc(a, v, 1);
  }
  return network;
}

}  // namespace

TEST(random_networks_are_packed_exactly) {
  Dice dice(1);
  std::int64_t restarts = 0, halvings = 0, given_back = 0, exact_steps = 0;
  for (int trial = 0; trial < 1200; ++trial) {
    Network network = random_problem(dice);
    Packing packing = pack(network, {}, at_most(100000));
    CHECK_EQ(packing_fault(network, packing), "");
    restarts += packing.stats.restarts, halvings += packing.stats.halvings;
    given_back += packing.stats.trees_given_back, exact_steps += packing.stats.exact_steps;
  }
  CHECK(restarts > 10 && halvings > 100 && given_back > 0);
  CHECK_EQ(exact_steps, 0);  // none is known to need one
}

TEST(packings_go_on_from_trees_that_somebody_else_grew) {
  Dice dice(31);
  std::int64_t kept = 0;
  for (int trial = 0; trial < 300; ++trial) {
    Network network = random_problem(dice);
    const Packing whole = pack(network, {}, at_most(100000));
    Packing begun;  // some of the trees
    begun.start.push_back(0);
    for (std::size_t t = 0; t < whole.root.size(); ++t) {
      if (dice(2)) continue;
      begun.root.push_back(whole.root[t]);
      begun.multiplicity.push_back(whole.multiplicity[t]);
      begun.arcs.insert(begun.arcs.end(), whole.arcs.begin() + whole.start[t], whole.arcs.begin() + whole.start[t + 1]);
      begun.start.push_back(static_cast<std::int64_t>(begun.arcs.size()));
    }
    PackingOptions options;
    options.begun = &begun;
    const Packing packing = pack(network, options, at_most(100000));
    CHECK_EQ(packing_fault(network, packing), "");
    kept += static_cast<std::int64_t>(begun.root.size());
  }
  CHECK(kept > 300);
}

TEST(a_search_that_may_not_go_on_keeps_its_trees_and_splits_the_rest) {
  Dice dice(32);
  std::int64_t split = 0, kept = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const Network network = random_problem(dice);
    PackingOptions options;
    options.most_checks = trial % 6;
    const Packing packing = pack(network, options, at_most(100000));
    CHECK_EQ(packing_fault(network, packing), "");
    split += packing.stats.flows > 0;
    kept += packing.stats.flows > 0 && packing.stats.checks > 2;
    if (options.most_checks == 0 && network.num_trees() > 0) CHECK(packing.stats.checks <= 1);
  }
  CHECK(split > 100 && kept > 20);
}

TEST(templates_that_take_too_many_checks_are_left_to_whole_trees) {
  PackingOptions options;
  options.most_checks = 0;
  SymmetricNetwork boxes = turning_boxes(3, 4, 3, 1);
  CHECK(boxes.network.scale_to_bound());
  CHECK(!pack(boxes, options).complete);
}

TEST(begun_trees_that_leave_no_room_for_others_are_given_back) {
  Network network;  // from a, two trees are to reach b and c: a -> b -> c would leave a without a link
  Vertex a = network.add(true), b = network.add(true), c = network.add(true);
  network.roots = {2, 0, 0};
  network.arc(a, b, 1), network.arc(a, c, 1), network.arc(b, c, 1), network.arc(c, b, 1);
  const Digraph graph = network.graph();
  const auto arc = [&](Vertex from, Vertex to) {
    for (Arc e : graph.out(from))
      if (graph.head(e) == to) return e;
    return Arc{-1};
  };
  Packing begun;
  begun.root = {a}, begun.multiplicity = {1}, begun.start = {0, 2};
  begun.arcs = {arc(a, b), arc(a, c)};
  PackingOptions options;
  options.begun = &begun;
  const Packing packing = pack(network, options, at_most(1000));
  CHECK_EQ(packing_fault(network, packing), "");
  CHECK(packing.stats.trees_given_back > 0);
}

TEST(every_path_by_the_exact_step_packs_as_well) {
  Dice dice(2);
  std::int64_t exact_steps = 0;
  PackingOptions options;
  options.always_exhaustive = true;
  for (int trial = 0; trial < 250; ++trial) {
    Network network = random_problem(dice);
    Packing packing = pack(network, options, at_most(1000000));
    CHECK_EQ(packing_fault(network, packing), "");
    exact_steps += packing.stats.exact_steps;
  }
  CHECK(exact_steps > 1000);
}

TEST(every_path_by_the_exact_step_among_many_switches) {
  Dice dice(3);
  PackingOptions options;
  options.always_exhaustive = true;
  for (int trial = 0; trial < 60; ++trial) {
    RandomNetwork shape;
    shape.terminals = 2 + dice(4), shape.switches = 8 + dice(16), shape.cycles = 4 + dice(25);
    Network network = random_network(shape, dice);
    CHECK(network.scale_to_bound());
    CHECK_EQ(packing_fault(network, pack(network, options, at_most(1000000))), "");
  }
}

TEST(spare_capacity_is_left_over) {
  Dice dice(4);
  for (int trial = 0; trial < 150; ++trial) {
    Network network = random_problem(dice);
    for (int i = dice(4); i > 0 && network.num_vertices() > 1; --i) {
      Vertex a = dice(network.num_vertices()), b = dice(network.num_vertices());
      if (a != b) network.link(a, b, 1 + dice(5));
    }
    for (Amount& c : network.capacity) c *= 2;
    CHECK_EQ(packing_fault(network, pack(network, {}, at_most(100000))), "");
  }
}

TEST(trees_beyond_the_bound_are_refused_with_a_set_that_shows_it) {
  Dice dice(5);
  int refused = 0, packed = 0;
  for (int trial = 0; trial < 400; ++trial) {
    Network network = random_problem(dice);
    if (dice(2)) {
      Vertex v = dice(network.num_vertices());
      while (!network.terminal[v]) v = dice(network.num_vertices());
      ++network.roots[v];
    } else if (network.num_arcs() > 0) {
      Arc e = dice(network.num_arcs());
      while (network.capacity[e] == 0) e = dice(network.num_arcs());
      --network.capacity[e];
    }
    try {
      Packing packing = pack(network, {}, at_most(100000));
      if (packing.violated.empty()) {
        CHECK_EQ(packing_fault(network, packing), "");
        ++packed;
      } else {
        CHECK(!packing.complete && packing.root.empty());
        CHECK(really_violated(network, packing.violated));
        ++refused;
      }
    } catch (const std::invalid_argument&) {  // the arc entered a switch that now has more out than in
    }
  }
  CHECK(refused > 100 && packed > 50);
}

TEST(unbalanced_switches_are_packed_or_refused) {
  Dice dice(6);
  int refused = 0, packed = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    RandomNetwork shape = random_shape(dice);
    shape.switches += dice(10);
    Network network = random_network(shape, dice);
    for (int i = 0; i < 3 && network.num_arcs() > 0; ++i) network.capacity[dice(network.num_arcs())] *= 1 + dice(6);
    CHECK(network.scale_to_bound());
    try {
      CHECK_EQ(packing_fault(network, pack(network, {}, at_most(100000))), "");
      ++packed;
    } catch (const std::invalid_argument&) {
      ++refused;
    }
  }
  CHECK(refused > 0 && packed > 500);
}

TEST(a_switch_that_would_have_to_copy_is_refused_soon) {
  for (int mesh : {0, 3, 16}) CHECK_THROWS(std::invalid_argument, pack(copying_switch_beside_a_mesh(mesh), {}, at_most(1000)));
}

TEST(batches_and_pieces_of_any_size_pack_exactly) {
  Dice dice(7);
  for (int trial = 0; trial < 200; ++trial) {
    Network network = random_problem(dice);
    PackingOptions options;
    options.largest_batch = 1 + dice(5);
    options.pieces = 1 + dice(5);
    Packing packing = pack(network, options, at_most(100000));
    CHECK_EQ(packing_fault(network, packing), "");
    Amount largest = *std::max_element(network.roots.begin(), network.roots.end());
    for (Amount units : packing.multiplicity) CHECK(units <= (largest + options.pieces - 1) / options.pieces);
  }
}

TEST(amounts_near_the_limit_do_not_overflow) {
  Dice dice(8);
  for (int trial = 0; trial < 100; ++trial) {
    Network network = random_problem(dice);
    Amount total = std::max(std::accumulate(network.capacity.begin(), network.capacity.end(), Amount{1}), network.num_trees());
    network.scale(((Amount{1} << 62) - 1) / total);
    CHECK_EQ(packing_fault(network, pack(network, {}, at_most(100000))), "");
  }
}

TEST(amounts_at_the_limit_are_refused) {
  Network network;
  for (int v = 0; v < 2; ++v) network.add(true);
  network.link(0, 1, Amount{1} << 61);
  CHECK_THROWS(std::overflow_error, pack(network));
  network.capacity = {(Amount{1} << 61) - 1, Amount{1} << 61};
  pack(network);
  network.roots = {Amount{1} << 61, Amount{1} << 61};
  CHECK_THROWS(std::overflow_error, pack(network));
}

TEST(the_same_input_gives_the_same_trees) {
  Dice dice(9);
  for (int trial = 0; trial < 30; ++trial) {
    Network network = random_problem(dice);
    Packing first = pack(network), second = pack(network);
    CHECK(first.root == second.root && first.multiplicity == second.multiplicity && first.arcs == second.arcs);
  }
}

TEST(packing_with_nothing_to_do) {
  Network lonely;
  Vertex only = lonely.add(true);
  lonely.roots[only] = 3;
  Packing packing = pack(lonely);
  CHECK_EQ(packing_fault(lonely, packing), "");
  CHECK(packing.arcs.empty() && packing.root.size() == 1);

  Network idle = dgx_a100(1);
  std::fill(idle.roots.begin(), idle.roots.end(), 0);
  CHECK_EQ(packing_fault(idle, pack(idle)), "");
  CHECK(pack(idle).root.empty());
}

TEST(terminals_out_of_reach_are_named) {
  Network network;
  Vertex a = network.add(true), b = network.add(true), w = network.add(false);
  network.arc(a, w, 1), network.arc(w, b, 0), network.arc(b, a, 5);
  Packing packing = pack(network);
  CHECK(!packing.complete && really_violated(network, packing.violated));
  CHECK_EQ(std::count(packing.violated.begin(), packing.violated.end(), b), 1);
}

TEST(packing_stops_whenever_it_is_asked_to) {
  for (bool exhaustive : {false, true}) {
    Network network = dgx_a100(3);
    CHECK(network.scale_to_bound());
    PackingOptions options;
    options.always_exhaustive = exhaustive;
    int polls = 0;
    CHECK_EQ(packing_fault(network, pack(network, options, [&] { return ++polls, false; })), "");
    CHECK(polls > 30);
    for (int stop_at = 0; stop_at < polls; stop_at += 1 + polls / 40)
      CHECK_THROWS(Cancelled, pack(network, options, at_most(stop_at)));
    CHECK_EQ(packing_fault(network, pack(network, options, at_most(polls))), "");
  }
}

TEST(machines_are_packed_flat) {
  for (int boxes : {1, 2, 4, 8}) {
    Network network = dgx_a100(boxes);
    CHECK(network.scale_to_bound());
    Packing packing = pack(network, {}, at_most(100000));
    CHECK_EQ(packing_fault(network, packing), "");
    CHECK_EQ(packing.stats.exact_steps, 0);
  }
  Network network = mi250(2);
  CHECK(network.scale_to_bound());
  CHECK_EQ(packing_fault(network, pack(network, {}, at_most(100000))), "");
}

TEST(templates_of_tori_stand_for_all_their_images) {
  std::vector<std::vector<Amount>> shapes{{2}, {5}, {8}, {3, 3}, {4, 4}, {2, 8}, {5, 7}, {8, 8}, {3, 3, 3}, {2, 2, 2, 2}};
  for (const auto& dims : shapes) {
    for (bool uneven : {false, true}) {
      std::vector<Amount> rates;
      for (std::size_t k = 0; k < dims.size(); ++k) rates.push_back(uneven ? static_cast<Amount>(k) + 1 : 1);
      SymmetricNetwork symmetric = torus(dims, rates);
      CHECK(symmetric.network.scale_to_bound());
      for (Amount factor : {1, 3}) {
        symmetric.network.scale(factor);
        Packing packing = pack(symmetric);
        CHECK_EQ(packing_fault(symmetric, packing), "");
        for (Vertex root : packing.root) CHECK_EQ(root, 0);  // of the only orbit
      }
    }
  }
}

TEST(four_templates_of_a_torus_need_exchanges) {
  SymmetricNetwork symmetric = torus({8, 8}, {1, 1});
  CHECK(symmetric.network.scale_to_bound());
  CHECK_EQ(symmetric.network.roots[0], 4);
  CHECK_EQ(symmetric.network.capacity[0], 63);
  CHECK_EQ(packing_fault(symmetric, pack(symmetric)), "");
}

TEST(templates_pass_through_switches) {
  int found = 0, missed = 0;
  auto count = [&](SymmetricNetwork symmetric) {
    CHECK(symmetric.network.scale_to_bound());
    Packing packing = pack(symmetric);
    CHECK(packing.violated.empty());
    if (packing.complete) CHECK_EQ(packing_fault(symmetric, packing), "");
    ++(packing.complete ? found : missed);  // templates need not exist
  };
  for (int groups : {2, 3, 4}) {
    for (int gpus : {1, 2, 3, 4}) {
      for (Amount inside : {1, 10}) {
        count(turning_boxes(groups, gpus, inside, 3));
        count(turning_leaves(groups, gpus, 3, inside));
      }
    }
  }
  for (int length : {3, 4, 6, 9})
    for (Amount down : {1, 4}) count(ring_of_switches(length, 1, down));
  CHECK(found >= 9 * missed);
}

TEST(templates_leave_arcs_between_boxes_to_boxes_not_reached_yet) {
  for (int groups : {4, 5, 8}) {
    for (int gpus : {4, 7, 11}) {
      for (Amount inside : {2, 5}) {
        SymmetricNetwork symmetric = turning_boxes(groups, gpus, inside, 1);
        CHECK(symmetric.network.scale_to_bound());
        CHECK_EQ(packing_fault(symmetric, pack(symmetric)), "");
      }
    }
  }
}

TEST(templates_beyond_the_bound_are_refused) {
  SymmetricNetwork symmetric = torus({4, 4}, {1, 1});
  CHECK(symmetric.network.scale_to_bound());
  for (Amount& r : symmetric.network.roots) ++r;
  Packing packing = pack(symmetric);
  CHECK(!packing.complete && packing.root.empty());
  CHECK(really_violated(symmetric.network, packing.violated));
}
