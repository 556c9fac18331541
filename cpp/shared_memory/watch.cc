#include "shared_memory/watch.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

namespace coppice::shm {

namespace {

using Seconds = std::chrono::duration<double>;
constexpr Seconds kGivesWay{2e-3};      // afterwards it sleeps
constexpr double kSleepShare = 1.0 / 16;  // of the time waited so far
constexpr Seconds kLongestSleep{1e-3};
constexpr std::chrono::milliseconds kBetweenChecks{10};

std::chrono::steady_clock::time_point after(double timeout_s) {
  auto now = std::chrono::steady_clock::now();
  constexpr double kForever = 1e9;
  return now + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                   Seconds(std::clamp(timeout_s, 0.0, kForever)));
}

}  // namespace

Watch::Watch(Segment& segment, int rank, double timeout_s, const StopFlag& stop)
    : segment_(segment), rank_(rank), timeout_s_(timeout_s), deadline_(after(timeout_s)), stop_(stop) {
  if (segment_.faulty()) throw Failed(segment_.fault());
}

void Watch::woke() noexcept {
  looks_ = 0;
  if (!is_waiting_) return;
  is_waiting_ = false;
  suspect_ = -1;
  segment_.record(rank_).awaits.store(0, std::memory_order_relaxed);
}

void Watch::fail(FaultKind kind, int culprit) { throw Failed(segment_.announce({kind, culprit, rank_})); }

void Watch::rest_longer(int peer) {
  if (segment_.faulty()) throw Failed(segment_.fault());
  auto now = Clock::now();
  RankRecord& own = segment_.record(rank_);
  if (!is_waiting_) {
    is_waiting_ = true;
    since_ = now;
    next_check_ = now + kBetweenChecks;
  } else if (now >= next_check_) {
    next_check_ = now + kBetweenChecks;
    own.awaits.store(static_cast<std::uint32_t>(peer) + 1, std::memory_order_relaxed);
    own.awake_ms.store(host_clock_ms(), std::memory_order_relaxed);
    // What the suspect did before it went may have come in between: only a look after the suspicion counts.
    if (suspect_ >= 0) fail(is_gone_ ? FaultKind::lost : FaultKind::left, suspect_);
    is_gone_ = !segment_.alive(peer);
    if (is_gone_ || segment_.record(peer).presence.load(std::memory_order_acquire) == Presence::left) suspect_ = peer;
    if (stop_ && stop_()) fail(FaultKind::interrupted, rank_);
  }
  if (now >= deadline_) fail(FaultKind::timed_out, who_is_late(peer));
  Seconds waited = now - since_;
  if (waited < kGivesWay) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(std::min(kLongestSleep, waited * kSleepShare));
  }
}

int Watch::who_is_late(int peer) const {
  // A rank that waits itself says so every few milliseconds: follow who waits for whom to one that does not.
  auto stale_ms = static_cast<std::uint64_t>(std::clamp(timeout_s_ * 250, 100.0, 1000.0));
  std::uint64_t now = host_clock_ms();
  std::vector<char> seen(static_cast<std::size_t>(segment_.ranks()), 0);
  seen[static_cast<std::size_t>(rank_)] = 1;
  int at = peer;
  while (!seen[static_cast<std::size_t>(at)]) {
    seen[static_cast<std::size_t>(at)] = 1;
    const RankRecord& record = segment_.record(at);
    std::uint32_t awaits = record.awaits.load(std::memory_order_relaxed);
    if (awaits == 0 || awaits > seen.size()) return at;
    if (record.awake_ms.load(std::memory_order_relaxed) + stale_ms < now) return at;
    at = static_cast<int>(awaits) - 1;
  }
  return peer;
}

}  // namespace coppice::shm
