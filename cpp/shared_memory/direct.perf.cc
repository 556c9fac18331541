// Goals of direct.h: all-reduces of float32, 4 ranks as threads, against the time that the memory needs.
// Usage: build/shared_memory/direct.perf
#include "shared_memory/direct.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "testing/perf.h"

using namespace coppice;
using namespace coppice::shm;

namespace {

/// Seconds per call of one rank's work, all ranks at once.
template <class Work>
double together(int ranks, Work&& work) {
  return perf::seconds([&] {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { work(rank); });
    for (std::thread& thread : threads) thread.join();
  });
}

void measure(int ranks, std::int64_t bytes, double goal_share) {
  int repeats = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{256} << 20) / bytes, 2, 2000));
  std::vector<std::vector<std::byte>> in, out;
  for (int rank = 0; rank < ranks; ++rank) {
    in.emplace_back(static_cast<std::size_t>(bytes), std::byte{1});
    out.emplace_back(static_cast<std::size_t>(bytes), std::byte{2});
  }
  double limit = together(ranks, [&](int rank) {
    for (int i = 0; i < repeats; ++i) std::memcpy(out[rank].data(), in[rank].data(), static_cast<std::size_t>(bytes));
  });
  Segment segment = Segment::anonymous(ranks);
  std::vector<std::int64_t> bounds(static_cast<std::size_t>(ranks) + 1, bytes / 4);
  bounds[0] = 0;
  std::vector<Direct> direct;
  for (int rank = 0; rank < ranks; ++rank) direct.emplace_back(segment, rank);
  double time = together(ranks, [&](int rank) {
    DirectCall call{Collective::all_reduce, in[rank].data(), out[rank].data(), bounds, DataType::float32};
    for (int i = 0; i < repeats; ++i) direct[rank].run(call, 60);
  });
  perf::report("all-reduce, " + std::to_string(ranks) + " ranks, " + std::to_string(bytes >> 10) + " KiB (copies alone: " +
                   std::to_string(1e6 * limit / repeats).substr(0, 7) + " us)",
               time / repeats, limit / repeats / goal_share);
}

}  // namespace

int main() {
  for (int ranks : {2, 4, 8}) {
    for (std::int64_t bytes : {64 << 10, 1 << 20, 16 << 20}) measure(ranks, bytes, bytes < 1 << 20 ? 0.02 : 0.25);
    measure(ranks, std::int64_t{256} << 20, 0.5);
  }
}
