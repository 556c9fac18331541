// A network of aggregation nodes that loses, doubles and reorders packets by a seed; endpoint n is node n.
#pragma once

#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <stdexcept>
#include <vector>

#include "aggregation/node.h"

namespace coppice::testing {

struct Faults {
  double loss = 0, duplicates = 0;
  aggregation::Time most_late = 0;  // packets take 1000 ns, and up to so much more
};

class LossyNetwork {
 public:
  explicit LossyNetwork(std::uint64_t seed, Faults faults = {}) : random_(seed), faults_(faults) {}

  aggregation::Endpoint add(aggregation::Node& node) {
    nodes_.push_back(&node);
    wakes_.push_back(aggregation::kNever);
    return static_cast<aggregation::Endpoint>(nodes_.size() - 1);
  }
  aggregation::Time now() const { return now_; }

  // Lets a node do something at this time.
  void act(aggregation::Endpoint node, const std::function<void(aggregation::Time, aggregation::Outbox&)>& action) {
    Box box(*this, node);
    action(now_, box);
    plan(node);
  }
  // Goes on until `over` holds or nothing happens any more; true in the first case.
  bool run(const std::function<bool()>& over, std::int64_t most_events = 5'000'000) {
    while (!over()) {
      if (events_.empty() || most_events-- == 0) return false;
      Event event = events_.top();
      events_.pop();
      now_ = event.time;
      Box box(*this, event.to);
      aggregation::Node& node = *nodes_[static_cast<std::size_t>(event.to)];
      if (event.from != kWake) {
        node.receive(event.from, *event.packet, now_, box);
      } else if (wakes_[static_cast<std::size_t>(event.to)] == event.time) {
        wakes_[static_cast<std::size_t>(event.to)] = aggregation::kNever;
        node.wake(now_, box);
      } else {
        continue;
      }
      plan(event.to);
    }
    return true;
  }
  // Packets between these two are lost from now on, in both directions.
  void cut(aggregation::Endpoint a, aggregation::Endpoint b) { cuts_.insert(cuts_.end(), {{a, b}, {b, a}}); }
  // Hears of every packet: sender, receiver, bytes.
  std::function<void(aggregation::Endpoint, aggregation::Endpoint, aggregation::Bytes)> tap;

 private:
  static constexpr aggregation::Endpoint kWake = -2;
  struct Event {
    aggregation::Time time;
    std::uint64_t order;
    aggregation::Endpoint from, to;
    std::shared_ptr<std::vector<std::uint8_t>> packet;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  class Box final : public aggregation::Outbox {
   public:
    using Outbox::send;
    Box(LossyNetwork& network, aggregation::Endpoint from) : network_(network), from_(from) {}
    void send(std::span<const aggregation::Endpoint> to, aggregation::Bytes packet) override {
      for (aggregation::Endpoint each : to) network_.carry(from_, each, packet);
    }

   private:
    LossyNetwork& network_;
    aggregation::Endpoint from_;
  };

  bool chance(double probability) { return std::uniform_real_distribution<>()(random_) < probability; }
  void carry(aggregation::Endpoint from, aggregation::Endpoint to, aggregation::Bytes packet) {
    if (tap) tap(from, to, packet);
    for (const auto& [a, b] : cuts_) {
      if (from == a && to == b) return;
    }
    const int copies = faults_.duplicates > 0 && chance(faults_.duplicates) ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      if (faults_.loss > 0 && chance(faults_.loss)) continue;
      const aggregation::Time late =
          faults_.most_late > 0 ? static_cast<aggregation::Time>(random_() % static_cast<std::uint64_t>(faults_.most_late)) : 0;
      events_.push({now_ + 1000 + late, order_++, from, to,
                    std::make_shared<std::vector<std::uint8_t>>(packet.begin(), packet.end())});
    }
  }
  void plan(aggregation::Endpoint node) {
    const aggregation::Time at = nodes_[static_cast<std::size_t>(node)]->deadline();
    aggregation::Time& planned = wakes_[static_cast<std::size_t>(node)];
    if (at == planned || at == aggregation::kNever) {
      if (at == aggregation::kNever) planned = at;
      return;
    }
    planned = std::max(at, now_);
    events_.push({planned, order_++, kWake, node, nullptr});
  }

