#include "stream_trees/stream.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>

#include "aggregation/state.h"

namespace coppice::aggregation {

namespace {

constexpr int kMostBackoff = 5;      // time-outs double up to 32 times the first
constexpr int kLaterToHurry = 3;     // acknowledged later packets that make a missing one lost

std::uint64_t shifted(std::uint64_t bits, std::uint32_t by) { return by >= 64 ? 0 : bits >> by; }

}  // namespace

Arrival ReceiveWindow::look(std::uint32_t sequence) const {
  const std::int32_t after = distance(sequence, next_);
  if (after < 0) return Arrival::duplicate;
  if (after == 0) return Arrival::fresh;
  if (after > kMostWindow) return Arrival::future;
  return (beyond_ >> (after - 1) & 1) != 0 ? Arrival::duplicate : Arrival::fresh;
}

void ReceiveWindow::take(std::uint32_t sequence) {
  const std::int32_t after = distance(sequence, next_);
  if (after > 0) {
    beyond_ |= std::uint64_t{1} << (after - 1);
    return;
  }
  const std::uint32_t step = 1 + static_cast<std::uint32_t>(std::countr_one(beyond_));
  next_ += step;
  beyond_ = shifted(beyond_, step);
}

void ReceiveWindow::save(StateWriter& state) const {
  state << next_ << beyond_;
}

SendWindow::SendWindow(std::vector<Endpoint> receivers, int window, std::size_t most_bytes, std::uint32_t first,
                       Time timeout, Time give_up_timeout)
    : window_(window), mask_(std::bit_ceil(static_cast<std::uint32_t>(std::max(window, 1))) - 1), most_bytes_(most_bytes),
      timeout_(timeout), give_up_timeout_(give_up_timeout > kNever / 4 ? kNever : give_up_timeout), base_(first), next_(first), everyone_(std::move(receivers)) {
  if (window < 1 || window > kMostWindow) {
    throw std::invalid_argument("expected a window of 1 to 64 packets, found " + std::to_string(window));
  }
  if (timeout < 1) throw std::invalid_argument("expected a time-out of at least 1 ns, found " + std::to_string(timeout));
  for (Endpoint to : everyone_) receivers_.push_back({.to = to, .next = first});
  packets_.resize((std::size_t{mask_} + 1) * most_bytes);
  sizes_.resize(std::size_t{mask_} + 1, 0);
}

bool SendWindow::lacks(const Receiver& receiver, std::uint32_t sequence) const {
  const std::int32_t after = distance(sequence, receiver.next);
  return after == 0 || (after > 0 && (receiver.beyond >> (after - 1) & 1) == 0);
}

void SendWindow::send(std::uint32_t sequence, std::size_t size, Time now, Outbox& out, Counters& counters) {
  if (due_ == kNever) due_ = now + timeout_;
  for (Receiver& each : receivers_) {
    if (each.next == next_) each.since = now;
  }
  sizes_[slot(sequence)] = size;
  if (distance(sequence, next_) >= 0) next_ = sequence + 1;
  counters[Count::sent] += everyone_.size();
  out.send(everyone_, packet(sequence));
}

// Bit i of `which`: packet next + i, if the receiver lacks it. Whether there was any.
bool SendWindow::send_missing(Receiver& receiver, std::uint64_t which, Outbox& out, Counters& counters) {
  bool any = false;
  for (int after = 0; after < distance(next_, receiver.next); ++after) {
    const std::uint32_t sequence = receiver.next + static_cast<std::uint32_t>(after);
    if ((which >> after & 1) == 0 || !lacks(receiver, sequence) || sizes_[slot(sequence)] == 0) continue;
    any = true;
    ++counters[Count::resent];
    out.send(receiver.to, packet(sequence));
  }
  return any;
}

Acknowledged SendWindow::acknowledge(std::size_t which, std::uint32_t next, std::uint64_t beyond, bool again, Time now,
                                     Outbox& out, Counters& counters) {
  Receiver& receiver = receivers_[which];
  const std::int32_t ahead = distance(next, receiver.next);
  const std::int32_t last = distance(next_, next);  // packets that are still to be acknowledged
  if (last < 0) return Acknowledged::impossible;
  if (ahead < 0) return Acknowledged::nothing_new;
  beyond &= last <= 1 ? 0 : last >= 65 ? ~std::uint64_t{0} : (std::uint64_t{1} << (last - 1)) - 1;
  const std::uint64_t known = ahead == 0 ? receiver.beyond : 0;
  const bool progress = ahead > 0 || (beyond & ~known) != 0;
  receiver.next = next;
  receiver.beyond = beyond | known;
  receiver.hurried = shifted(receiver.hurried, static_cast<std::uint32_t>(ahead));
  receiver.since = now;
  if (progress) {
    std::uint32_t base = next_;
    for (const Receiver& each : receivers_) {
      if (distance(each.next, base) < 0) base = each.next;
    }
    for (; base_ != base; ++base_) sizes_[slot(base_)] = 0;
    backoff_ = 0;
    due_ = idle() ? kNever : now + timeout_;
    // Packets that enough later ones have overtaken are taken as lost, once each.
    std::uint64_t lost = 0;
    int later = 0;
    for (int after = 63; after >= 0; --after) {
      if (after > 0 && (receiver.beyond >> (after - 1) & 1) != 0) {
        ++later;
      } else if (later >= kLaterToHurry) {
        lost |= std::uint64_t{1} << after;
      }
    }
    lost &= ~receiver.hurried;
    receiver.hurried |= lost;
    if (lost != 0 && !again) send_missing(receiver, lost, out, counters);
  }
  if (again && send_missing(receiver, ~std::uint64_t{0}, out, counters)) due_ = now + timeout_;
  if (due_ == kNever && !idle()) due_ = now + timeout_;  // it had been silent for too long
  return progress ? Acknowledged::progress : Acknowledged::nothing_new;
}

void SendWindow::wake(Time now, Outbox& out, Counters& counters) {
  if (now < due_) return;
  bool any = false;
  for (Receiver& each : receivers_) {
    if (now - each.since > give_up_timeout_) continue;  // silent for too long: until it says something
    if (send_missing(each, ~std::uint64_t{0}, out, counters)) any = true;
  }
  due_ = any ? now + (timeout_ << backoff_) : kNever;
  backoff_ = std::min(backoff_ + 1, kMostBackoff);
}

void SendWindow::save(Time now, StateWriter& state) const {
  state << base_ << next_ << (due_ == kNever ? -1 : std::max<Time>(due_ - now, 0)) << backoff_;
  for (const Receiver& each : receivers_) {
    state << each.next << each.beyond << each.hurried;
    state << (each.next == next_ || give_up_timeout_ == kNever ? 0 : each.since - now);
  }
  for (std::uint32_t sequence = base_; sequence != next_; ++sequence) state << packet(sequence);
}

}  // namespace coppice::aggregation
