// What the tests of shared memory share: ranks that are threads, random numbers, buffers.
#pragma once

#include <cstdlib>
#include <exception>
#include <random>
#include <thread>
#include <vector>

#include "shared_memory/segment.h"

namespace coppice::shm::testing {

/// Runs `work(rank)` for all ranks at once, each in a thread. Returns: what each has thrown, or nothing.
template <class Work>
std::vector<std::exception_ptr> together(int ranks, Work&& work) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(rank);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

/// The fault that a rank has thrown, or one of kind none.
inline Fault fault_of(const std::exception_ptr& thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const Failed& failed) {
    return failed.fault;
  }
  return {};
}

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  /// A number from `low` to `high`, both included.
  std::int64_t roll(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  /// Small numbers are as likely as large ones.
  std::int64_t roll_size(std::int64_t high) { return roll(0, roll(0, roll(0, high))); }

 private:
  std::mt19937_64 engine_;
};

/// How often the randomised tests run: COPPICE_SHM_RUNS, or a number that takes a second or two.
inline int random_runs() {
  const char* wanted = std::getenv("COPPICE_SHM_RUNS");
  return wanted ? std::atoi(wanted) : 150;
}

}  // namespace coppice::shm::testing
