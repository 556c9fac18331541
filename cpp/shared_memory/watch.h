// How a rank waits for others: briefly at full speed, then giving way, then asleep, and never for ever.
//
// A rank that shares its core with the one that it waits for must not spin, so after a few looks each further one
// gives the core away; after some milliseconds it sleeps for a fraction of the time already waited, which costs the
// collective at most that fraction. Long waits also look for what can go wrong: a fault that another rank has
// announced, a peer that has ended or left, a signal of this process, the deadline.
#pragma once

#include <chrono>

#include "core/stop.h"
#include "shared_memory/segment.h"

namespace coppice::shm {

class Watch {
 public:
  /// The time limit counts from here on.
  Watch(Segment& segment, int rank, double timeout_s, const StopFlag& stop);
  ~Watch() { woke(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Called after each look that found nothing to do. Args: peer: A rank that this one waits for.
  /// Throws Failed if there is no hope.
  void rest(int peer) {
    if (++looks_ <= kSpins && !segment_.faulty()) {
      relax();
    } else {
      rest_longer(peer);
    }
  }

  /// Called when there was something to do.
  void woke() noexcept;

  /// Rests until `is_ready()`.
  template <class IsReady>
  void until(int peer, IsReady&& is_ready) {
    while (!is_ready()) rest(peer);
    woke();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kSpins = 200;

  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  void rest_longer(int peer);
  [[noreturn]] void fail(FaultKind kind, int culprit);
  int who_is_late(int peer) const;

  Segment& segment_;
  const int rank_;
  const double timeout_s_;
  const Clock::time_point deadline_;
  const StopFlag& stop_;
  int looks_ = 0;
  int suspect_ = -1;  // seemed gone at the last look
  bool is_gone_ = false, is_waiting_ = false;
  Clock::time_point since_, next_check_;
};

}  // namespace coppice::shm
