#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "aggregation/bytes.h"
#include "aggregation/state.h"
#include "stream_trees/netagg.h"

namespace coppice::aggregation {

using namespace netagg;

NetAggWorker::NetAggWorker(const Job& job, int index, Endpoint above)
    : job_(job), options_(job), index_(index),
      requests_(std::bit_ceil(static_cast<std::size_t>(options_.outstanding))) {
  if (job_.give_up_timeout > kNever / 4) job_.give_up_timeout = kNever;  // endless
  if (index < 0 || index >= job.workers) {
    throw std::invalid_argument("expected a worker from 0 to " + std::to_string(job.workers - 1) + ", found " +
                                std::to_string(index));
  }
  const int trees = static_cast<int>(job.setting("trees", 1));
  if (trees < 1) throw std::invalid_argument("expected at least 1 tree, found " + std::to_string(trees));
  trees_.emplace_back(job, options_, above, options_.fallbacks);
  std::vector<Endpoint> uppers = options_.fallbacks;
  uppers.push_back(above);
  for (int tree = 1; tree < trees; ++tree) {
    const auto box = static_cast<Endpoint>(job.setting("above_" + std::to_string(tree), kNobody));
    const auto next = static_cast<Endpoint>(job.setting("next_" + std::to_string(tree), kNobody));
    if (box < 0) throw std::invalid_argument("expected `above_" + std::to_string(tree) + "`, the first box of that tree");
    uppers.push_back(box);
    if (next >= 0) uppers.push_back(next);
    trees_.emplace_back(job, options_, box, next >= 0 ? std::vector<Endpoint>{next} : std::vector<Endpoint>{});
  }
  std::sort(uppers.begin(), uppers.end());
  if (std::adjacent_find(uppers.begin(), uppers.end()) != uppers.end()) {
    throw std::invalid_argument("expected the boxes of all trees to be different ones");
  }
}

void NetAggWorker::begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) {
  if (active_ || !failure_.empty()) throw std::invalid_argument("expected no all-reduce to be under way, or given up");
  const auto values = static_cast<std::size_t>(job_.values);
  const std::size_t chunks = count / values + (count % values != 0 ? 1 : 0);
  if (chunks >= std::size_t{1} << 31) throw std::invalid_argument("expected less than 2^31 packets of values");
  if (count == 0) return;
  input_ = static_cast<const std::uint8_t*>(input);
  output_ = static_cast<std::uint8_t*>(output);
  count_ = count;
  chunks_ = static_cast<std::uint32_t>(chunks);
  first_request_ = next_;
  active_ = true;
  progress_ = now;
  fill(now, out);
}

bool NetAggWorker::awaiting(std::size_t tree) const {
  for (std::uint32_t request = base_; request != next_; ++request) {
    if (!requests_[request & (requests_.size() - 1)].answered &&
        tree_of(request, static_cast<std::uint32_t>(trees_.size())) == tree) return true;
  }
  return false;
}

void NetAggWorker::fill(Time now, Outbox& out) {
  while (next_ - first_request_ < chunks_ && distance(next_, base_) < options_.outstanding && tree(next_).stream().room()) {
    const std::size_t of = tree_of(next_, static_cast<std::uint32_t>(trees_.size()));
    if (options_.dead != 0 && !awaiting(of)) trees_[of].watch(now);
    outstanding(next_).answered = false;
    ask(next_++, false, now, out);
  }
}

// Sends a request, if there is room.
void NetAggWorker::ask(std::uint32_t request, bool alone, Time now, Outbox& out) {
  outstanding(request).asked = now;
  SendWindow& stream = tree(request).stream();
  if (!stream.room()) return;
  const auto chunk = static_cast<std::size_t>(job_.values) * (request - first_request_);
  values_.resize(std::min(static_cast<std::size_t>(job_.values), count_ - chunk));
  std::memcpy(values_.data(), input_ + 4 * chunk, 4 * values_.size());
  options_.merge.prepare(values_);
  const std::uint32_t me = std::uint32_t{1} << index_;
  std::uint8_t* packet = stream.place(stream.next());
  write_head(packet, {kPartial, static_cast<std::uint8_t>(options_.merge.kind), static_cast<std::uint8_t>(alone ? 1 : 0), 0,
                      job_.id, stream.next(), request, me, me, static_cast<std::uint16_t>(values_.size()), 0});
  put(packet + kHeadBytes, values_.data(), values_.size());
  stream.send(stream.next(), kHeadBytes + 4 * values_.size(), now, out, counters_);
}

