#include "quickest/quickest.h"

#include <cmath>
#include <random>
#include <stdexcept>

#include "testing/testing.h"

using namespace coppice;

namespace {

struct Drawn {
  std::vector<Vertex> tail, head;
  std::vector<double> rate, supply;
  std::vector<std::int64_t> latency;
};

Drawn drawn(std::mt19937& random, Vertex n, int most_latency) {
  auto pick = [&](int below) { return static_cast<int>(random() % below); };
  Drawn made;
  for (Vertex v = 1; v < n; ++v) made.tail.push_back(v), made.head.push_back(pick(v));  // all reach 0
  for (int e = pick(8); e > 0; --e) {
    Vertex a = pick(n), b = pick(n);
    if (a != b) made.tail.push_back(a), made.head.push_back(b);
  }
  for (std::size_t e = 0; e < made.tail.size(); ++e) made.rate.push_back(1 + pick(4)), made.latency.push_back(pick(most_latency));
  for (Vertex v = 0; v < n; ++v) made.supply.push_back(v ? pick(20) : 0);
  return made;
}

/// The least whole time, by flows in the network expanded over steps of time: with whole latencies, what enters an arc in a
/// step comes out in a step.
int by_steps(const Drawn& drawn, Vertex n) {
  double total = 0;
  for (double each : drawn.supply) total += each;
  if (total == 0) return 0;
  for (int time = 1;; ++time) {
    struct Edge { int to; double left; };
    std::vector<Edge> edges;
    std::vector<std::vector<int>> out(2 + n * time);
    auto add = [&](int a, int b, double c) {
      out[a].push_back(static_cast<int>(edges.size())), edges.push_back({b, c});
      out[b].push_back(static_cast<int>(edges.size())), edges.push_back({a, 0});
    };
    auto at = [&](int v, int t) { return 2 + v * time + t; };
    for (Vertex v = 0; v < n; ++v) {
      if (drawn.supply[v] > 0) add(0, at(v, 0), drawn.supply[v]);
      for (int t = 0; t + 1 < time; ++t) add(at(v, t), at(v, t + 1), 1e9);
    }
    add(at(0, time - 1), 1, 1e9);
    for (std::size_t e = 0; e < drawn.tail.size(); ++e)
      for (int t = 0; t + drawn.latency[e] < time; ++t)
        add(at(drawn.tail[e], t), at(drawn.head[e], t + static_cast<int>(drawn.latency[e])), drawn.rate[e]);
    double flow = 0;
    for (;;) {
      std::vector<int> by(out.size(), -1), todo{0};
      for (std::size_t i = 0; i < todo.size() && by[1] < 0; ++i)
        for (int e : out[todo[i]])
          if (edges[e].left > 0 && by[edges[e].to] < 0 && edges[e].to) by[edges[e].to] = e, todo.push_back(edges[e].to);
      if (by[1] < 0) break;
      double most = 1e18;
      for (int v = 1; v; v = edges[by[v] ^ 1].to) most = std::min(most, edges[by[v]].left);
      for (int v = 1; v; v = edges[by[v] ^ 1].to) edges[by[v]].left -= most, edges[by[v] ^ 1].left += most;
      flow += most;
    }
    if (flow >= total - 1e-9) return time;
  }
}

/// Both sides of the inequality at a time.
std::pair<double, double> sides(const Drawn& drawn, const Labelling& labelling, double time) {
  auto p = [&](Vertex v) {
    const auto offset = static_cast<double>(labelling.offset[v]);
    return labelling.from_end[v] ? time - offset : offset;
  };
  double needed = 0, room = 0;
  for (Vertex v = 1; v < static_cast<Vertex>(drawn.supply.size()); ++v)
    if (p(v) == 0) needed += drawn.supply[v];
  for (std::size_t e = 0; e < drawn.tail.size(); ++e)
    room += drawn.rate[e] * std::max(0.0, p(drawn.head[e]) - p(drawn.tail[e]) - static_cast<double>(drawn.latency[e]));
  return {needed, room};
}

}  // namespace

TEST(quickest_agrees_with_steps_of_time) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    const Vertex n = 2 + static_cast<Vertex>(random() % 5);
    const Drawn made = drawn(random, n, trial % 3 ? 4 : 1);
    Digraph graph(n, made.tail, made.head);
    const Quickest found = quickest_to({graph, made.rate, made.latency}, made.supply, 0, 0, 100);
    CHECK(found.complete);
    CHECK(by_steps(made, n) == static_cast<int>(std::ceil(found.time - 1e-6)));
  }
}

TEST(labellings_prove_the_time) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 500; ++trial) {
    const Vertex n = 2 + static_cast<Vertex>(random() % 6);
    const Drawn made = drawn(random, n, 5);
    Digraph graph(n, made.tail, made.head);
    const Quickest found = quickest_to({graph, made.rate, made.latency}, made.supply, 0, 0, trial % 2 ? 100 : 2);
    if (found.labelling.offset.empty()) continue;  // distances alone
    const auto [needed, room] = sides(made, found.labelling, found.time);
    CHECK(std::abs(needed - room) < 1e-6 * needed);
    const auto [before, less] = sides(made, found.labelling, found.time - 1e-3);
    CHECK(before == needed && less < room);
  }
}

TEST(enough_time_for_one_source_is_seen_without_labels) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const Vertex n = 2 + static_cast<Vertex>(random() % 6);
    Drawn made = drawn(random, n, 5);
    const Vertex source = 1 + static_cast<Vertex>(random() % (n - 1));
    made.supply.assign(n, 0);
    made.supply[source] = 1 + static_cast<double>(random() % 40);
    Digraph graph(n, made.tail, made.head);
    const auto from = [&](double least) { return quickest_to({graph, made.rate, made.latency}, made.supply, 0, least, 100); };
    const Quickest found = from(0);
    CHECK(by_steps(made, n) == static_cast<int>(std::ceil(found.time - 1e-6)));
    CHECK(from(found.time * (1 + 1e-9)).steps == 0);
    if (found.labelling.offset.empty()) continue;  // the way alone takes as long
    const Quickest later = from(found.time - 1e-3);
    CHECK(!later.labelling.offset.empty() && std::abs(later.time - found.time) < 1e-6);
  }
}

TEST(quickest_refuses_what_has_no_answer) {
  std::vector<Vertex> tail{0}, head{1};
  std::vector<double> rate{1}, supply{1, 1}, none{0, 0}, wrong{0};
  std::vector<std::int64_t> latency{0};
  Digraph graph(2, tail, head);
  CHECK_THROWS(std::invalid_argument, quickest_to({graph, rate, latency}, supply, 0, 0, 10));
  CHECK_THROWS(std::invalid_argument, quickest_to({graph, wrong, latency}, none, 0, 0, 10));
  CHECK(quickest_to({graph, rate, latency}, none, 0, 0, 10).time == 0);
  CHECK(quickest_to({graph, rate, latency}, supply, 1, 0, 10).time == 1);
}
