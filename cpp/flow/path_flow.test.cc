#include "flow/path_flow.h"

#include <cmath>
#include <stdexcept>

#include "testing/testing.h"

using namespace coppice;

namespace {

/// Two disjoint ways from 0 to 3, over 1 with capacity 3 and over 2 with capacity 1.
PathFlow two_ways(Amount demand) {
  std::vector<Vertex> tail{0, 1, 0, 2}, head{1, 3, 2, 3}, sources{0};
  std::vector<Amount> capacity{3, 3, 1, 1}, demands{0, 0, 0, demand};
  return {Digraph(4, tail, head), capacity, sources, demands};
}

}  // namespace

TEST(a_flow_splits_in_proportion_to_the_capacities) {
  PathFlow flow = two_ways(8);
  for (int sweep = 0; sweep < 40; ++sweep) flow.sweep(100);
  CHECK(std::abs(flow.worst() - 2) < 0.01);
  double bound = flow.bound(flow.lengths(100));
  CHECK(bound <= 2 + 1e-9);
  CHECK(bound > 1.98);
  FlowPaths paths = flow.paths();
  CHECK(paths.part.size() == 2);
  CHECK(std::abs(paths.part[0] + paths.part[1] - 1) < 1e-9);
  CHECK((paths.start == std::vector<std::int64_t>{0, 2, 4}));
}

TEST(the_first_sweep_lays_every_demand_on_a_path) {
  PathFlow flow = two_ways(8);
  CHECK(flow.worst() == 0);
  flow.sweep(8);
  CHECK(flow.worst() > 0);
  FlowPaths paths = flow.paths();
  CHECK(paths.part.size() == 1);
  CHECK(paths.source[0] == 0 && paths.target[0] == 3 && paths.part[0] == 1);
}

TEST(any_lengths_bound_the_largest_load) {
  PathFlow flow = two_ways(8);
  CHECK(std::abs(flow.bound(std::vector<double>{1, 0, 1, 0}) - 2) < 1e-12);   // a cut
  CHECK(std::abs(flow.bound(std::vector<double>{1, 1, 1, 1}) - 2) < 1e-12);
  CHECK(flow.bound(std::vector<double>{1, 1, 0, 0}) == 0);
}

TEST(a_stop_ends_a_sweep) {
  PathFlow flow = two_ways(8);
  bool stopped = false;
  try {
    flow.sweep(8, [] { return true; });
  } catch (const Cancelled&) {
    stopped = true;
  }
  CHECK(stopped);
}

TEST(columns_that_do_not_fit_are_refused) {
  auto refused = [](std::vector<Amount> capacity, std::vector<Vertex> sources, std::vector<Amount> demand, bool run) {
    std::vector<Vertex> tail{0}, head{1};
    try {
      PathFlow flow(Digraph(3, tail, head), capacity, sources, demand);
      if (run) flow.sweep(8);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  CHECK(refused({}, {0}, {0, 1, 0}, false));
  CHECK(refused({0}, {0}, {0, 1, 0}, false));
  CHECK(refused({1}, {3}, {0, 1, 0}, false));
  CHECK(refused({1}, {0}, {0, 1}, false));
  CHECK(refused({1}, {0}, {0, 0, 1}, true));
  CHECK(!refused({1}, {0}, {0, 1, 0}, true));
}
