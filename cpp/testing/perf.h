// A benchmark harness of one header: times a piece of work and prints it beside its goal.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

namespace coppice::perf {

/// Seconds of wall time that `work` takes, the best of several runs where it is short.
template <class Work>
double seconds(Work&& work) {
  using clock = std::chrono::steady_clock;
  double best = 0, spent = 0;
  for (int run = 0; run == 0 || (run < 5 && spent < 2); ++run) {
    auto start = clock::now();
    work();
    double time = std::chrono::duration<double>(clock::now() - start).count();
    best = run == 0 ? time : std::min(best, time);
    spent += time;
  }
  return best;
}

/// One line: what was done, the figure in milliseconds, its goal, and whether it was reached.
inline void report(const std::string& what, double measured_s, double goal_s) {
  std::printf("%-60s %10.3f ms   goal %8.1f ms   %s\n", what.c_str(), 1e3 * measured_s, 1e3 * goal_s,
              measured_s <= goal_s ? "ok" : "MISS");
}

}  // namespace coppice::perf
