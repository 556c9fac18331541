#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "aggregation/bytes.h"
#include "aggregation/state.h"
#include "stream_trees/switchagg.h"

namespace coppice::aggregation {

using namespace switchagg;

SwitchAggWorker::SwitchAggWorker(const Job& job, int index, Endpoint above)
    : job_(job), options_(job), index_(index), above_(above),
      up_({above}, options_.window, options_.most_bytes, options_.first, job.timeout, job.give_up_timeout), down_(options_.first),
      delivered_(options_.first), waiting_(kMostWindow) {
  if (index < 0 || index >= job.workers) {
    throw std::invalid_argument("expected a worker from 0 to " + std::to_string(job.workers - 1) + ", found " +
                                std::to_string(index));
  }
  if (job_.give_up_timeout > kNever / 4) job_.give_up_timeout = kNever;  // endless
}

void SwitchAggWorker::begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) {
  if (active_ || !failure_.empty()) throw std::invalid_argument("expected no all-reduce to be under way, or given up");
  const auto lanes = static_cast<std::size_t>(options_.lanes);
  const std::size_t blocks = count / lanes + (count % lanes != 0 ? 1 : 0);
  if (blocks > std::size_t{1} << 32) throw std::invalid_argument("expected at most 2^32 blocks of values");
  if (count == 0) return;
  tensor_ = true;
  input_ = static_cast<const std::uint8_t*>(input);
  output_ = static_cast<std::uint8_t*>(output);
  count_ = count;
  total_ = blocks;
  start(now, out);
}

void SwitchAggWorker::begin_pairs(Pairs pairs, Time now, Outbox& out) {
  if (active_ || !failure_.empty()) throw std::invalid_argument("expected no stream to be under way, or given up");
  for (const auto& [key, values] : pairs) {
    if (key.empty() || key.size() > static_cast<std::size_t>(options_.key_bytes) ||
        values.size() != static_cast<std::size_t>(options_.lanes)) {
      throw std::invalid_argument("expected keys of 1 to " + std::to_string(options_.key_bytes) + " bytes with " +
                                  std::to_string(options_.lanes) + " values each, found a key of " +
                                  std::to_string(key.size()) + " bytes with " + std::to_string(values.size()));
    }
  }
  tensor_ = false;
  pairs_ = std::move(pairs);
  combined_.clear();
  total_ = pairs_.size();
  start(now, out);
}

void SwitchAggWorker::start(Time now, Outbox& out) {
  active_ = true;
  progress_ = now;
  probed_ = false;
  awaited_ = 0;
  until_ = 0;
  start_round();
  fill(now, out);
  deliver(now, out);
}

void SwitchAggWorker::start_round() {
  begun_ = given_ = until_;
  until_ = tensor_ ? std::min(total_, begun_ + static_cast<std::size_t>(options_.round)) : total_;
  end_sent_ = false;
  if (!tensor_) return;
  sums_.resize((until_ - begun_) * static_cast<std::size_t>(options_.lanes));
  have_.assign(until_ - begun_, 0);
}

// Writes the next pair, and moves `at` behind it.
void SwitchAggWorker::put_pair(std::uint8_t*& at) const {
  const auto lanes = static_cast<std::size_t>(options_.lanes);
  if (!tensor_) {
    const auto& [key, values] = pairs_[given_];
    *at++ = static_cast<std::uint8_t>(key.size());
    at = std::copy(key.begin(), key.end(), at);
    put(at, values.data(), lanes);
  } else {
    *at++ = 4;
    store(at, static_cast<std::uint32_t>(given_));
    at += 4;
    const std::size_t first = given_ * lanes;
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      std::uint32_t bits = 0;  // beyond the end of the tensor
      if (first + lane < count_) std::memcpy(&bits, input_ + 4 * (first + lane), 4);
      store(at + 4 * lane, bits);
    }
  }
  at += 4 * lanes;
}

void SwitchAggWorker::fill(Time now, Outbox& out) {
  while (!end_sent_ && up_.room()) {
    std::uint8_t* packet = up_.place(up_.next());
    std::uint8_t* at = packet + kHeadBytes;
    std::uint16_t count = 0;
    for (; count < options_.most_pairs && given_ < until_; ++count, ++given_) put_pair(at);
    end_sent_ = given_ == until_;
    write_head(packet, {kUp, static_cast<std::uint8_t>(options_.operation), static_cast<std::uint8_t>(end_sent_ ? 1 : 0),
                        0, job_.id, up_.next(), down_.next(), round_, count});
    up_.send(up_.next(), static_cast<std::size_t>(at - packet), now, out, counters_);
  }
}

void SwitchAggWorker::receive(Endpoint from, Bytes packet, Time now, Outbox& out) {
  count(Count::received);
  if (packet.size() < kHeadBytes || (packet[0] != kDown && packet[0] != kAcknowledgement)) {
    return count(Count::malformed);
  }
  if (load<std::uint32_t>(packet.data() + 4) != job_.id) return count(Count::out_of_range);
  if (from != above_) return count(Count::unknown_sender);
  if (packet[0] == kAcknowledgement) {
    if (packet.size() != kAcknowledgementBytes || packet[1] > 1) return count(Count::malformed);
    const AcknowledgementFields fields = read_acknowledgement(packet.data());
    const auto heard = up_.acknowledge(0, fields.next, fields.beyond, fields.again, now, out, counters_);
    if (heard == Acknowledged::impossible) return count(Count::out_of_range);
    awaited_ = fields.awaited;
    if (heard == Acknowledged::progress) {
      progress_ = now;
      probed_ = false;
      if (active_) fill(now, out);
    }
    return;
  }
  const Head head = read_head(packet.data());
  if (!valid(head, packet, options_)) return count(Count::malformed);
  const Arrival arrival = down_.look(head.sequence);
  if (arrival == Arrival::future || distance(head.sequence, delivered_) >= kMostWindow) return count(Count::future);
  if (arrival == Arrival::duplicate) {
    count(Count::duplicate);
  } else {
    down_.take(head.sequence);
    waiting_[head.sequence % kMostWindow].assign(packet.begin(), packet.end());
    progress_ = now;
    probed_ = false;
    deliver(now, out);
  }
  send_acknowledgement(above_, {false, 0, job_.id, down_.next(), down_.beyond()}, out);
}

