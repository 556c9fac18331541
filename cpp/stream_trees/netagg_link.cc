#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "aggregation/bytes.h"
#include "aggregation/state.h"
#include "stream_trees/netagg.h"

namespace coppice::aggregation::netagg {

namespace {

constexpr std::size_t kMostBytes = 65'000;
constexpr double kMostTime = 9e15;
constexpr int kLongestAgain = 1024;  // time-outs

double number(const Job& job, const std::string& name, double otherwise, double least, double most) {
  const double found = job.setting(name, otherwise);
  if (!(found >= least && found <= most) || found != std::floor(found)) {
    throw std::invalid_argument("expected `" + name + "` to be a whole number from " +
                                std::to_string(static_cast<long long>(least)) + " to " +
                                std::to_string(static_cast<long long>(most)) + ", found " + std::to_string(found));
  }
  return found;
}

// Numbers in their order as they are kept, for int32 and float32 (-NaN lowest, NaN highest).
std::int32_t ordered(std::uint32_t bits, Element element) {
  return static_cast<std::int32_t>(element == Element::float32 && (bits >> 31) != 0 ? bits ^ 0x7fffffffu : bits);
}

}  // namespace

void Merge::operator()(std::vector<std::uint32_t>& kept, const std::uint8_t* arrived, std::size_t count) const {
  if (kind != Kind::largest) return combine_arrived(static_cast<Operation>(kind), element, kept.data(), arrived, count);
  const std::size_t known = kept.size();
  kept.resize(known + count);
  keep(kept.data() + known, arrived, count);
  prepare(kept);
}

void Merge::prepare(std::vector<std::uint32_t>& values) const {
  if (kind != Kind::largest) return;
  std::sort(values.begin(), values.end(),
            [this](std::uint32_t a, std::uint32_t b) { return ordered(a, element) > ordered(b, element); });
  values.resize(std::min(values.size(), most));
}

Options::Options(const Job& job) {
  if (job.workers < 1 || job.workers > 32) {
    throw std::invalid_argument("expected 1 to 32 workers, found " + std::to_string(job.workers));
  }
  if (job.values < 1 || job.values > 65'535) {
    throw std::invalid_argument("expected 1 to 65535 values of a packet, found " + std::to_string(job.values));
  }
  merge.kind = static_cast<Merge::Kind>(number(job, "operation", 0, 0, 3));
  merge.element = job.element;
  const double most = merge.kind == Merge::Kind::largest ? number(job, "k", 1, 1, job.values) : job.values;
  merge.most = static_cast<std::size_t>(most);
  first = static_cast<std::uint32_t>(number(job, "sequence", 0, 0, 4294967295.0));
  members = static_cast<std::uint32_t>(number(job, "members", 0, 0, 4294967295.0));
  standby = static_cast<int>(number(job, "standby", 0, 0, 1e6));
  if (job.window < 1 || job.slots < 2) {
    throw std::invalid_argument("expected a window of at least 1 and at least 2 slots, found " +
                                std::to_string(job.window) + " and " + std::to_string(job.slots));
  }
  places = std::bit_floor(static_cast<std::uint32_t>(job.slots));
  outstanding = std::min({job.window, static_cast<int>(places / 2), kMostWindow});
  window = std::min(2 * outstanding, kMostWindow);
  for (const char* name : {"next", "master"}) {
    const double at = number(job, name, kNobody, kNobody, 2147483647.0);
    if (at >= 0) fallbacks.push_back(static_cast<Endpoint>(at));
  }
  heartbeat = static_cast<Time>(number(job, "heartbeat", 0, 0, kMostTime));
  dead = static_cast<Time>(number(job, "dead", 4 * static_cast<double>(heartbeat), 0, 4 * kMostTime));
  straggler = static_cast<Time>(number(job, "straggler", 0, 0, kMostTime));
  rate = static_cast<std::int64_t>(number(job, "rate", 0, 0, kMostTime));
  latency = static_cast<Time>(number(job, "latency", 0, 0, kMostTime));
  weight = static_cast<std::int64_t>(number(job, "weight", 1, 1, 1024));
  // A job whose give-up timeout means "others say when" still asks again in time.
  again = job.give_up_timeout > kNever / 4 ? kNever : std::clamp<Time>(job.give_up_timeout / 4, 1, kLongestAgain * std::min(job.timeout, kNever / kLongestAgain));
  if (job.settings.contains("again")) again = static_cast<Time>(number(job, "again", 1, 1, kMostTime));
  most_bytes = kHeadBytes + 4 * merge.most;
  if (most_bytes > kMostBytes) {
    throw std::invalid_argument("expected packets of at most " + std::to_string(kMostBytes) + " bytes, found " +
                                std::to_string(most_bytes) + ": choose fewer values");
  }
}

Head read_head(const std::uint8_t* packet) {
  return {packet[0], packet[1], packet[2], packet[3], load<std::uint32_t>(packet + 4), load<std::uint32_t>(packet + 8),
          load<std::uint32_t>(packet + 12), load<std::uint32_t>(packet + 16), load<std::uint32_t>(packet + 20),
          load<std::uint16_t>(packet + 24), load<std::uint16_t>(packet + 26)};
}

void write_head(std::uint8_t* packet, const Head& head) {
  packet[0] = head.kind;
  packet[1] = head.operation;
  packet[2] = head.flags;
  packet[3] = head.zero;
  store(packet + 4, head.application);
  store(packet + 8, head.sequence);
  store(packet + 12, head.request);
  store(packet + 16, head.contributors);
  store(packet + 20, head.members);
  store(packet + 24, head.count);
  store(packet + 26, head.last_zero);
}

bool valid(const Head& head, Bytes packet, const Options& options) {
  return head.operation == static_cast<std::uint8_t>(options.merge.kind) && head.flags <= (head.kind == kPartial ? 1 : 0) &&
         head.zero == 0 && head.last_zero == 0 && head.contributors != 0 &&
         (head.members == 0 || (head.contributors & ~head.members) == 0) && head.count >= 1 &&
         head.count <= options.merge.most && packet.size() == kHeadBytes + 4 * std::size_t{head.count};
}

std::uint32_t tree_of(std::uint32_t request, std::uint32_t trees) {
  std::uint32_t mixed = (request ^ request >> 16) * 0x85ebca6bu;
  mixed = (mixed ^ mixed >> 13) * 0xc2b2ae35u;
  return (mixed ^ mixed >> 16) % trees;
}

void send_acknowledgement(Endpoint to, std::uint32_t application, const ReceiveWindow& window, bool again, Outbox& out) {
  std::array<std::uint8_t, kAcknowledgementBytes> packet{kAcknowledgement, static_cast<std::uint8_t>(again ? 1 : 0)};
  store(packet.data() + 4, application);
  store(packet.data() + 8, window.next());
  store(packet.data() + 12, window.beyond());
  out.send(to, packet);
}

Uplink::Uplink(const Job& job, const Options& options, Endpoint parent, std::vector<Endpoint> fallbacks)
    : job_(job), most_bytes_(parent == kNobody ? 0 : options.most_bytes), first_(options.first), dead_(options.dead),
      stream_({}, 1, 0, options.first, job.timeout, job.give_up_timeout) {
  job_.window = options.window;
  if (parent == kNobody) return;
  uppers_.emplace_back(parent, ReceiveWindow(first_));
  for (Endpoint each : fallbacks) {
    if (window_of(each) == nullptr) uppers_.emplace_back(each, ReceiveWindow(first_));
  }
  stream_ = fresh_stream();
}

SendWindow Uplink::fresh_stream() const {
  return SendWindow({now_at()}, job_.window, most_bytes_, first_, job_.timeout, job_.give_up_timeout);
}

ReceiveWindow* Uplink::window_of(Endpoint from) {
  for (auto& [at, window] : uppers_) {
    if (at == from) return &window;
  }
  return nullptr;
}

void Uplink::heard(Endpoint from, Time now) {
  if (from == now_at()) heard_ = now;
}

Time Uplink::suspicion(bool awaiting) const {
  return dead_ == 0 || !awaiting || at_ + 1 >= uppers_.size() ? kNever : heard_ + dead_;
}

void Uplink::fail_over(Time now) {
  ++at_;
  heard_ = now;
  stream_ = fresh_stream();
}

void Uplink::save(Time now, StateWriter& state) const {
  state << at_;
  if (dead_ != 0) state << now - heard_;
  for (const auto& [at, window] : uppers_) window.save(state);
  stream_.save(now, state);
}

}  // namespace coppice::aggregation::netagg
