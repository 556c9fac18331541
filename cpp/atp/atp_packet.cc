#include "atp/atp_packet.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "aggregation/state.h"
#include "core/hash.h"

namespace coppice::aggregation::atp {

namespace {

constexpr std::int32_t kTop = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kBottom = std::numeric_limits<std::int32_t>::min();

}  // namespace

bool read(Bytes packet, Header& header) {
  if (packet.size() != kBytes) return false;
  const std::uint8_t* at = packet.data();
  header.bitmap = load<std::uint32_t>(at);
  header.workers = at[4];
  header.flags = at[5];
  header.application = load<std::uint16_t>(at + 6);
  header.aggregator = load<std::uint16_t>(at + 10);
  header.next = load<std::uint16_t>(at + 12);
  header.key = load<std::uint64_t>(at + 262);
  header.length = load<std::uint32_t>(at + 270);
  return header.workers >= 1 && header.workers <= kMostWorkers && header.bitmap != 0 &&
         (header.bitmap & ~everybody(header.workers)) == 0 && !header.has(kServer | kSecondHalf) &&
         load<std::uint16_t>(at + 8) == static_cast<std::uint16_t>(header.key) && header.length >= 1 &&
         header.length <= kValues && header.key >> 63 == 0;
}

void write(const Header& header, std::uint8_t* packet) {
  store(packet, header.bitmap);
  packet[4] = header.workers;
  packet[5] = header.flags;
  store(packet + 6, header.application);
  store(packet + 8, static_cast<std::uint16_t>(header.key));
  store(packet + 10, header.aggregator);
  store(packet + 12, header.next);
  store(packet + 262, header.key);
  store(packet + 270, header.length);
}

int add_sticking(std::int32_t* sum, const std::uint8_t* wire, int count) {
  int stuck = 0;
  for (int at = 0; at < count; ++at) {
    const std::int32_t old = sum[at];
    const auto more = static_cast<std::int32_t>(load<std::uint32_t>(wire + 4 * at));
    const std::int64_t exact = static_cast<std::int64_t>(old) + more;
    auto now = static_cast<std::int32_t>(std::clamp<std::int64_t>(exact, kBottom, kTop));
    const bool more_at_end = more == kTop || more == kBottom;
    const bool old_at_end = old == kTop || old == kBottom;
    now = more_at_end ? more : now;
    now = old_at_end ? old : now;
    stuck += !old_at_end && (now == kTop || now == kBottom);
    sum[at] = now;
  }
  return stuck;
}

std::uint16_t rehashed(std::uint16_t application, std::uint16_t aggregator, int slots) {
  const std::uint64_t both = static_cast<std::uint64_t>(application) << 16 | aggregator;
  return static_cast<std::uint16_t>(mixed(both) % static_cast<std::uint64_t>(slots));
}

std::uint16_t first_aggregator(std::uint16_t application, int at, int slots) {
  const auto all = static_cast<std::uint64_t>(slots);
  return static_cast<std::uint16_t>((mixed(application) % all + static_cast<std::uint64_t>(at)) % all);
}

void check(const Job& job) {
  const auto within = [](const char* what, std::int64_t found, std::int64_t low, std::int64_t high) {
    if (found >= low && found <= high) return;
    throw std::invalid_argument("expected " + std::string(what) + " from " + std::to_string(low) + " to " +
                                std::to_string(high) + " in a job of atp, found " + std::to_string(found));
  };
  within("an id", job.id, 0, 65535);
  within("workers", job.workers, 1, kMostWorkers);
  within("values of a packet", job.values, 1, kValues);
  within("a window", job.window, 1, kMostWindow);
  within("slots", job.slots, 1, 65536);
}

Ways::Ways(std::span<const Endpoint> children) {
  way.fill(kNobody);
  for (std::size_t worker = 0; worker < children.size(); ++worker) {
    way[worker] = children[worker];
    if (children[worker] == kNobody) continue;
    mask |= 1u << worker;
    const auto end = all.begin() + endpoints;
    if (std::find(all.begin(), end, children[worker]) == end) {
      all[static_cast<std::size_t>(endpoints++)] = children[worker];
    }
  }
}

std::vector<int> Ways::list(std::uint32_t bitmap) const {
  std::vector<int> found;
  for (std::uint32_t left = bitmap & mask; left != 0; left &= left - 1) found.push_back(std::countr_zero(left));
  return found;
}

void Ways::send(std::uint32_t bitmap, Bytes packet, Outbox& out) const {
  if ((bitmap & mask) == mask) {
    out.send(std::span(all.data(), static_cast<std::size_t>(endpoints)), packet);
    return;
  }
  std::array<Endpoint, kMostWorkers> to;
  std::size_t count = 0;
  for (std::uint32_t left = bitmap & mask; left != 0; left &= left - 1) {
    const Endpoint each = way[static_cast<std::size_t>(std::countr_zero(left))];
    if (std::find(to.begin(), to.begin() + count, each) == to.begin() + count) to[count++] = each;
  }
  if (count != 0) out.send(std::span<const Endpoint>(to.data(), count), packet);
}

void Answered::add(std::uint64_t key) {
  if (contains(key)) return;
  if (key >= end_) {
    if (key - end_ >= kReach) {
      bits_.fill(0);
    } else {
      for (std::uint64_t fresh = end_; fresh < key; ++fresh) {
        bits_[(fresh % kReach) / 64] &= ~(std::uint64_t{1} << (fresh % 64));
      }
    }
    end_ = key + 1;
  }
  bits_[(key % kReach) / 64] |= std::uint64_t{1} << (key % 64);
}

void Answered::save(StateWriter& state) const {
  state << end_;
  state.put(bits_.data(), bits_.size());
}

}  // namespace coppice::aggregation::atp
