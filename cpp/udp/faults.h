// Fault injection by seed: loss, duplicates and reordering of packets between a socket and its reader.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "udp/wire.h"

namespace coppice::udp {

struct FaultSettings {
  double drop = 0, duplicate = 0, reorder = 0;  // shares of packets, of each direction
  std::uint64_t seed = 1;
  std::uint64_t after = 0;  // packets that pass unharmed first
  bool any() const { return drop > 0 || duplicate > 0 || reorder > 0; }
};

// One direction. A packet that is reordered waits until 1 to 8 others have passed it, or until nothing comes.
class Faults {
 public:
  Faults(const FaultSettings& settings, std::uint64_t direction)
      : settings_(settings), random_(settings.seed * 2 + direction) {}

  template <class Pass>
  void give(Address address, Bytes packet, const Pass& pass) {
    if (seen_++ < settings_.after) return pass(address, packet);
    if (chance() < settings_.drop) {
      ++dropped;
    } else if (chance() < settings_.reorder) {
      ++reordered;
      held_.push_back({address, {packet.begin(), packet.end()}, static_cast<int>(1 + random_() % 8)});
      return;
    } else {
      pass(address, packet);
    }
    if (chance() < settings_.duplicate) {
      ++duplicated;
      pass(address, packet);
    }
    for (Held& each : held_) --each.others;
    release([](const Held& each) { return each.others <= 0; }, pass);
  }
  template <class Pass>
  void idle(const Pass& pass) {
    release([](const Held&) { return true; }, pass);
  }
  bool holds() const { return !held_.empty(); }

  std::uint64_t dropped = 0, duplicated = 0, reordered = 0;

 private:
  struct Held {
    Address address;
    std::vector<std::uint8_t> packet;
    int others;
  };
  double chance() { return std::uniform_real_distribution<>(0, 1)(random_); }
  template <class Due, class Pass>
  void release(const Due& due, const Pass& pass) {
    if (held_.empty()) return;
    for (const Held& each : held_) {
      if (due(each)) pass(each.address, Bytes(each.packet));
    }
    held_.erase(std::remove_if(held_.begin(), held_.end(), due), held_.end());
  }

  FaultSettings settings_;
  std::mt19937_64 random_;
  std::vector<Held> held_;
  std::uint64_t seen_ = 0;
};

}  // namespace coppice::udp
