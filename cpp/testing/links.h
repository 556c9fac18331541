// Nodes of aggregation on links that lose, double and delay packets, each choice by the seed.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "aggregation/node.h"

namespace coppice::testing {

using namespace coppice::aggregation;

struct Faults {
  double drop = 0, duplicate = 0;
  Time spread = 0;  // packets take 1,000 ns and up to this much more, each its own
};

class Links {
 public:
  Links(std::uint64_t seed, Faults faults) : random_(seed), faults_(faults) {}
  // The party `at`; -1 for every endpoint that another gave it.
  void add(Endpoint at, Node& node) { nodes_[at] = &node; }
  void remove(Endpoint at) { nodes_.erase(at); }
  Time now() const { return now_; }
  // What a node sends outside of `run`.
  Outbox& from(Endpoint at) {
    sender_.links = this;
    sender_.at = at;
    return sender_;
  }
  // Until `stop()` or nothing is left to happen; whether `stop()` became true.
  template <class Stop>
  bool run(Stop stop, Time until = kNever) {
    for (;;) {
      if (stop()) return true;
      Time next = on_the_way_.empty() ? kNever : on_the_way_.begin()->first;
      Endpoint woken = kNobody;
      for (const auto& [at, node] : nodes_) {
        if (node->deadline() < next) {
          next = node->deadline();
          woken = at;
        }
      }
      if (next == kNever || next > until) return false;
      now_ = std::max(now_, next);
      if (woken != kNobody) {
        nodes_.at(woken)->wake(now_, from(woken));
        continue;
      }
      const Packet packet = std::move(on_the_way_.begin()->second);
      on_the_way_.erase(on_the_way_.begin());
      ++delivered;
      if (nodes_.contains(packet.to)) nodes_.at(packet.to)->receive(packet.from, packet.bytes, now_, from(packet.to));
    }
  }
  std::map<std::pair<Endpoint, Endpoint>, std::int64_t> bytes;  // sent, by sender and receiver
  std::int64_t delivered = 0;

 private:
  struct Packet {
    Endpoint from, to;
    std::vector<std::uint8_t> bytes;
  };
  struct Sender final : Outbox {
    using Outbox::send;
    void send(std::span<const Endpoint> to, Bytes packet) override {
      for (Endpoint each : to) links->put(at, each, packet);
    }
    Links* links = nullptr;
    Endpoint at = kNobody;
  };
  double chance() { return static_cast<double>(random_() >> 11) / 9007199254740992.0; }
  void put(Endpoint from, Endpoint to, Bytes packet) {
    bytes[{from, to}] += static_cast<std::int64_t>(packet.size());
    const int copies = chance() < faults_.duplicate ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      if (chance() < faults_.drop) continue;
      const Time late = faults_.spread > 0 ? static_cast<Time>(random_() % static_cast<std::uint64_t>(faults_.spread)) : 0;
      on_the_way_.emplace(now_ + 1'000 + late, Packet{from, to, {packet.begin(), packet.end()}});
    }
  }
  std::mt19937_64 random_;
  Faults faults_;
  Time now_ = 0;
  std::map<Endpoint, Node*> nodes_;
  std::multimap<Time, Packet> on_the_way_;
  Sender sender_;
};

}  // namespace coppice::testing
