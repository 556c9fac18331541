#include "breadth_first/breadth_first.h"

#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "testing/testing.h"

using namespace coppice;

namespace {

struct UnitNetwork {
  UnitNetwork(Vertex n, std::vector<Vertex> tails, std::vector<Vertex> heads, std::vector<Amount> capacities = {})
      : graph(n, tails, heads), tail(tails), head(heads), capacity(capacities), all(n) {
    if (capacity.empty()) capacity.assign(tail.size(), 1);
    std::iota(all.begin(), all.end(), 0);
  }

  Digraph graph;
  std::vector<Vertex> tail, head;
  std::vector<Amount> capacity;
  std::vector<Vertex> all;
};

/// Node x is linked with x + jump for every jump.
UnitNetwork circulant(Vertex n, std::vector<Vertex> jumps) {
  std::vector<Vertex> tail, head;
  for (Vertex x = 0; x < n; ++x)
    for (Vertex jump : jumps) {
      tail.push_back(x);
      head.push_back((x + jump) % n);
    }
  return {n, tail, head};
}

/// Vertices on a cycle, so that it is strongly connected, and chords.
UnitNetwork random_network(std::mt19937& random) {
  Vertex n = 3 + static_cast<Vertex>(random() % 10);
  std::map<std::pair<Vertex, Vertex>, Amount> arcs;
  for (Vertex v = 0; v < n; ++v) arcs[{v, (v + 1) % n}] = 1 + random() % 3;
  for (int chord = 0; chord < n; ++chord) {
    Vertex a = static_cast<Vertex>(random() % n), b = static_cast<Vertex>(random() % n);
    if (a != b) arcs[{a, b}] = 1 + random() % 3;
  }
  std::vector<Vertex> tail, head;
  std::vector<Amount> capacity;
  for (auto [ends, c] : arcs) {
    tail.push_back(ends.first);
    head.push_back(ends.second);
    capacity.push_back(c);
  }
  return {n, tail, head, capacity};
}

std::vector<std::vector<int>> distances(const UnitNetwork& network) {
  const int far = 1 << 20;
  const int n = network.graph.num_vertices();
  std::vector<std::vector<int>> d(n, std::vector<int>(n, far));
  for (int v = 0; v < n; ++v) d[v][v] = 0;
  for (std::size_t e = 0; e < network.tail.size(); ++e) d[network.tail[e]][network.head[e]] = 1;
  for (int k = 0; k < n; ++k)
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < n; ++j) d[i][j] = std::min(d[i][j], d[i][k] + d[k][j]);
  return d;
}

/// U(u, t) as the header defines it: all sets of arcs are tried.
std::map<int, std::pair<Amount, Amount>> by_enumeration(const UnitNetwork& network) {
  auto d = distances(network);
  std::map<int, std::pair<Amount, Amount>> worst;
  for (Vertex u = 0; u < network.graph.num_vertices(); ++u) {
    auto arcs = network.graph.in(u);
    for (unsigned set = 1; set < 1u << arcs.size(); ++set) {
      Amount capacity = 0;
      std::map<int, Amount> confined;
      for (std::size_t i = 0; i < arcs.size(); ++i)
        if (set >> i & 1) capacity += network.capacity[arcs[i]];
      for (Vertex v = 0; v < network.graph.num_vertices(); ++v) {
        bool within = v != u;
        for (std::size_t i = 0; i < arcs.size(); ++i)
          if (d[v][network.graph.tail(arcs[i])] + 1 == d[v][u] && !(set >> i & 1)) within = false;
        if (within) ++confined[d[v][u]];
      }
      for (auto [step, count] : confined) {
        auto& [p, q] = worst.try_emplace(step, 0, 1).first->second;
        if (count * q > p * capacity) p = count, q = capacity;
      }
    }
  }
  return worst;
}

}  // namespace

TEST(an_even_ring_shares_its_last_step) {
  UnitNetwork ring = circulant(6, {1, 5});
  StepLoads loads = balanced_loads(ring.graph, ring.capacity, ring.all);
  CHECK((loads.numerator == std::vector<Amount>{1, 1, 1}));
  CHECK((loads.denominator == std::vector<Amount>{1, 1, 2}));
}

TEST(loads_are_those_of_the_tightest_set_of_arcs) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    UnitNetwork network = random_network(random);
    StepLoads loads = balanced_loads(network.graph, network.capacity, network.all);
    auto expected = by_enumeration(network);
    CHECK_EQ(loads.numerator.size(), expected.size());
    for (auto [step, ratio] : expected) {
      CHECK_EQ(loads.numerator[step - 1] * ratio.second, ratio.first * loads.denominator[step - 1]);
      CHECK_EQ(std::gcd(loads.numerator[step - 1], loads.denominator[step - 1]), 1);
    }
  }
}

