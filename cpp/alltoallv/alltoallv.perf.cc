// Goals of alltoallv.h: the whole plan of a rank at run time, from counts to the rows of its program.
// Usage: build/alltoallv/alltoallv.perf
#include "alltoallv/alltoallv.h"

#include <numeric>
#include <random>
#include <string>

#include "testing/perf.h"

using namespace coppice;

namespace {

void measure(std::int32_t boxes, bool crossing, bool skewed, double goal_s) {
  const std::int32_t width = 8, ranks = boxes * width;
  RailNetwork network{boxes, width, std::vector<std::int32_t>(ranks), crossing, {}, {}};
  std::iota(network.order.begin(), network.order.end(), 0);
  network.near.assign(ranks, 9), network.far.assign(ranks, 1);
  std::mt19937_64 random(1);
  std::vector<Amount> counts(static_cast<std::size_t>(ranks) * ranks);
  for (Amount& each : counts) each = 4096;
  if (skewed)
    for (std::size_t x = 0; x < counts.size(); ++x) counts[x] = static_cast<Amount>(random() % 8192) * (x % ranks % 61 ? 1 : 6);
  std::size_t rows = 0;
  bool relays = false;
  const double took = perf::seconds([&] {
    AllToAllV plan(network, counts);
    relays = plan.relays();
    rows = plan.program(ranks / 2 + 3, 1 << 16).kind.size();
  });
  perf::report(std::to_string(ranks) + " ranks, " + (crossing ? "crossing, " : "rails, ") + (skewed ? "skewed" : "even") +
                   (relays ? ", relays, " : ", ") + std::to_string(rows) + " rows",
               took, goal_s);
}

}  // namespace

int main() {
  for (std::int32_t boxes : {2, 8, 64, 128})
    for (bool crossing : {true, false})
      for (bool skewed : {false, true}) measure(boxes, crossing, skewed, boxes <= 64 ? 1e-3 : 4e-3);
  return 0;
}
