#include "packet_network/experiment.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "aggregation/protocols.h"
#include "core/hash.h"
#include "packet_network/assembly.h"

namespace coppice::aggregation {

namespace {

// The tensors of all workers, made when they are needed, and their sums.
class Tensors {
 public:
  Tensors(const Experiment& experiment, int workers)
      : experiment_(experiment), floats_(experiment.job.element == Element::float32), workers_(workers) {}

  // Bits of the input of a worker.
  std::vector<std::uint32_t> input(std::size_t tensor, int worker) const {
    const auto count = static_cast<std::size_t>(experiment_.tensors[tensor]);
    std::vector<std::uint32_t> bits(count);
    const std::uint64_t start = mixed(mixed(experiment_.seed, tensor), static_cast<std::uint64_t>(worker));
    const auto most = static_cast<std::uint64_t>(0x7FFFFFFF / workers_);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t random = mixed(start + i);
      if (floats_) {
        const float value = static_cast<float>(static_cast<std::int32_t>(random >> 40) - (1 << 23)) * 0x1p-23f;
        std::memcpy(&bits[i], &value, sizeof value);
      } else {
        bits[i] = static_cast<std::uint32_t>(((random >> 32) * (2 * most + 1)) >> 32) - static_cast<std::uint32_t>(most);
      }
    }
    return bits;
  }

  void compare(std::size_t tensor, const std::vector<std::uint32_t>& result, Outcome& outcome) {
    if (tensor != summed_ || !any_) sum(tensor);
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (floats_) {
        float value;
        std::memcpy(&value, &result[i], sizeof value);
        outcome.worst = std::max(outcome.worst, std::abs(static_cast<double>(value) - sums_[i]));
      } else {
        outcome.wrong += static_cast<double>(static_cast<std::int32_t>(result[i])) != sums_[i];
      }
    }
  }

 private:
  void sum(std::size_t tensor) {
    sums_.assign(static_cast<std::size_t>(experiment_.tensors[tensor]), 0.0);
    for (int worker = 0; worker < workers_; ++worker) {
      const auto bits = input(tensor, worker);
      for (std::size_t i = 0; i < bits.size(); ++i) {
        float value;
        std::memcpy(&value, &bits[i], sizeof value);
        sums_[i] += floats_ ? static_cast<double>(value) : static_cast<double>(static_cast<std::int32_t>(bits[i]));
      }
    }
    summed_ = tensor, any_ = true;
  }

  const Experiment& experiment_;
  bool floats_, any_ = false;
  int workers_;
  std::size_t summed_ = 0;
  std::vector<double> sums_;
};

void add(Counters& to, const Counters& from) {
  for (std::size_t i = 0; i < kCounts; ++i) to.values[i] += from.values[i];
}

}  // namespace

