#include "netreduce/netreduce_worker.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "aggregation/state.h"

namespace coppice::aggregation {

using namespace netreduce;

NetReduceWorker::NetReduceWorker(const Job& job, int index, Endpoint above)
    : job_(job),
      index_(index),
      above_(above),
      packets_(message_packets(job)),
      factor_(fixed_point(job)),
      linger_(static_cast<int>(job.setting("linger", 8))) {
  check(job);
  if (index < 0 || index >= job.workers) {
    throw std::invalid_argument("expected a worker from 0 to " + std::to_string(job.workers - 1) + ", found " +
                                std::to_string(index));
  }
  if (job.timeout < 1 || job.timeout > kNever / 128) {
    throw std::invalid_argument("expected a time-out above 0 in a job of netreduce");
  }
  top_ = std::floor(std::numeric_limits<std::int32_t>::max() / job.workers);
  messages_.resize(std::bit_ceil(2 * static_cast<std::size_t>(job.window)));
  unacked_ = next_psn_ = expected_ = first_number(job.id);
  scratch_.resize(kBase + kHeader + 4 * static_cast<std::size_t>(job.values));
}

std::size_t NetReduceWorker::first_element(std::uint64_t number, std::size_t position) const {
  const std::size_t before = static_cast<std::size_t>(number - first_) * static_cast<std::size_t>(packets_) + position;
  return before * static_cast<std::size_t>(job_.values);
}

void NetReduceWorker::begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) {
  if (received_ != total_) throw std::invalid_argument("expected no all-reduce under way in this worker of netreduce");
  input_ = static_cast<const std::uint8_t*>(input);
  output_ = static_cast<std::uint8_t*>(output);
  count_ = count;
  first_ = total_;
  const std::size_t values = static_cast<std::size_t>(job_.values) * static_cast<std::size_t>(packets_);
  total_ += (count + values - 1) / values;
  progress_ = now;
  refill(now, out);
}

void NetReduceWorker::refill(Time now, Outbox& out) {
  while (sent_ < total_ && sent_ < received_ + static_cast<std::uint64_t>(job_.window) && failure_.empty()) {
    const auto values = static_cast<std::size_t>(job_.values);
    const std::size_t left = count_ - first_element(sent_, 0);
    const std::size_t packets = std::min<std::size_t>(static_cast<std::size_t>(packets_), (left + values - 1) / values);
    const std::size_t last = std::min(left - (packets - 1) * values, values);
    if (unacked_ == next_psn_) {
      armed_ = now;
      tries_ = 0;
    }
    message(sent_) = {next_psn_, static_cast<std::uint16_t>(packets), static_cast<std::uint16_t>(last)};
    next_psn_ += static_cast<std::uint32_t>(packets);
    counters_[Count::sent] += packets;
    for (std::size_t position = 0; position < packets; ++position) send(sent_, position, out);
    ++sent_;
  }
}

// What is sent again although its sum is here goes without its values: the switch has the sum, too.
void NetReduceWorker::send(std::uint64_t number, std::size_t position, Outbox& out) {
  const Message& of = message(number);
  const bool last = position + 1U == of.packets;
  const std::size_t count = last ? of.last : static_cast<std::size_t>(job_.values);
  const std::size_t header = write(
      {Kind::data, static_cast<std::uint8_t>((position == 0 ? kHasHeader : 0) | (last ? kLast : 0)),
       static_cast<std::uint16_t>(index_), of.start + static_cast<std::uint32_t>(position), job_.id,
       static_cast<std::uint32_t>(number), of.packets, static_cast<std::uint16_t>(position), {}},
      scratch_.data());
  if (number < received_ || (number == received_ && position < position_)) {
    std::fill_n(scratch_.begin() + static_cast<std::ptrdiff_t>(header), 4 * count, std::uint8_t{0});
  } else if (!put(first_element(number, position), count, scratch_.data() + header)) {
    return;
  }
  out.send(above_, Bytes(scratch_.data(), header + 4 * count));
}

bool NetReduceWorker::put(std::size_t element, std::size_t count, std::uint8_t* wire) {
  for (std::size_t at = 0; at < count; ++at) {
    std::uint32_t bits;
    std::memcpy(&bits, input_ + 4 * (element + at), 4);
    if (factor_ != 0) {
      const double scaled = std::nearbyint(std::bit_cast<float>(bits) * factor_);
      if (!(std::abs(scaled) <= top_)) {
        failure_ = "expected numbers up to " + std::to_string(top_ / factor_) + " in a job of fixed point, found " +
                   std::to_string(std::bit_cast<float>(bits)) + " at " + std::to_string(element + at) +
                   ": take a smaller `fixed_point`, or 0 to add floats";
        return false;
      }
      bits = static_cast<std::uint32_t>(static_cast<std::int32_t>(scaled));
    }
    store(wire + 4 * at, bits);
  }
  return true;
}

void NetReduceWorker::get(std::size_t element, std::size_t count, const std::uint8_t* wire) {
  for (std::size_t at = 0; at < count; ++at) {
    std::uint32_t bits = load<std::uint32_t>(wire + 4 * at);
    if (factor_ != 0) bits = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(bits) / factor_));
    std::memcpy(output_ + 4 * (element + at), &bits, 4);
  }
}

