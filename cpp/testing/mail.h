// What tests of aggregation in the network share: an outbox that keeps what is sent, and channels with faults.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "aggregation/node.h"
#include "aggregation/state.h"
#include "testing/testing.h"

namespace coppice::aggregation::testing {

struct Letter {
  Endpoint to;
  std::vector<std::uint8_t> packet;
};

class Sent final : public Outbox {
 public:
  using Outbox::send;
  void send(std::span<const Endpoint> to, Bytes packet) override {
    for (Endpoint each : to) letters.push_back({each, {packet.begin(), packet.end()}});
  }
  std::deque<Letter> letters;
};

// So many endpoints from `first` on.
inline std::vector<Endpoint> numbered(int n, Endpoint first = 0) {
  std::vector<Endpoint> all(static_cast<std::size_t>(n));
  for (Endpoint& each : all) each = first++;
  return all;
}

// Nodes joined by channels that lose, double and delay packets by seed, each with probability `fault`.
class Lossy {
 public:
  explicit Lossy(std::uint64_t seed, double fault) : random_(seed), fault_(fault) {}

  struct Box final : Outbox {
    using Outbox::send;
    Box(Lossy& net, Endpoint from) : net_(net), from_(from) {}
    void send(std::span<const Endpoint> to, Bytes packet) override {
      for (Endpoint each : to) net_.post(from_, each, packet);
    }
    Lossy& net_;
    Endpoint from_;
  };

  void post(Endpoint from, Endpoint to, Bytes packet) {
    if (chance()) return;
    for (int copies = chance() ? 2 : 1; copies > 0; --copies) {
      const Time late = chance() ? static_cast<Time>(random_() % 60'000) : 0;
      mail_.emplace(now + 1'000 + late, Mail{from, to, {packet.begin(), packet.end()}});
    }
  }
  // Delivers and wakes until nothing is left to do.
  void run(const std::map<Endpoint, Node*>& nodes, std::size_t most = 2'000'000) {
    for (; most > 0; --most) {
      Time due = kNever;
      Endpoint sleeper = kNobody;
      for (const auto& [at, node] : nodes) {
        if (node->deadline() < due) due = node->deadline(), sleeper = at;
      }
      if (!mail_.empty() && mail_.begin()->first <= due) {
        const auto first = mail_.begin();
        now = first->first;
        const Mail mail = first->second;
        mail_.erase(first);
        Box box(*this, mail.to);
        nodes.at(mail.to)->receive(mail.from, mail.packet, now, box);
      } else if (due != kNever) {
        now = std::max(now, due);
        Box box(*this, sleeper);
        nodes.at(sleeper)->wake(now, box);
      } else {
        return;
      }
    }
    CHECK(!"it ends");
  }

  Time now = 0;

 private:
  struct Mail {
    Endpoint from, to;
    std::vector<std::uint8_t> packet;
  };
  bool chance() { return static_cast<double>(random_() >> 11) * 0x1p-53 < fault_; }
  std::mt19937_64 random_;
  double fault_;
  std::multimap<Time, Mail> mail_;
};

}  // namespace coppice::aggregation::testing
