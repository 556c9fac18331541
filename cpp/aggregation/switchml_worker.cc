#include <algorithm>
#include <bit>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "aggregation/state.h"
#include "aggregation/switchml.h"
#include "aggregation/values.h"
#include "numerics/block_float.h"

namespace coppice::aggregation {

using Packet = SwitchMlPacket;

namespace {

// The time so long after another, never at the latest.
Time after(Time start, Time wait) { return wait > kNever - start ? kNever : start + wait; }

}  // namespace

SwitchMlWorker::SwitchMlWorker(const Job& job, int index, Endpoint above)
    : job_(job), index_(index), above_(above), first_id_(Packet::first_id(job)) {
  Packet::check(job);
  if (index < 0 || index >= job.workers) {
    throw std::invalid_argument("expected a worker 0 to " + std::to_string(job.workers - 1) + ", found " +
                                std::to_string(index));
  }
  adaptive_ = job.setting("adaptive_timeout", 0) != 0;
  doubled_after_ = static_cast<Time>(job.setting("doubled_after", adaptive_ ? job.window : 100));
  slots_.resize(static_cast<std::size_t>(job.slots));
  ready_.resize(slots_.size());
  exponents_.resize(static_cast<std::size_t>(job.window));
  packet_.resize(Packet::size_of(job.values));
  block_.resize(static_cast<std::size_t>(job.values));
}

void SwitchMlWorker::begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) {
  if (!failure_.empty()) throw std::invalid_argument("expected a worker that has not given up: " + failure_);
  if (remaining_ > 0) throw std::invalid_argument("expected the all-reduce before to be done, found it under way");
  const auto used = std::min<std::int64_t>(packets_, job_.slots);
  for (std::int64_t packet = 0; packet < used; ++packet) slots_[slot_of(packet)].packet = -1;
  first_id_ += static_cast<std::uint32_t>(packets_);
  first_slot_ = (first_slot_ + packets_) % job_.slots;
  input_ = static_cast<const std::uint8_t*>(input);
  output_ = static_cast<std::uint8_t*>(output);
  count_ = static_cast<std::int64_t>(count);
  blocks_ = (count_ + job_.values - 1) / job_.values;
  lead_ = job_.element == Element::float32 ? std::min<std::int64_t>(job_.window, blocks_) : 0;
  packets_ = remaining_ = blocks_ + lead_;
  progress_ = now;
  silent_ = 0;
  const auto first = std::min<std::int64_t>(lead_ > 0 ? lead_ : packets_, job_.slots);
  for (std::int64_t packet = 0; packet < first && failure_.empty(); ++packet) offer(packet, now, out);
}

bool SwitchMlWorker::has_returned(std::int64_t packet) const {
  const Slot& slot = slots_[slot_of(packet)];
  return slot.packet > packet || (slot.packet == packet && !slot.under_way);
}

// Sends a packet, or queues it for the window, if all that it depends on has come back.
void SwitchMlWorker::offer(std::int64_t packet, Time now, Outbox& out) {
  if (packet >= packets_) return;
  const std::int64_t slots = job_.slots;
  if (packet >= slots && !has_returned(packet - slots)) return;
  if (packet >= lead_ && lead_ > 0 && !has_returned(packet - lead_)) return;
  if (under_way_ < job_.window) return send(packet, now, out);
  ready_[(ready_at_ + ready_size_++) % ready_.size()] = packet;
}

void SwitchMlWorker::send(std::int64_t packet, Time now, Outbox& out) {
  const std::size_t at = slot_of(packet);
  Slot& slot = slots_[at];
  slot.packet = packet;
  slot.sent = now;
  slot.under_way = true;
  slot.again = false;
  ++under_way_;
  enqueue(at);
  count(Count::sent);
  write(packet, slot.set, out);
}