void NetReduceWorker::receive(Endpoint from, Bytes bytes, Time now, Outbox& out) {
  count(Count::received);
  Packet packet;
  if (!read(bytes, packet)) return count(Count::malformed);
  const int flow = packet.kind != Kind::data ? index_ : flow_ < 0 ? packet.flow : flow_;
  if (from != above_ || packet.flow != flow || packet.from_switch()) {
    count(Count::unknown_sender);
  } else if (packet.kind == Kind::data) {
    data(packet, now, out);
  } else {
    acknowledged(packet, now, out);
  }
}

void NetReduceWorker::data(const Packet& packet, Time now, Outbox& out) {
  if (before(packet.psn, expected_)) {
    count(Count::duplicate);
    return acknowledge(Kind::acknowledged, packet.flow, out);
  }
  if (packet.psn != expected_) {
    count(Count::future);
    if (!told_) acknowledge(Kind::missing, packet.flow, out);
    told_ = true;
    return;
  }
  if (received_ >= sent_) return count(Count::future);
  const Message& of = message(received_);
  const bool last = position_ + 1U == of.packets;
  if (packet.values() != (last ? of.last : static_cast<std::size_t>(job_.values)) ||
      ((packet.flags & kLast) != 0) != last || packet.has_header() != (position_ == 0) ||
      (packet.has_header() && (packet.job != job_.id || packet.message != static_cast<std::uint32_t>(received_) ||
                               packet.packets != of.packets))) {
    return count(Count::malformed);
  }
  get(first_element(received_, position_), packet.values(), packet.payload.data());
  flow_ = packet.flow;
  progress_ = now;
  told_ = false;
  ++expected_;
  if (!last) {
    ++position_;
    return;
  }
  position_ = 0;
  ++received_;
  count(Count::completed);
  acknowledge(Kind::acknowledged, packet.flow, out);
  const auto window = static_cast<std::uint64_t>(job_.window);
  if (received_ > window && oldest_ < received_ - window) advance(message(received_ - window).start, now);
  refill(now, out);
}

void NetReduceWorker::acknowledge(Kind kind, std::uint16_t flow, Outbox& out) {
  const std::size_t size = write({kind, 0, flow, expected_, 0, 0, 0, 0, {}}, scratch_.data());
  out.send(above_, Bytes(scratch_.data(), size));
}

void NetReduceWorker::acknowledged(const Packet& packet, Time now, Outbox& out) {
  if (before(packet.psn, unacked_)) return count(Count::stale);
  if (before(next_psn_, packet.psn)) return count(Count::future);
  advance(packet.psn, now);
  if (packet.kind == Kind::missing) go_back(now, out);
}

void NetReduceWorker::advance(std::uint32_t psn, Time now) {
  if (psn == unacked_) return;
  unacked_ = psn;
  armed_ = now;
  tries_ = 0;
  while (oldest_ < sent_ && !before(unacked_, message(oldest_).start + message(oldest_).packets)) ++oldest_;
}

void NetReduceWorker::go_back(Time now, Outbox& out) {
  armed_ = now;
  for (std::uint64_t number = oldest_; number < sent_; ++number) {
    const Message& of = message(number);
    for (std::size_t position = 0; position < of.packets; ++position) {
      if (before(of.start + static_cast<std::uint32_t>(position), unacked_)) continue;
      count(Count::resent);
      send(number, position, out);
    }
  }
}

Time NetReduceWorker::deadline() const {
  if (!failure_.empty()) return kNever;
  const Time given_up = job_.give_up_timeout >= kNever - progress_ ? kNever : progress_ + job_.give_up_timeout;
  if (unacked_ == next_psn_) return received_ == total_ ? kNever : given_up;
  const Time again = armed_ + timeout();
  return received_ == total_ && again >= given_up ? kNever : std::min(again, given_up);
}

void NetReduceWorker::wake(Time now, Outbox& out) {
  if (deadline() > now) return;
  if (received_ != total_ && now - progress_ >= job_.give_up_timeout) {
    failure_ = "worker " + std::to_string(index_) + " of job " + std::to_string(job_.id) + " had no result for " +
               std::to_string(job_.give_up_timeout / 1'000'000) + " ms: it waits for message " +
               std::to_string(received_ - first_) + " of " + std::to_string(total_ - first_) +
               "; expected the switch and every other worker to be reachable";
    return;
  }
  if (unacked_ == next_psn_ || armed_ + timeout() > now) return;
  ++tries_;
  go_back(now, out);
}

void NetReduceWorker::save(Time now, StateWriter& state) const {
  state << received_ << position_ << expected_ << told_ << flow_ << total_ << sent_ << oldest_ << unacked_;
  state << next_psn_;
  state << std::min(tries_, std::max(6, linger_));  // more make no difference
  state << failure_.empty();
  if (unacked_ != next_psn_) state << std::max<Time>(armed_ + timeout() - now, 0);
  if (job_.give_up_timeout < kNever - progress_) state << progress_ - now;
  for (std::uint64_t number = oldest_; number < sent_; ++number) {
    const Message& of = messages_[number % messages_.size()];
    state << of.start << of.packets << of.last;
  }
  const std::size_t here = received_ == total_ ? count_ : std::min(count_, first_element(received_, position_));
  state.put(output_, 4 * here);
}

}  // namespace coppice::aggregation
