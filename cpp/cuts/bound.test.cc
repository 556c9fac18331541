#include "cuts/bound.h"

#include <random>
#include <stdexcept>

#include "testing/testing.h"

using namespace coppice;

TEST(bound_agrees_with_enumeration) {
  std::mt19937 random(11);
  auto pick = [&](int n) { return static_cast<int>(random() % n); };
  for (int trial = 0; trial < 1000; ++trial) {
    Vertex n = 2 + pick(6);
    std::vector<Vertex> tail, head;
    std::vector<Amount> cap;
    for (int e = pick(24); e >= 0; --e) {
      Vertex a = pick(n), b = pick(n);
      if (a == b) continue;
      tail.push_back(a), head.push_back(b), cap.push_back(1 + pick(9));
    }
    std::vector<std::uint8_t> terminal(n);
    std::vector<Amount> weight(n, 0);
    terminal[0] = 1;
    for (Vertex v = 0; v < n; ++v)
      if ((terminal[v] |= pick(2))) weight[v] = pick(3);
    weight[0] += 1;
    Digraph g(n, tail, head);
    Wide best_p = 0, best_q = 1, total = 0;
    for (Amount w : weight) total += w;
    for (unsigned set = 1; set < 1u << n; ++set) {
      Wide missing = total, in = 0;
      bool counts = false;
      for (Vertex v = 0; v < n; ++v)
        if (set >> v & 1) missing -= weight[v], counts |= terminal[v];
      for (Arc e = 0; e < g.num_arcs(); ++e)
        if ((set >> g.head(e) & 1) && !(set >> g.tail(e) & 1)) in += cap[e];
      if (counts && missing > 0 && best_q != 0 && (in == 0 || missing * best_q > best_p * in)) best_p = missing, best_q = in;
    }
    CutBound bound = cut_bound(g, terminal, weight, cap);
    CHECK(best_q == 0 ? bound.denominator == 0 : bound.numerator * best_q == best_p * bound.denominator);
  }
}

TEST(bound_survives_huge_capacities_and_names_overflow) {
  std::vector<Vertex> tail{0, 1}, head{1, 0};
  std::vector<std::uint8_t> terminal{1, 1};
  std::vector<Amount> weight{1, 1}, cap{(Amount{1} << 61) - 1, (Amount{1} << 60) + 3};
  CutBound bound = cut_bound(Digraph(2, tail, head), terminal, weight, cap);
  CHECK(bound.numerator == 1 && bound.denominator == cap[1]);
  cap = {Amount{1} << 62, 3};
  CHECK_THROWS(std::overflow_error, cut_bound(Digraph(2, tail, head), terminal, weight, cap));
}
