// Goals of packing.h: time to pack the trees of large machines, and how soon the packer answers a request to stop.
// Usage: build/packing/packing.perf
#include "packing/packing.h"

#include "testing/perf.h"
#include "testing/packings.h"

using namespace coppice;
using coppice::testing::Network;
using coppice::testing::SymmetricNetwork;

namespace {

std::string title(const std::string& name, const Packing& packing, const std::string& fault) {
  if (!fault.empty()) return name + ": WRONG: " + fault.substr(0, 200);
  return name + ": " + std::to_string(packing.root.size()) + " trees, " + std::to_string(packing.stats.cuts) + " cuts";
}

void measure(const std::string& name, Network network, double goal_s) {
  using clock = std::chrono::steady_clock;
  network.scale_to_bound();
  Packing packing;
  double silence = 0;
  double time = perf::seconds([&] {
    auto last = clock::now();
    auto heard = [&] {
      auto now = clock::now();
      silence = std::max(silence, std::chrono::duration<double>(now - last).count());
      last = now;
    };
    packing = coppice::testing::pack(network, {}, [&] { return heard(), false; });
    heard();
  });
  perf::report(title(name, packing, coppice::testing::packing_fault(network, packing)), time, goal_s);
  perf::report(name + ": longest time without a look at the stop flag", silence, 0.5);
}

void measure(const std::string& name, SymmetricNetwork symmetric, double goal_s) {
  symmetric.network.scale_to_bound();
  Packing packing;
  double time = perf::seconds([&] { packing = coppice::testing::pack(symmetric); });
  perf::report(title(name, packing, coppice::testing::packing_fault(symmetric, packing)), time, goal_s);
}

}  // namespace

int main() {
  measure("16 DGX A100", coppice::testing::dgx_a100(16), 0.1);
  measure("128 DGX A100", coppice::testing::dgx_a100(128), 3);
  measure("2 MI250", coppice::testing::mi250(2), 0.1);
  measure("64 MI250", coppice::testing::mi250(64), 10);
  measure("torus of 16 x 16, templates", coppice::testing::torus({16, 16}, {1, 1}), 0.1);
}
