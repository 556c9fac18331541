#include "hardware_trees/window.h"

#include <algorithm>

namespace coppice::aggregation {

WindowWorker::WindowWorker(const Job& job, int index, Endpoint above, std::uint32_t first)
    : job_(job), above_(above), first_(first), base_(first), sent_(first), end_(first) {
  check_job(job);
  require(index >= 0 && index < job.workers, "expected a worker's number below the job's workers");
  got_.resize(std::bit_ceil(static_cast<std::size_t>(job.window)));
}

void WindowWorker::start(std::size_t frames, Time now, Outbox& out) {
  require(done(), "expected the all-reduce before to be done");
  require(frames < std::size_t{1} << 30, "expected fewer than 2^30 frames");
  first_ = end_;
  end_ += static_cast<std::uint32_t>(frames);
  progress_ = now;
  timer_ = later(now, job_.timeout);
  proceed(out);
}

void WindowWorker::proceed(Outbox& out) {
  while (paused_until_ == 0 && sent_ != end_ && after(sent_, base_) < job_.window && allowed(sent_)) {
    count(Count::sent);
    write(sent_++, out);
  }
}

void WindowWorker::send_again(std::uint32_t from, Outbox& out) {
  for (std::uint32_t number = from; number != sent_; ++number) {
    if (got_[number % got_.size()]) continue;
    count(Count::resent);
    write(number, out);
  }
}

bool WindowWorker::read(Endpoint from, Bytes packet, FrameHead& head) {
  count(Count::received);
  if (!FrameHead::read(packet, head)) {
    count(Count::malformed);
  } else if (from != above_ || head.job != job_.id) {
    count(Count::unknown_sender);
  } else {
    return true;
  }
  return false;
}

bool WindowWorker::awaited(std::uint32_t number) {
  if (after(number, base_) < 0) {
    count(Count::stale);
  } else if (after(number, sent_) >= 0) {
    count(Count::future);
  } else if (got_[number % got_.size()]) {
    count(Count::duplicate);
  } else {
    count(Count::completed);
    return true;
  }
  return false;
}

void WindowWorker::take(std::uint32_t number, Time now, Outbox& out) {
  got_[number % got_.size()] = 1;
  for (; base_ != sent_ && got_[base_ % got_.size()]; ++base_) got_[base_ % got_.size()] = 0;
  progress_ = now;
  timer_ = later(now, job_.timeout);
  if (done()) paused_until_ = 0;
  proceed(out);
}

Time WindowWorker::deadline() const {
  if (done() || !failure_.empty()) return kNever;
  return std::min(paused_until_ > 0 ? paused_until_ : timer_, later(progress_, job_.give_up_timeout));
}

void WindowWorker::wake(Time now, Outbox& out) {
  if (now < deadline()) return;
  if (now >= later(progress_, job_.give_up_timeout)) {
    failure_ = "no sum of frame " + std::to_string(base_ - first_) + " of " + std::to_string(end_ - first_) +
               " came in the job's give-up timeout: some worker is silent, or the switch is";
    return;
  }
  paused_until_ = 0;
  if (now >= timer_) {
    send_again(base_, out);
    timer_ = later(now, job_.timeout);
  }
  proceed(out);
}

void WindowWorker::save(Time now, StateWriter& state) const {
  state << base_ << sent_ << end_ << first_ << got_ << std::max<Time>(paused_until_ - now, 0) << failure_.empty();
  if (!done()) state << timer_ - now;
  if (!done() && job_.give_up_timeout != kNever) state << progress_ - now;
}

}  // namespace coppice::aggregation
