// Goals of tacos.h: one attempt of an all-gather on a torus, by each rule.
// Usage: build/tacos/tacos.perf
#include "tacos/tacos.h"

#include <limits>
#include <numeric>

#include "testing/perf.h"

using namespace coppice;

namespace {

/// An all-gather of one chunk per rank on a square torus whose links take 1,000 units of time.
struct Torus {
  std::int32_t ranks;
  std::vector<std::int32_t> src, dst, port, source, target;
  std::vector<std::int64_t> duration, port_start{0};

  explicit Torus(std::int32_t side) : ranks(side * side) {
    for (std::int32_t v = 0; v < ranks; ++v) {
      const std::int32_t x = v % side, y = v / side;
      for (std::int32_t to : {y * side + (x + 1) % side, y * side + (x + side - 1) % side, (y + 1) % side * side + x,
                              (y + side - 1) % side * side + x}) {
        port.push_back(static_cast<std::int32_t>(src.size()));
        src.push_back(v);
        dst.push_back(to);
        port_start.push_back(static_cast<std::int64_t>(src.size()));
      }
    }
    duration.assign(src.size(), 1000);
    source.resize(static_cast<std::size_t>(ranks));
    std::iota(source.begin(), source.end(), 0);
    target.assign(source.size(), -1);
  }
  ChannelNetwork network() const {
    return {.num_ranks = ranks, .num_ports = static_cast<std::int32_t>(src.size()), .src = src, .dst = dst,
            .duration = duration, .port_start = port_start, .port = port, .hold = duration};
  }
};

void measure(std::int32_t side, MatchingRule rule, const std::string& name, double goal_s) {
  const Torus torus(side);
  std::int64_t time = 0;
  const double took = perf::seconds([&] {
    time = match_chunks(torus.network(), {torus.source, torus.target}, rule, 1, std::numeric_limits<std::int64_t>::max()).time;
  });
  const std::int64_t least = 1000 * ((torus.ranks - 1 + 3) / 4);
  perf::report("torus of " + std::to_string(torus.ranks) + ", " + name + ", time / bound " +
                   std::to_string(static_cast<double>(time) / static_cast<double>(least)),
               took, goal_s);
}

}  // namespace

int main() {
  for (std::int32_t side : {8, 16, 32}) {
    const double transfers = static_cast<double>(side) * side * side * side;
    measure(side, MatchingRule::kRandom, "random", transfers * 1e-6);
    measure(side, MatchingRule::kRarest, "rarest", transfers * 3e-6);
  }
}
