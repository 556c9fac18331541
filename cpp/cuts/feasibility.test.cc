#include "cuts/feasibility.h"

#include <algorithm>
#include <random>

#include "testing/testing.h"

using namespace coppice;

namespace {

// Every set that contains a terminal, by enumeration.
bool holds_by_enumeration(const Digraph& g, const std::vector<std::uint8_t>& terminal, const std::vector<Amount>& cap,
                          const std::vector<Amount>& supply, Amount demand) {
  for (unsigned set = 1; set < 1u << g.num_vertices(); ++set) {
    auto in = [&](Vertex v) { return set >> v & 1; };
    bool counts = false;
    Amount value = 0;
    for (Vertex v = 0; v < g.num_vertices(); ++v)
      if (in(v)) counts |= terminal[v], value += supply[v];
    for (Arc e = 0; e < g.num_arcs(); ++e)
      if (in(g.head(e)) && !in(g.tail(e))) value += cap[e];
    if (counts && value < demand) return false;
  }
  return true;
}

}  // namespace

TEST(feasibility_agrees_with_enumeration) {
  std::mt19937 random(7);
  auto pick = [&](int n) { return static_cast<int>(random() % n); };
  int infeasible = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    Vertex n = 2 + pick(6);
    std::vector<Vertex> tail, head;
    std::vector<Amount> cap;
    for (int e = pick(20); e >= 0; --e) {
      Vertex a = pick(n), b = pick(n);
      if (a == b) continue;
      tail.push_back(a), head.push_back(b), cap.push_back(pick(6));
    }
    std::vector<std::uint8_t> terminal(n);
    std::vector<Amount> supply(n);
    for (Vertex v = 0; v < n; ++v) terminal[v] = pick(2), supply[v] = pick(4);
    terminal[pick(n)] = 1;
    Amount demand = pick(12);
    Digraph g(n, tail, head);
    std::vector<Wide> wide_cap(cap.begin(), cap.end()), wide_supply(supply.begin(), supply.end());
    auto sets = FeasibilityCheck<Amount>(g, terminal).violated(cap, supply, demand, 100);
    auto wide = FeasibilityCheck<Wide>(g, terminal).violated(wide_cap, wide_supply, demand, 100);
    bool holds = holds_by_enumeration(g, terminal, cap, supply, demand);
    CHECK_EQ(sets.empty(), holds);
    CHECK(sets == wide);
    infeasible += !holds;
    const Vertex sink = pick(n);
    std::vector<std::uint8_t> only(n, 0);
    only[sink] = 1;
    FeasibilityCheck<Amount> one(g, terminal);
    CHECK(one.violated_at(sink, cap, supply, demand) == [&] {
      auto found = FeasibilityCheck<Amount>(g, only).violated(cap, supply, demand, 1);
      return found.empty() ? std::vector<Vertex>{} : found.front();
    }());
    CHECK_EQ(one.violated_at(sink, cap, supply, demand).empty(), holds_by_enumeration(g, only, cap, supply, demand));
    CHECK(one.violated(cap, supply, demand, 100) == sets);  // a flow leaves nothing behind
    for (const auto& set : sets) {  // each reported set is a certificate
      Amount value = 0;
      bool counts = false;
      for (Vertex v : set) value += supply[v], counts |= terminal[v];
      for (Arc e = 0; e < g.num_arcs(); ++e)
        if (std::count(set.begin(), set.end(), g.head(e)) && !std::count(set.begin(), set.end(), g.tail(e))) value += cap[e];
      CHECK(counts);
      CHECK(value < demand);
    }
  }
  CHECK(infeasible > 200 && infeasible < 1400);
}

TEST(feasibility_stops_when_asked) {
  Vertex n = 200;
  std::vector<Vertex> tail, head;
  for (Vertex v = 0; v < n; ++v) tail.push_back(v), head.push_back((v + 1) % n);
  std::vector<Amount> cap(n, n - 1), supply(n, 1);
  std::vector<std::uint8_t> terminal(n, 1);
  Digraph g(n, tail, head);
  FeasibilityCheck<Amount> check(g, terminal);
  CHECK(check.violated(cap, supply, n, 1).empty());
  CHECK_THROWS(Cancelled, check.violated(cap, supply, n, 1, [] { return true; }));
}