// Looks into the results that are there, in order; those of a round that has not begun here wait.
void SwitchAggWorker::deliver(Time now, Outbox& out) {
  while (active_ && distance(down_.next(), delivered_) > 0) {
    const std::vector<std::uint8_t>& packet = waiting_[delivered_ % kMostWindow];
    const Head head = read_head(packet.data());
    ++delivered_;
    if (head.round != round_ || (head.end() && !end_sent_)) {
      count(Count::stale);
      continue;
    }
    deliver_packet(packet);
    if (!head.end()) continue;
    // The round is over, so all of its packets have arrived, whatever became of their acknowledgements.
    up_.acknowledge(0, up_.next(), 0, false, now, out, counters_);
    finish_round();
    if (active_) fill(now, out);
  }
}

void SwitchAggWorker::deliver_packet(Bytes packet) {
  const auto lanes = static_cast<std::size_t>(options_.lanes);
  for_pairs(packet, read_head(packet.data()).count, options_.lanes, [&](Bytes key, const std::uint8_t* values) {
    if (!tensor_) {
      const auto [found, first] = combined_.try_emplace(std::string(key.begin(), key.end()), lanes);
      if (first) {
        keep(found->second.data(), values, lanes);
      } else {
        count(Count::aggregated);
        combine_arrived(options_.operation, job_.element, found->second.data(), values, lanes);
      }
      return;
    }
    const std::size_t block = key.size() == 4 ? load<std::uint32_t>(key.data()) : until_;
    if (block < begun_ || block >= until_) return count(Count::out_of_range);
    std::uint32_t* sums = sums_.data() + (block - begun_) * lanes;
    if (have_[block - begun_] == 0) {
      have_[block - begun_] = 1;
      keep(sums, values, lanes);
    } else {
      count(Count::aggregated);
      combine_arrived(options_.operation, job_.element, sums, values, lanes);
    }
  });
}

void SwitchAggWorker::finish_round() {
  count(Count::completed);
  ++round_;
  if (tensor_) {
    const auto missing = std::find(have_.begin(), have_.end(), 0);
    if (missing != have_.end()) {
      failure_ = "worker " + std::to_string(index_) + " got no sum of block " +
                 std::to_string(begun_ + static_cast<std::size_t>(missing - have_.begin())) +
                 ": the workers' tensors have different lengths";
      active_ = false;
      return;
    }
    const std::size_t first = begun_ * static_cast<std::size_t>(options_.lanes);
    std::memcpy(output_ + 4 * first, sums_.data(), 4 * std::min(sums_.size(), count_ - first));
  }
  if (until_ < total_) {
    start_round();
  } else {
    active_ = false;
  }
}

Time SwitchAggWorker::deadline() const {
  if (!active_ || job_.give_up_timeout == kNever) return up_.deadline();
  return std::min(up_.deadline(), progress_ + (probed_ ? job_.give_up_timeout : job_.give_up_timeout / 2));
}

void SwitchAggWorker::wake(Time now, Outbox& out) {
  up_.wake(now, out, counters_);
  if (!active_ || job_.give_up_timeout == kNever) return;
  if (now - progress_ >= job_.give_up_timeout) {
    active_ = false;
    failure_ = "worker " + std::to_string(index_) + " heard nothing new for " + std::to_string(job_.give_up_timeout / 1'000'000) +
               " ms: ";
    if (!up_.idle()) {
      failure_ += std::to_string(distance(up_.next(), up_.base())) + " of its packets have not been acknowledged";
    } else if (awaited_ != 0) {
      failure_ += "all of its packets are there, but child " + std::to_string(awaited_ - 1) +
                  " of its switch is not at the end of the round";
    } else {
      failure_ += "all packets of its switch's children are there, but no sums came back";
    }
  } else if (!probed_ && now - progress_ >= job_.give_up_timeout / 2) {
    // A packet that is there already: the acknowledgement says whose packets are not.
    probed_ = true;
    std::uint8_t packet[kHeadBytes];
    write_head(packet, {kUp, static_cast<std::uint8_t>(options_.operation), 1, 0, job_.id, up_.base() - 1, down_.next(),
                        round_, 0});
    out.send(above_, packet);
  }
}

void SwitchAggWorker::save(Time now, StateWriter& state) const {
  state << active_ << end_sent_ << probed_ << failure_.empty();
  for (std::size_t each : {begun_, until_, given_, total_}) state << each;
  state << round_ << delivered_ << (active_ && job_.give_up_timeout != kNever ? now - progress_ : 0);
  up_.save(now, state);
  down_.save(state);
  for (std::uint32_t after = 0; after < kMostWindow; ++after) {
    const std::uint32_t sequence = delivered_ + after;
    if (down_.look(sequence) != Arrival::duplicate) continue;
    state << waiting_[sequence % kMostWindow];
  }
  for (std::size_t at = 0; active_ && tensor_ && at < have_.size(); ++at) {
    state << have_[at];
    const auto lanes = static_cast<std::size_t>(options_.lanes);
    if (have_[at] != 0) state.put(sums_.data() + at * lanes, lanes);
  }
}

}  // namespace coppice::aggregation