void SwitchMlWorker::write(std::int64_t packet, bool set, Outbox& out) {
  Packet head{Packet::kind_of(job_.values), static_cast<std::uint8_t>(job_.id),
              first_id_ + static_cast<std::uint32_t>(packet), set, static_cast<int>(slot_of(packet)), {}};
  const std::int64_t values = job_.values, block = packet - lead_;
  std::uint8_t* to = packet_.data() + Packet::kHead;
  std::size_t n = 0;
  if (block >= 0) {
    n = static_cast<std::size_t>(std::min(values, count_ - block * values));
    const std::uint8_t* from = input_ + 4 * block * values;
    if (lead_ > 0) {
      numerics::quantise_big_endian(reinterpret_cast<const float*>(from), to, n,
                                    exponents_[static_cast<std::size_t>(block % lead_)], job_.workers);
    } else {
      store_values(reinterpret_cast<const std::int32_t*>(from), to, n);
    }
  }
  std::fill(to + 4 * n, packet_.data() + packet_.size(), std::uint8_t{0});
  if (lead_ > 0) {
    int exponent = numerics::kLeastExponent;
    if (packet < blocks_) {
      exponent = numerics::block_exponent(reinterpret_cast<const float*>(input_) + packet * values,
                                          static_cast<std::size_t>(std::min(values, count_ - packet * values)));
    }
    head.exponents[1] = exponent == numerics::kNotFinite;
    head.exponents[0] = static_cast<std::int8_t>(std::min(exponent, numerics::kGreatestExponent));
  }
  head.write(packet_.data());
  out.send(above_, packet_);
}

void SwitchMlWorker::receive(Endpoint from, Bytes bytes, Time now, Outbox& out) {
  count(Count::received);
  if (from != above_) return count(Count::unknown_sender);
  if (bytes.size() != packet_.size() || bytes[0] != Packet::kind_of(job_.values)) {
    return count(Count::malformed);
  }
  const Packet head = Packet::read(bytes.data());
  if (head.job != static_cast<std::uint8_t>(job_.id)) return count(Count::unknown_sender);
  if (head.slot >= job_.slots) return count(Count::out_of_range);
  Slot& slot = slots_[static_cast<std::size_t>(head.slot)];
  const std::int64_t packet = slot.packet;
  const std::uint32_t id = first_id_ + static_cast<std::uint32_t>(packet);
  if (!failure_.empty() || !slot.under_way || head.id != id || head.set != slot.set) {
    return count(slot.under_way ? Packet::wrong_id(id, head.id) : Count::stale);
  }
  if (!slot.again) learn(now - slot.sent);
  unlink(slot);
  slot.under_way = false;
  slot.set = !slot.set;
  --under_way_;
  --remaining_;
  progress_ = now;
  silent_ = 0;
  count(Count::completed);
  take(packet, head, bytes);
  if (!failure_.empty()) return;
  offer(packet + job_.slots, now, out);
  if (lead_ > 0 && lead_ != job_.slots) offer(packet + lead_, now, out);
  while (ready_size_ > 0 && under_way_ < job_.window) {
    const std::int64_t next = ready_[ready_at_];
    ready_at_ = (ready_at_ + 1) % ready_.size();
    --ready_size_;
    send(next, now, out);
  }
}

void SwitchMlWorker::take(std::int64_t packet, const Packet& head, Bytes bytes) {
  const std::int64_t values = job_.values, block = packet - lead_;
  const std::uint8_t* from = bytes.data() + Packet::kHead;
  if (block >= 0) {
    const auto n = static_cast<std::size_t>(std::min(values, count_ - block * values));
    std::uint8_t* to = output_ + 4 * block * values;
    if (lead_ > 0) {
      numerics::dequantise_big_endian(from, reinterpret_cast<float*>(to), n,
                                      exponents_[static_cast<std::size_t>(block % lead_)], job_.workers);
    } else {
      load_values(from, reinterpret_cast<std::int32_t*>(to), n);
    }
  }
  if (lead_ == 0 || packet >= blocks_) return;
  exponents_[static_cast<std::size_t>(packet % lead_)] = head.exponents[0];
  if (head.exponents[1] != 0) {
    fail("expected finite values from every worker, found an infinite one or NaN at some worker among the elements from " +
         std::to_string(packet * values) + " on.");
  }
}

Time SwitchMlWorker::deadline() const {
  if (under_way_ == 0 || !failure_.empty()) return kNever;
  return std::min(after(slots_[static_cast<std::size_t>(oldest_)].sent, timeout()), after(progress_, job_.give_up_timeout));
}

