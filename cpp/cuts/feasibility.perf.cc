// Goals of feasibility.h and bound.h: what the bound of a machine costs, and one check of it while trees are packed.
// Usage: build/cuts/feasibility.perf
#include "cuts/feasibility.h"

#include "cuts/bound.h"
#include "testing/perf.h"
#include "testing/networks.h"

using namespace coppice;
using coppice::testing::Network;

namespace {

struct Goals {
  double bound_s;  // the exact bound from nothing
  double check_s;  // one check that holds
  double sets_s;   // all violated sets, one for each terminal
};

void measure(const std::string& name, Network network, const Goals& goals) {
  Digraph graph = network.graph();
  int rounds = 0;
  double bound = perf::seconds([&] {
    rounds = cut_bound(graph, network.terminal, network.roots, network.capacity).rounds;
  });
  perf::report(name + ": exact bound, " + std::to_string(rounds) + " rounds", bound, goals.bound_s);

  network.scale_to_bound();
  FeasibilityCheck<Amount> check(graph, network.terminal);
  bool holds = false;
  double once = perf::seconds([&] {
    holds = check.violated(network.capacity, network.roots, network.num_trees(), 1).empty();
  });
  perf::report(name + (holds ? ": check that holds" : ": check that FAILS"), once, goals.check_s);

  std::size_t sets = 0;
  for (Amount& r : network.roots) ++r;
  double all = perf::seconds([&] {
    sets = check.violated(network.capacity, network.roots, network.num_trees(), graph.num_vertices()).size();
  });
  perf::report(name + ": all " + std::to_string(sets) + " violated sets", all, goals.sets_s);
}

}  // namespace

int main() {
  measure("128 DGX A100", coppice::testing::dgx_a100(128), {.bound_s = 2e-3, .check_s = 1e-3, .sets_s = 0.25});
  measure("64 MI250", coppice::testing::mi250(64), {.bound_s = 3e-3, .check_s = 1e-3, .sets_s = 0.25});
}