  std::mt19937_64 random_;
  Faults faults_;
  aggregation::Time now_ = 0;
  std::uint64_t order_ = 0;
  std::vector<aggregation::Node*> nodes_;
  std::vector<aggregation::Time> wakes_;
  std::vector<std::pair<aggregation::Endpoint, aggregation::Endpoint>> cuts_;
  std::priority_queue<Event> events_;
};

// All-reduces of random numbers, one after the other, and whether every worker has every sum.
template <class T>
class Tensors {
 public:
  Tensors(std::size_t workers, std::uint64_t seed) : random_(seed), inputs_(workers), outputs_(workers) {}

  // The sums are those of whole numbers, so that they are exact in float32 too.
  void start(LossyNetwork& network, std::span<const std::unique_ptr<aggregation::Worker>> workers,
             std::span<const aggregation::Endpoint> endpoints, std::size_t count) {
    expected_.assign(count, T{0});
    for (std::size_t w = 0; w < workers.size(); ++w) {
      inputs_[w].resize(count);
      outputs_[w].assign(count, T{-7});
      for (std::size_t i = 0; i < count; ++i) {
        inputs_[w][i] = static_cast<T>(static_cast<int>(random_() % 2001) - 1000);
        expected_[i] += inputs_[w][i];
      }
    }
    for (std::size_t w = 0; w < workers.size(); ++w) {
      network.act(endpoints[w], [&](aggregation::Time now, aggregation::Outbox& out) {
        workers[w]->begin(inputs_[w].data(), outputs_[w].data(), count, now, out);
      });
    }
  }
  bool right() const {
    for (const std::vector<T>& each : outputs_) {
      if (each != expected_) return false;
    }
    return true;
  }
  const std::vector<T>& output(std::size_t worker) const { return outputs_[worker]; }
  std::vector<T>& input(std::size_t worker) { return inputs_[worker]; }

 private:
  std::mt19937_64 random_;
  std::vector<std::vector<T>> inputs_, outputs_;
  std::vector<T> expected_;
};

inline bool all_done(std::span<const std::unique_ptr<aggregation::Worker>> workers) {
  for (const auto& each : workers) {
    if (!each->done()) return false;
  }
  return true;
}

// One job on a tree of switches: `fanout` children at each switch, as many levels as the workers need; 0: one switch.
class SwitchedJob {
 public:
  using MakeSwitch = std::unique_ptr<aggregation::Aggregator> (*)(int);
  using MakeWorker = std::unique_ptr<aggregation::Worker> (*)(const aggregation::Job&, int, aggregation::Endpoint);

  SwitchedJob(LossyNetwork& network, const aggregation::Job& job, MakeSwitch make_switch, MakeWorker make_worker,
              int fanout = 0) {
    // The switches get their endpoints first, level by level from the leaves up.
    std::vector<std::size_t> level;
    std::size_t below = static_cast<std::size_t>(job.workers), width = fanout == 0 ? below : static_cast<std::size_t>(fanout);
    do {
      below = (below + width - 1) / width;
      level.push_back(below);
      for (std::size_t i = 0; i < below; ++i) {
        switches.push_back(make_switch(job.slots));
        network.add(*switches.back());
      }
    } while (below > 1);
    for (int w = 0; w < job.workers; ++w) {
      const auto above = static_cast<aggregation::Endpoint>(static_cast<std::size_t>(w) / width);
      aggregation::Job own = job;
      own.workers = static_cast<int>(std::min(width, static_cast<std::size_t>(job.workers) - static_cast<std::size_t>(above) * width));
      workers.push_back(make_worker(own, w % static_cast<int>(width), above));
      endpoints.push_back(network.add(*workers.back()));
    }
    std::vector<aggregation::Endpoint> children = endpoints;
    std::size_t first = 0;
    for (std::size_t each : level) {
      std::vector<aggregation::Endpoint> these;
      for (std::size_t i = 0; i < each; ++i) {
        const std::size_t from = i * width, to = std::min(from + width, children.size());
        aggregation::Job own = job;
        own.workers = static_cast<int>(to - from);
        const aggregation::Endpoint parent =
            each == 1 ? aggregation::kNobody : static_cast<aggregation::Endpoint>(first + each + i / width);
        switches[first + i]->open(own, std::span(children).subspan(from, to - from), parent);
        these.push_back(static_cast<aggregation::Endpoint>(first + i));
      }
      first += each;
      children = these;
    }
  }

  std::vector<std::unique_ptr<aggregation::Aggregator>> switches;
  std::vector<std::unique_ptr<aggregation::Worker>> workers;
  std::vector<aggregation::Endpoint> endpoints;
};

}  // namespace coppice::testing