void SwitchMlWorker::wake(Time now, Outbox& out) {
  if (now < deadline()) return;
  if (now >= after(progress_, job_.give_up_timeout)) {
    const Slot& oldest = slots_[static_cast<std::size_t>(oldest_)];
    return fail("worker " + std::to_string(index_) + " of job " + std::to_string(job_.id) + " expected a sum within " +
                std::to_string(job_.give_up_timeout / 1'000'000) + " ms, found none for packet " +
                std::to_string(first_id_ + static_cast<std::uint32_t>(oldest.packet)) + " in slot " +
                std::to_string(oldest_) + " and " + std::to_string(under_way_ - 1) +
                " more: a worker or the switch is gone or too slow.");
  }
  const Time wait = timeout();
  for (int left = under_way_; left > 0; --left) {
    const std::int32_t at = oldest_;
    Slot& slot = slots_[static_cast<std::size_t>(at)];
    if (after(slot.sent, wait) > now) break;
    unlink(slot);
    slot.sent = now;
    slot.again = true;
    enqueue(static_cast<std::size_t>(at));
    ++silent_;
    count(Count::resent);
    write(slot.packet, slot.set, out);
  }
}

// Smoothed as for TCP (RFC 6298), with twice the mean in place of one: a result waits for the slowest worker.
void SwitchMlWorker::learn(Time took) {
  if (!adaptive_) return;
  if (smooth_ == 0) return void((smooth_ = took, spread_ = took / 2));
  spread_ += (std::abs(smooth_ - took) - spread_) / 4;
  smooth_ += (took - smooth_) / 8;
}

Time SwitchMlWorker::timeout() const {
  Time wait = adaptive_ && smooth_ > 0 ? std::min(job_.timeout, 2 * smooth_ + 4 * spread_) : job_.timeout;
  if (doubled_after_ <= 0) return wait;
  // Doubled after so many time-outs, then after twice as many more, and so on.
  const auto doublings = std::min<int>(std::bit_width(static_cast<std::uint64_t>(silent_ / doubled_after_ + 1)) - 1, 20);
  return wait > (kNever >> doublings) ? kNever : wait << doublings;
}

void SwitchMlWorker::unlink(Slot& slot) {
  (slot.before < 0 ? oldest_ : slots_[static_cast<std::size_t>(slot.before)].after) = slot.after;
  (slot.after < 0 ? newest_ : slots_[static_cast<std::size_t>(slot.after)].before) = slot.before;
}

void SwitchMlWorker::enqueue(std::size_t at) {
  Slot& slot = slots_[at];
  slot.before = newest_;
  slot.after = -1;
  (newest_ < 0 ? oldest_ : slots_[static_cast<std::size_t>(newest_)].after) = static_cast<std::int32_t>(at);
  newest_ = static_cast<std::int32_t>(at);
}

void SwitchMlWorker::fail(std::string why) { failure_ = std::move(why); }

void SwitchMlWorker::save(Time now, StateWriter& state) const {
  const Time wait = timeout();
  state << first_id_ << first_slot_ << packets_ << remaining_ << static_cast<std::uint8_t>(failure_.empty());
  for (const Slot& slot : slots_) {
    state << slot.packet;
    state << static_cast<std::uint8_t>(slot.set | (slot.under_way << 1) | ((adaptive_ && slot.again) << 2));
  }
  for (std::int32_t at = oldest_; at >= 0; at = slots_[static_cast<std::size_t>(at)].after) {
    state << at;
    state << std::min(now - slots_[static_cast<std::size_t>(at)].sent, wait);  // due is due
  }
  state << static_cast<std::uint64_t>(ready_size_);
  for (std::size_t i = 0; i < ready_size_; ++i) state << ready_[(ready_at_ + i) % ready_.size()];
  for (std::int64_t i = 0; i < lead_; ++i) state << exponents_[static_cast<std::size_t>(i)];
  if (adaptive_) state << smooth_ << spread_;
  if (doubled_after_ > 0) state << silent_;
  if (job_.give_up_timeout != kNever && under_way_ > 0) state << std::min(now - progress_, job_.give_up_timeout);
}

}  // namespace coppice::aggregation
