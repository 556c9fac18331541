// Goals of simulator.h: messages per second of a ring of GPUs around a switch, in turn and at fair rates.
// Usage: build/simulator/simulator.perf
#include "simulator/simulator.h"

#include "testing/perf.h"

using namespace coppice;

namespace {

/// `steps` steps of a ring: in every step each GPU sends to the next one, through a switch.
struct Ring {
  std::vector<std::int32_t> route, send_gate, receive_gate, route_links, sender, receiver;
  std::vector<std::int64_t> bytes, route_start{0};
  std::vector<std::uint8_t> chained;
  std::vector<double> rate, latency, overhead;

  Ring(std::int32_t gpus, std::int32_t steps) {
    for (std::int32_t gpu = 0; gpu < gpus; ++gpu) {
      const std::int32_t next = (gpu + 1) % gpus;
      route_links.insert(route_links.end(), {gpu, gpus + next});
      route_start.push_back(static_cast<std::int64_t>(route_links.size()));
      sender.push_back(gpu);
      receiver.push_back(next);
      for (std::int32_t step = 0; step < steps; ++step) chained.push_back(step > 0);
    }
    rate.assign(2 * static_cast<std::size_t>(gpus), 50);
    latency.assign(rate.size(), 500);
    overhead.assign(static_cast<std::size_t>(gpus), 1000);
    for (std::int32_t step = 0; step < steps; ++step) {
      for (std::int32_t gpu = 0; gpu < gpus; ++gpu) {
        route.push_back(gpu);
        bytes.push_back(1 << 20);
        send_gate.push_back(gpu * steps + step);
        receive_gate.push_back((gpu + 1) % gpus * steps + step);
      }
    }
  }

  Traffic traffic() const {
    return {.route = route, .bytes = bytes, .added = {}, .wave = {}, .job = {}, .due = {}, .send_gate = send_gate,
            .receive_gate = receive_gate, .chained = chained, .after_start = {}, .after = {}};
  }
  Fabric fabric() const {
    return {.rate = rate, .latency = latency, .route_start = route_start, .route_links = route_links,
            .overhead = overhead, .sender = sender, .receiver = receiver,
            .num_gpus = static_cast<std::int32_t>(sender.size())};
  }
};

void measure(const std::string& name, std::int32_t gpus, std::int32_t steps, double us_fifo, double us_fair) {
  Ring ring(gpus, steps);
  const double messages = static_cast<double>(ring.route.size());
  const std::string what = name + ", " + std::to_string(ring.route.size()) + " messages";
  std::int64_t finished = 0;
  SimulatorOptions options{.send_engines = 1, .receive_engines = 1};
  double fifo = perf::seconds([&] { finished = simulate_fifo(ring.traffic(), ring.fabric(), options).finished; });
  perf::report(what + (finished == messages ? ", in turn" : ", UNFINISHED"), fifo, messages * us_fifo * 1e-6);
  double fair = perf::seconds([&] { finished = simulate_fair(ring.traffic(), ring.fabric(), options).finished; });
  perf::report(what + (finished == messages ? ", fair" : ", UNFINISHED"), fair, messages * us_fair * 1e-6);
}

}  // namespace

int main() {
  measure("ring of 100", 100, 1'000, 0.5, 1);
  measure("ring of 1,000", 1'000, 1'000, 0.5, 1);
}
