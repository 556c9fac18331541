// Weighted fair shares of one processor's time between applications whose tasks differ in length.
//
// An application's virtual time is the processor time that it had, divided by its weight. The next task is of the
// application that would be behind the others after it, by the mean of its measured task times; what a task then took
// is charged. So shares are of time, not of tasks, and an application that was idle has saved nothing up.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregation/node.h"

namespace coppice::aggregation {

struct FairShare {
  std::int64_t weight = 1;
  std::int64_t used = 0;  // virtual time, in 1/1024 ns
  std::int64_t mean = 0;  // of measured task times, in ns: each new one counts an eighth
  std::int64_t after_next() const { return used + mean * 1024 / weight; }
  // A task came to an application that had none; `clock` is the virtual time of the one that was served last.
  void wait(std::int64_t clock) { used = std::max(used, clock); }
  void charge(Time measured) {
    used += measured * 1024 / weight;
    mean = mean == 0 ? measured : (7 * mean + measured) / 8;
  }
};

}  // namespace coppice::aggregation