void NetAggWorker::receive(Endpoint from, Bytes packet, Time now, Outbox& out) {
  count(Count::received);
  if (packet.size() < kHeartbeatBytes || packet[0] < kResult || packet[0] > kHeartbeat) return count(Count::malformed);
  if (load<std::uint32_t>(packet.data() + 4) != job_.id) return count(Count::out_of_range);
  const auto up = std::find_if(trees_.begin(), trees_.end(), [&](Uplink& each) { return each.window_of(from) != nullptr; });
  if (up == trees_.end()) return count(Count::unknown_sender);
  up->heard(from, now);
  if (packet[0] == kAcknowledgement) {
    if (packet.size() != kAcknowledgementBytes || packet[1] > 1 || packet[2] != 0 || packet[3] != 0) {
      count(Count::malformed);
    } else if (from != up->now_at()) {
      count(Count::stale);
    } else if (up->stream().acknowledge(0, load<std::uint32_t>(packet.data() + 8), load<std::uint64_t>(packet.data() + 12),
                                        packet[1] != 0, now, out, counters_) == Acknowledged::impossible) {
      count(Count::out_of_range);
    } else if (active_) {
      fill(now, out);
    }
    return;
  }
  if (packet[0] == kHeartbeat) {
    if (packet.size() != kHeartbeatBytes || load<std::uint32_t>(packet.data()) != std::uint32_t{kHeartbeat} << 24) {
      count(Count::malformed);
    }
    return;
  }
  const std::uint32_t everyone = job_.workers == 32 ? ~std::uint32_t{0} : (std::uint32_t{1} << job_.workers) - 1;
  const Head head = packet.size() < kHeadBytes ? Head{} : read_head(packet.data());
  if (packet.size() < kHeadBytes || !valid(head, packet, options_) || head.contributors != everyone) {
    return count(Count::malformed);
  }
  ReceiveWindow& window = *up->window_of(from);
  const Arrival arrival = window.look(head.sequence);
  if (arrival == Arrival::future) return count(Count::future);
  if (arrival == Arrival::duplicate) {
    count(Count::duplicate);
  } else {
    window.take(head.sequence);
    result(head, packet, now, out);
  }
  send_acknowledgement(from, job_.id, window, false, out);
}

void NetAggWorker::result(const Head& head, Bytes packet, Time now, Outbox& out) {
  const std::int32_t after = distance(head.request, base_);
  if (after < 0 || (distance(head.request, next_) < 0 && outstanding(head.request).answered)) {
    return count(Count::duplicate);
  }
  const auto chunk = static_cast<std::size_t>(job_.values) * (head.request - first_request_);
  const bool asked = distance(head.request, next_) < 0;
  const std::size_t room = asked ? std::min(static_cast<std::size_t>(job_.values), count_ - chunk) : 0;
  const bool largest = options_.merge.kind == Merge::Kind::largest;
  if (head.count > room || (!largest && head.count != room)) return count(Count::out_of_range);
  values_.assign(room, 0);
  keep(values_.data(), packet.data() + kHeadBytes, head.count);
  std::memcpy(output_ + 4 * chunk, values_.data(), 4 * room);
  count(Count::completed);
  outstanding(head.request).answered = true;
  progress_ = now;
  while (base_ != next_ && outstanding(base_).answered) ++base_;
  if (base_ - first_request_ == chunks_) {
    active_ = false;
  } else {
    fill(now, out);
  }
}

Time NetAggWorker::deadline() const {
  Time first = active_ && job_.give_up_timeout != kNever ? progress_ + job_.give_up_timeout : kNever;
  for (std::size_t tree = 0; tree < trees_.size(); ++tree) {
    first = std::min(first, trees_[tree].stream().deadline());
    if (options_.dead != 0) first = std::min(first, trees_[tree].suspicion(awaiting(tree)));
  }
  for (std::uint32_t request = base_; request != next_; ++request) {
    const Request& each = requests_[request & (requests_.size() - 1)];
    if (!each.answered && options_.again != kNever) first = std::min(first, each.asked + options_.again);
  }
  return first;
}

void NetAggWorker::wake(Time now, Outbox& out) {
  for (std::size_t which = 0; which < trees_.size(); ++which) {
    Uplink& up = trees_[which];
    up.stream().wake(now, out, counters_);
    if (options_.dead == 0 || now < up.suspicion(awaiting(which))) continue;
    up.fail_over(now);
    for (std::uint32_t request = base_; request != next_; ++request) {
      if (!outstanding(request).answered && &tree(request) == &up) ask(request, false, now, out);
    }
  }
  for (std::uint32_t request = base_; request != next_; ++request) {
    const Request& each = outstanding(request);
    if (!each.answered && now - each.asked >= options_.again) ask(request, true, now, out);
  }
  if (!active_ || job_.give_up_timeout == kNever || now - progress_ < job_.give_up_timeout) return;
  active_ = false;
  failure_ = "worker " + std::to_string(index_) + " had no answer for " + std::to_string(job_.give_up_timeout / 1'000'000) +
             " ms: request " + std::to_string(base_ - first_request_) + " of " + std::to_string(chunks_) +
             " and those after it are open";
  base_ = next_;
}

void NetAggWorker::save(Time now, StateWriter& state) const {
  state << active_ << failure_.empty();
  for (std::uint32_t each : {first_request_, base_, next_, chunks_}) state << each;
  state << (active_ && job_.give_up_timeout != kNever ? now - progress_ : 0);
  for (std::uint32_t request = base_; request != next_; ++request) {
    const Request& each = requests_[request & (requests_.size() - 1)];
    state << (each.answered ? 0 : 1 + (options_.again == kNever ? 0 : now - each.asked));
  }
  for (const Uplink& each : trees_) each.save(now, state);
}

}  // namespace coppice::aggregation