Outcome run_experiment(const Experiment& experiment, const StopFlag& stop) {
  const Assembly assembly(protocol(experiment.protocol), experiment.job, experiment.groups);
  const int workers = assembly.workers();
  const auto n = static_cast<std::size_t>(workers);
  Network network(experiment.seed);
  for (Endpoint each = 0; each < assembly.size(); ++each) {
    network.add(assembly.make(each),
                assembly.is_worker(each) ? experiment.worker_packets_per_s : experiment.switch_packets_per_s);
  }
  for (Endpoint each = 0; each < assembly.size(); ++each) {
    if (assembly.above(each) == kNobody) continue;
    network.join(each, assembly.above(each), assembly.is_worker(each) ? experiment.link : experiment.uplink);
  }

  Outcome outcome;
  outcome.finish.assign(n, kNever);
  outcome.failures.resize(n);
  Tensors tensors(experiment, workers);
  std::vector<std::vector<std::uint32_t>> data(n);
  std::vector<std::size_t> tensor(n, 0);  // under way, of each worker; the number of tensors when all are done
  std::vector<bool> crashed(n, false);
  int left = workers;

  // Looks at a worker that was driven: takes its result and starts what follows.
  const auto look = [&](Endpoint at) {
    const auto w = static_cast<std::size_t>(at);
    auto& worker = static_cast<Worker&>(network.node(at));
    if (crashed[w] || !outcome.failures[w].empty()) return;
    while (tensor[w] < experiment.tensors.size() && worker.done() && !data[w].empty()) {
      data[w].pop_back();  // the element that marks a tensor under way
      tensors.compare(tensor[w], data[w], outcome);
      data[w].clear();
      if (++tensor[w] == experiment.tensors.size()) {
        outcome.finish[w] = network.now();
        --left;
        return;
      }
      data[w] = tensors.input(tensor[w], at);
      data[w].push_back(0);
      network.drive(at, [&](Node&, Time now, Outbox& out) {
        worker.begin(data[w].data(), data[w].data(), data[w].size() - 1, now, out);
      });
    }
    if (!worker.failure().empty()) outcome.failures[w] = worker.failure(), --left;
  };
  for (Endpoint at = 0; at < workers && !experiment.tensors.empty(); ++at) {
    const auto w = static_cast<std::size_t>(at);
    network.call(w < experiment.starts.size() ? experiment.starts[w] : 0, [&, at, w] {
      data[w] = tensors.input(0, at);
      data[w].push_back(0);
      network.drive(at, [&](Node& node, Time now, Outbox& out) {
        static_cast<Worker&>(node).begin(data[w].data(), data[w].data(), data[w].size() - 1, now, out);
      });
      look(at);
    });
  }
  if (experiment.crash_worker >= 0) {
    network.call(experiment.crash_at, [&] {
      const auto w = static_cast<std::size_t>(experiment.crash_worker);
      if (outcome.finish[w] == kNever && outcome.failures[w].empty()) --left;
      crashed[w] = true;
      network.stop(experiment.crash_worker);
    });
  }
  if (experiment.restart_switch >= 0) {
    const Endpoint at = workers + experiment.restart_switch;
    network.call(experiment.restart_at, [&, at] {
      add(outcome.switches, network.node(at).counters());
      network.replace(at, assembly.make(at));
    });
  }

  // Switches that hold sums when all workers are done may give them back at a time-out, if what should have told them so
  // was lost; they get a worker's give-up timeout.
  Time settled_by = kNever;
  const auto unsettled = [&] {
    if (settled_by == kNever) settled_by = network.now() + std::min(experiment.job.give_up_timeout, kNever / 4);
    bool held = false, timed = false;
    for (Endpoint each = workers; each < assembly.size(); ++each) {
      held = held || static_cast<const Aggregator&>(network.node(each)).slots_in_use() > 0;
      timed = timed || network.node(each).deadline() < settled_by;
    }
    return held && timed;
  };
  // Until all workers are done or have given up, no packet is on its way, and the switches are empty if they can be.
  for (std::uint32_t steps = 0; left > 0 || network.under_way() > 0 || unsettled(); ++steps) {
    if (steps % 4'096 == 0) poll(stop);
    const Endpoint driven = network.step();
    if (driven == Network::kOver || network.now() > experiment.limit || network.now() > settled_by) break;
    if (driven >= 0 && driven < workers) look(driven);
  }

  outcome.end = network.now();
  outcome.delivered = network.delivered();
  for (Endpoint each = 0; each < assembly.size(); ++each) {
    const Counters& counters = network.node(each).counters();
    if (assembly.above(each) != kNobody) {
      outcome.up += network.traffic(each, assembly.above(each));
      outcome.down += network.traffic(assembly.above(each), each);
    }
    if (assembly.is_worker(each)) {
      add(outcome.workers, counters);
      continue;
    }
    add(assembly.is_server(each) ? outcome.server : outcome.switches, counters);
    const auto& aggregator = static_cast<const Aggregator&>(network.node(each));
    outcome.slots_in_use += aggregator.slots_in_use();
    for (int child : aggregator.waits_for(experiment.job.id)) {
      const Endpoint late = assembly.children(each)[static_cast<std::size_t>(child)];
      if (assembly.is_worker(late)) outcome.waited_for.push_back(late);
    }
  }
  std::ranges::sort(outcome.waited_for);
  return outcome;
}

}  // namespace coppice::aggregation