TEST(deliveries_bring_every_piece_once_over_arcs_that_hold_it_within_the_loads) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    UnitNetwork network = random_network(random);
    auto d = distances(network);
    StepLoads loads = balanced_loads(network.graph, network.capacity, network.all);
    Amount exact = 1;
    for (Amount q : loads.denominator) exact = std::lcm(exact, q);
    for (Amount pieces : {exact, Amount{1}, Amount{3}}) {
      Deliveries found = balanced_deliveries(network.graph, network.capacity, network.all, loads, pieces);
      std::map<std::pair<Vertex, Vertex>, std::vector<int>> brought;  // (source, target): how often each piece
      std::map<std::pair<int, Arc>, Amount> load;
      for (std::size_t i = 0; i < found.step.size(); ++i) {
        Arc e = found.arc[i];
        CHECK_EQ(found.step[i], d[found.source[i]][network.head[e]]);
        CHECK_EQ(found.step[i] - 1, d[found.source[i]][network.tail[e]]);
        auto& pieces_of = brought.try_emplace({found.source[i], network.head[e]}, pieces, 0).first->second;
        for (int k = 0; k < found.count[i]; ++k) ++pieces_of.at(found.first[i] + k);
        load[{found.step[i], e}] += found.count[i];
      }
      Vertex n = network.graph.num_vertices();
      CHECK_EQ(brought.size(), static_cast<std::size_t>(n * (n - 1)));
      for (const auto& [ends, times] : brought)
        for (int count : times) CHECK_EQ(count, 1);
      for (auto [place, amount] : load) {
        Amount p = loads.numerator[place.first - 1], q = loads.denominator[place.first - 1];
        Amount most = (p * network.capacity[place.second] * pieces + q - 1) / q;
        CHECK(amount <= most);
      }
    }
  }
}

TEST(sets_of_more_than_64_arcs_are_told_apart) {
  // Vertex 0 has 70 arcs in, from vertices that all hear from 71 and in part from 72.
  std::vector<Vertex> tail, head;
  auto link = [&](Vertex a, Vertex b) {
    tail.push_back(a);
    head.push_back(b);
  };
  for (Vertex v = 1; v <= 70; ++v) {
    link(v, 0);
    link(0, v);
    link(71, v);
    if (v > 65) link(72, v);
  }
  link(0, 71);
  link(0, 72);
  UnitNetwork network(73, tail, head);
  std::vector<Vertex> target{0};
  StepLoads loads = balanced_loads(network.graph, network.capacity, target);
  CHECK((loads.numerator == std::vector<Amount>{1, 1}));
  CHECK((loads.denominator == std::vector<Amount>{1, 5}));  // step 2: vertex 71 by 70 arcs, 72 by five of them
}

TEST(bad_input_is_refused_and_work_stops_when_told) {
  UnitNetwork ring = circulant(4, {1});
  std::vector<Vertex> outside{4};
  std::vector<Amount> zero(4, 0), huge(4, Amount{1} << 60), few(3, 1);
  CHECK_THROWS(std::invalid_argument, balanced_loads(ring.graph, ring.capacity, outside));
  CHECK_THROWS(std::invalid_argument, balanced_loads(ring.graph, zero, ring.all));
  CHECK_THROWS(std::invalid_argument, balanced_loads(ring.graph, few, ring.all));
  CHECK_THROWS(std::overflow_error, balanced_loads(ring.graph, huge, ring.all));
  CHECK_THROWS(Cancelled, balanced_loads(ring.graph, ring.capacity, ring.all, [] { return true; }));
  UnitNetwork cut(3, {0, 1}, {1, 2});
  CHECK_THROWS(std::invalid_argument, balanced_loads(cut.graph, cut.capacity, cut.all));
  StepLoads loads = balanced_loads(ring.graph, ring.capacity, ring.all), light{{1, 1}, {1, 1}};
  CHECK_THROWS(std::invalid_argument, balanced_deliveries(ring.graph, ring.capacity, ring.all, loads, 0));
  CHECK_THROWS(std::invalid_argument, balanced_deliveries(ring.graph, ring.capacity, ring.all, light, 1));
  loads.numerator[1] = 0;
  CHECK_THROWS(std::invalid_argument, balanced_deliveries(ring.graph, ring.capacity, ring.all, loads, 1));
  CHECK(balanced_loads(ring.graph, ring.capacity, {}).numerator.empty());
}
