// A supply of elementary steps, so that searches end; it also polls the stop flag.
#pragma once

#include <cstdint>

#include "core/stop.h"

namespace coppice {

class Budget {
 public:
  Budget(std::int64_t steps, const StopFlag& stop) : left_(steps), next_poll_(steps), stop_(stop) {}

  /// Throws Cancelled when the stop flag says so, which is asked once per million steps.
  void spend(std::int64_t steps) {
    left_ -= steps;
    if (left_ >= next_poll_) return;
    next_poll_ = left_ - kStepsPerPoll;
    poll(stop_);
  }

  std::int64_t left() const { return left_; }
  bool exhausted() const { return left_ <= 0; }

 private:
  static constexpr std::int64_t kStepsPerPoll = 1 << 20;

  std::int64_t left_;
  std::int64_t next_poll_;
  StopFlag stop_;
};

}  // namespace coppice
