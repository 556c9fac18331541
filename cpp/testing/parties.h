// Nodes joined by one queue of packets, so that a test decides about each packet: delivered, lost, doubled, late.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "aggregation/node.h"
#include "aggregation/state.h"

namespace coppice::testing {

class Parties {
 public:
  using Endpoint = aggregation::Endpoint;

  struct Letter {
    Endpoint from;
    Endpoint to;
    std::vector<std::uint8_t> bytes;
  };

  // What a node sends while it is driven.
  class Post final : public aggregation::Outbox {
   public:
    Post(Parties& parties, Endpoint from) : parties_(parties), from_(from) {}
    using Outbox::send;
    void send(std::span<const Endpoint> to, aggregation::Bytes packet) override {
      for (Endpoint each : to) parties_.letters.push_back({from_, each, {packet.begin(), packet.end()}});
    }
    std::int64_t queued(Endpoint to) const override {
      const auto found = parties_.waiting.find(to);
      return found == parties_.waiting.end() ? 0 : found->second;
    }

   private:
    Parties& parties_;
    Endpoint from_;
  };

  void add(Endpoint at, aggregation::Node& node) { nodes[at] = &node; }
  Post post(Endpoint from) { return {*this, from}; }

  void deliver(const Letter& letter) {
    Post out = post(letter.to);
    nodes.at(letter.to)->receive(letter.from, letter.bytes, now, out);
  }

  // Delivers what waits, in order, and what comes of it; `fate` says how many copies of a packet arrive.
  void settle() {
    while (!letters.empty()) {
      const Letter letter = letters.front();
      letters.pop_front();
      const int copies = fate ? fate(letter) : 1;
      for (int copy = 0; copy < copies; ++copy) deliver(letter);
    }
  }

  // On to the next time at which a node wants to be woken; false where none does.
  bool wait() {
    aggregation::Time next = aggregation::kNever;
    for (const auto& [at, node] : nodes) next = std::min(next, node->deadline());
    if (next == aggregation::kNever) return false;
    now = std::max(now, next);
    for (const auto& [at, node] : nodes) {
      if (node->deadline() > now) continue;
      Post out = post(at);
      node->wake(now, out);
    }
    return true;
  }

  // Until `finished`, or nothing can happen any more, or so many time-outs have passed.
  bool run(const std::function<bool()>& finished, int timeouts = 10'000) {
    settle();
    for (; timeouts > 0 && !finished(); --timeouts) {
      if (!wait()) break;
      settle();
    }
    return finished();
  }

  // As `run`, in a random order, with losses, copies and delays: each packet in turn is any of the first `reach`
  // that wait.
  bool run_wildly(const std::function<bool()>& finished, double loss, double copy, std::size_t reach, unsigned seed,
                  int steps = 1'000'000) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> chance;
    for (; steps > 0 && !finished(); --steps) {
      if (letters.empty()) {
        if (!wait()) break;
        continue;
      }
      const std::size_t at = random() % std::min(reach, letters.size());
      const Letter letter = letters[at];
      letters.erase(letters.begin() + static_cast<std::ptrdiff_t>(at));
      now += 100;
      if (chance(random) < copy) letters.push_back(letter);
      if (chance(random) >= loss) deliver(letter);
    }
    return finished();
  }

  std::map<Endpoint, aggregation::Node*> nodes;
  std::deque<Letter> letters;
  std::map<Endpoint, std::int64_t> waiting;
  std::function<int(const Letter&)> fate;
  aggregation::Time now = 0;
};

}  // namespace coppice::testing
