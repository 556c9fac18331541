// Goals of schedules.h: nanoseconds of an action, of all-gathers around a ring with many chunks.
// Usage: build/put_signal/schedules.perf
#include "put_signal/schedules.h"

#include <string>
#include <vector>

#include "testing/perf.h"

using namespace coppice;
using namespace coppice::put_signal;

namespace {

/// Rank r begins with `pieces` slots of its own and gets all others from the rank before it, one after the other.
void measure(std::int64_t ranks, std::int64_t pieces, double goal_ns) {
  std::vector<std::int64_t> rank_start{0}, call_start{0}, stream, communicator, act, peer, count, source, target;
  const std::int64_t slots = ranks * pieces;
  const auto call = [&] {
    call_start.push_back(static_cast<std::int64_t>(act.size()));
    stream.push_back(0);
    communicator.push_back(0);
  };
  const auto row = [&](Act what, std::int64_t whom, std::int64_t many, std::int64_t from, std::int64_t to) {
    act.push_back(static_cast<std::int64_t>(what));
    peer.push_back(whom);
    count.push_back(many);
    source.push_back(from);
    target.push_back(to);
  };
  for (std::int64_t r = 0; r < ranks; ++r) {
    const std::int64_t next = (r + 1) % ranks, last = (r + ranks - 1) % ranks;
    row(Act::kSignal, last, 0, -1, -1);
    call();
    row(Act::kWait, next, 1, -1, -1);
    call();
    for (std::int64_t step = 0; step + 1 < ranks; ++step) {
      const std::int64_t block = (r + ranks - step) % ranks * pieces;
      for (std::int64_t k = block; k < block + pieces; ++k) row(Act::kPut, next, 1, r * slots + k, next * slots + k);
      call();
      row(Act::kWait, last, pieces, -1, -1);
      call();
    }
    rank_start.push_back(static_cast<std::int64_t>(stream.size()));
  }
  const std::vector<std::int64_t> zeros(act.size());
  const Script script({.num_slots = ranks * slots, .rank_start = rank_start, .call_start = call_start, .stream = stream,
                       .communicator = communicator, .act = act, .peer = peer, .context = zeros, .signal = zeros,
                       .count = count, .source = source, .addend = source, .target = target});
  std::vector<std::uint64_t> begin(static_cast<std::size_t>(ranks * slots)), wanted;
  std::vector<std::int64_t> output, starts{0};
  for (std::int64_t r = 0; r < ranks; ++r) {
    for (std::int64_t k = r * pieces; k < (r + 1) * pieces; ++k) begin[static_cast<std::size_t>(r * slots + k)] = static_cast<std::uint64_t>(k + 1);
    for (std::int64_t k = 0; k < slots; ++k) wanted.push_back(static_cast<std::uint64_t>(k + 1));
    output.push_back(r * slots);
    starts.push_back((r + 1) * slots);
  }
  double actions = 1;
  const double took = perf::seconds([&] {
    const Runs found = run_schedules(script, {1, begin, output, starts, wanted}, 0, 2 * kAdversaries);
    actions = found.fault ? 1 : static_cast<double>(found.actions);
  });
  perf::report("ring of " + std::to_string(ranks) + ", " + std::to_string(pieces) + " pieces: a million actions", took / actions * 1e6,
               goal_ns * 1e-3);
}

}  // namespace

int main() {
  measure(8, 16, 60);
  measure(16, 64, 100);
  measure(32, 256, 200);
}
