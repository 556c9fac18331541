#include "atp/atp_worker.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "aggregation/state.h"

namespace coppice::aggregation {

using namespace atp;

namespace {

constexpr std::int64_t kPacket = static_cast<std::int64_t>(kWireBytes);

}  // namespace

AtpWorker::AtpWorker(const Job& job, int index, Endpoint above)
    : job_(job),
      above_(above),
      factor_(job.setting("factor", 1e6)),
      short_timeout_(static_cast<Time>(job.setting("short_timeout", 200'000))),
      window_bytes_(job.window * kPacket) {
  check(job);
  if (index < 0 || index >= job.workers) {
    throw std::invalid_argument("expected a worker from 0 to " + std::to_string(job.workers - 1) + ", found " +
                                std::to_string(index));
  }
  if (!(factor_ > 0) || short_timeout_ < 1 || job.timeout < 1) {
    throw std::invalid_argument("expected a factor, a time-out and a short time-out above 0 in a job of atp");
  }
  bit_ = 1u << index;
  const auto application = static_cast<std::uint16_t>(job.id);
  for (int at = 0; at < job.window; ++at) {
    aggregators_[static_cast<std::size_t>(at)] = first_aggregator(application, at, job.slots);
  }
}

std::int64_t AtpWorker::window() const {
  return std::clamp<std::int64_t>(window_bytes_ / kPacket, 1, job_.window);
}

std::uint32_t AtpWorker::length(std::uint64_t key) const {
  const std::size_t before = static_cast<std::size_t>(key - first_) * static_cast<std::size_t>(job_.values);
  return static_cast<std::uint32_t>(std::min<std::size_t>(static_cast<std::size_t>(job_.values), count_ - before));
}

void AtpWorker::begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) {
  if (!done()) throw std::invalid_argument("expected no all-reduce under way in this worker of atp");
  input_ = static_cast<const std::uint8_t*>(input);
  output_ = static_cast<std::uint8_t*>(output);
  count_ = count;
  first_ = end_;
  const auto values = static_cast<std::size_t>(job_.values);
  end_ += (count + values - 1) / values;
  progress_ = now;
  refill(now, out);
}

void AtpWorker::refill(Time now, Outbox& out) {
  while (next_ < end_ && next_ < base_ + static_cast<std::uint64_t>(window())) {
    chunks_[next_ % kChunks] = {now + job_.timeout, std::min(short_timeout_, job_.timeout), false, false, false};
    count(Count::sent);
    send(next_++, 0, out);
  }
}

void AtpWorker::send(std::uint64_t key, std::uint8_t flags, Outbox& out) {
  const Chunk& chunk = chunks_[key % kChunks];
  const std::uint32_t count = length(key);
  const std::size_t place = key % static_cast<std::uint64_t>(job_.window);
  if (chunk.floats) flags |= kOverflow | kResend;
  std::fill(scratch_.begin() + kValuesAt, scratch_.begin() + kValuesAt + 4 * kValues, std::uint8_t{0});
  write({bit_, static_cast<std::uint8_t>(job_.workers), flags, static_cast<std::uint16_t>(job_.id), aggregators_[place],
         aggregators_[place], key, count},
        scratch_.data());
  if (chunk.floats || job_.element == Element::int32) {
    const std::uint8_t* from = input_ + 4 * (key - first_) * static_cast<std::uint64_t>(job_.values);
    for (std::uint32_t at = 0; at < count; ++at) {
      std::uint32_t value;
      std::memcpy(&value, from + 4 * at, 4);
      store(scratch_.data() + kValuesAt + 4 * at, value);
    }
  } else {
    fixed(key, count);
  }
  out.send(above_, scratch_);
}

void AtpWorker::fixed(std::uint64_t key, std::uint32_t count) {
  const std::uint8_t* from = input_ + 4 * (key - first_) * static_cast<std::uint64_t>(job_.values);
  for (std::uint32_t at = 0; at < count; ++at) {
    float value;
    std::memcpy(&value, from + 4 * at, 4);
    double scaled = std::nearbyint(value * factor_);
    constexpr double top = std::numeric_limits<std::int32_t>::max();
    constexpr double bottom = std::numeric_limits<std::int32_t>::min();
    if (std::isnan(scaled)) scaled = top;
    const auto sent = static_cast<std::int32_t>(std::clamp(scaled, bottom, top));
    store(scratch_.data() + kValuesAt + 4 * at, static_cast<std::uint32_t>(sent));
  }
}

void AtpWorker::send_again(std::uint64_t key, Time now, Outbox& out) {
  Chunk& chunk = chunks_[key % kChunks];
  chunk.deadline = now + chunk.timeout;
  chunk.timeout = std::min(2 * chunk.timeout, std::max(job_.timeout, short_timeout_));
  count(Count::resent);
  send(key, kResend, out);
}

void AtpWorker::receive(Endpoint from, Bytes packet, Time now, Outbox& out) {
  count(Count::received);
  Header header;
  if (!read(packet, header)) return count(Count::malformed);
  if (from != above_ || header.application != job_.id || (header.bitmap & bit_) == 0) {
    return count(Count::unknown_sender);
  }
  if (header.workers != job_.workers || (header.has(kOverflow) && job_.element != Element::float32) ||
      !header.has(kAck | kResend)) {
    return count(Count::malformed);
  }
  if (std::max(header.aggregator, header.next) >= job_.slots) return count(Count::out_of_range);
  if (header.has(kAck)) return result(header, packet, now, out);
  asked(header, now, out);
}

void AtpWorker::result(const Header& header, Bytes packet, Time now, Outbox& out) {
  const std::uint64_t key = header.key;
  if (key >= next_) return count(Count::future);
  Chunk& chunk = chunks_[key % kChunks];
  if (key < base_ || chunk.answered) return count(Count::duplicate);
  if (header.length != length(key)) return count(Count::malformed);
  count(Count::completed);
  chunk.answered = true;
  Result& kept = results_[key % kResults];
  kept.there = true;
  kept.key = key;
  kept.flags = header.flags & kOverflow;
  kept.next = header.next;
  kept.length = header.length;
  std::copy_n(packet.data() + kValuesAt, kept.values.size(), kept.values.begin());
  put(key, packet.data() + kValuesAt, header.has(kOverflow), header.length);
  aggregators_[key % static_cast<std::uint64_t>(job_.window)] = header.next;
  progress_ = now;
  while (base_ < next_ && chunks_[base_ % kChunks].answered) ++base_;
  adapt(header);
  for (std::uint64_t earlier = base_; earlier < key; ++earlier) {
    Chunk& late = chunks_[earlier % kChunks];
    if (late.answered || late.hurried) continue;
    late.hurried = true;
    send_again(earlier, now, out);
  }
  refill(now, out);
}

void AtpWorker::adapt(const Header& header) {
  if (header.has(kCongested)) {
    count(Count::marked);
    if (header.key < calm_) return;
    window_bytes_ = std::max(window_bytes_ / 2, kPacket);
    calm_ = round_ = next_;
  } else if (base_ >= round_) {
    window_bytes_ = std::min(window_bytes_ + kWindowStep, job_.window * kPacket);
    round_ = next_;
  }
}

void AtpWorker::put(std::uint64_t key, const std::uint8_t* wire, bool floats, std::uint32_t count) {
  std::uint8_t* to = output_ + 4 * (key - first_) * static_cast<std::uint64_t>(job_.values);
  const bool as_is = floats || job_.element == Element::int32;
  for (std::uint32_t at = 0; at < count; ++at) {
    std::uint32_t value = load<std::uint32_t>(wire + 4 * at);
    if (!as_is) value = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(value) / factor_));
    std::memcpy(to + 4 * at, &value, 4);
  }
}

void AtpWorker::asked(const Header& header, Time now, Outbox& out) {
  const std::uint64_t key = header.key;
  if (key >= next_) {
    count(Count::future);
  } else if (key >= base_ && !chunks_[key % kChunks].answered) {
    chunks_[key % kChunks].floats |= header.has(kOverflow);
    send_again(key, now, out);
  } else if (results_[key % kResults].there && results_[key % kResults].key == key) {
    count(Count::answered);
    send_result(key, out);
  } else {
    count(Count::stale);
  }
}

void AtpWorker::send_result(std::uint64_t key, Outbox& out) {
  const Result& kept = results_[key % kResults];
  write({bit_, static_cast<std::uint8_t>(job_.workers), static_cast<std::uint8_t>(kept.flags | kAck | kResend),
         static_cast<std::uint16_t>(job_.id), kept.next, kept.next, key, kept.length},
        scratch_.data());
  std::copy(kept.values.begin(), kept.values.end(), scratch_.begin() + kValuesAt);
  out.send(above_, scratch_);
}

Time AtpWorker::deadline() const {
  if (done() || !failure_.empty()) return kNever;
  Time first = job_.give_up_timeout >= kNever - progress_ ? kNever : progress_ + job_.give_up_timeout;
  for (std::uint64_t key = base_; key < next_; ++key) {
    const Chunk& chunk = chunks_[key % kChunks];
    if (!chunk.answered) first = std::min(first, chunk.deadline);
  }
  return first;
}

void AtpWorker::wake(Time now, Outbox& out) {
  if (done() || !failure_.empty()) return;
  if (now - progress_ >= job_.give_up_timeout) {
    failure_ = "worker " + std::to_string(std::countr_zero(bit_)) + " of job " + std::to_string(job_.id) +
               " had no result for " + std::to_string(job_.give_up_timeout / 1'000'000) + " ms: it waits for chunk " +
               std::to_string(base_ - first_) + " of " + std::to_string(end_ - first_) +
               "; expected the server and every other worker to be reachable";
    return;
  }
  for (std::uint64_t key = base_; key < next_; ++key) {
    const Chunk& chunk = chunks_[key % kChunks];
    if (!chunk.answered && chunk.deadline <= now) send_again(key, now, out);
  }
}

void AtpWorker::save(Time now, StateWriter& state) const {
  state << base_ << next_ << end_ << window_bytes_ << round_ << calm_;
  if (!done() && job_.give_up_timeout < kNever - progress_) state << progress_ - now;
  state << failure_.empty();
  for (std::uint64_t key = base_; key < next_; ++key) {
    const Chunk& chunk = chunks_[key % kChunks];
    state << chunk.answered;
    if (chunk.answered) continue;
    state << chunk.hurried << chunk.floats << chunk.timeout;
    state << std::max<Time>(chunk.deadline - now, 0);  // overdue is overdue
  }
  state.put(aggregators_.data(), static_cast<std::size_t>(job_.window));
  for (const Result& kept : results_) {
    state << kept.there;
    if (!kept.there) continue;
    state << kept.key << kept.flags << kept.next;
    state.put(kept.values.data(), kept.values.size());
  }
}

}  // namespace coppice::aggregation
