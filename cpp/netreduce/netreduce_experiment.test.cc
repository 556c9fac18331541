// Whole all-reduces of NetReduce over the simulated network: sums, and the closed forms of its time and memory.
#include <algorithm>
#include <bit>
#include <cmath>

#include "packet_network/experiment.h"
#include "testing/testing.h"

using namespace coppice::aggregation;

namespace {

Experiment ring(int workers, int window, int packets, int values, std::int64_t elements) {
  Experiment e;
  e.protocol = "netreduce";
  e.job.workers = workers;
  e.job.window = window;
  e.job.values = values;
  e.job.slots = 2 * static_cast<int>(std::bit_ceil(static_cast<unsigned>(window))) * packets;
  e.job.settings["message_packets"] = packets;
  e.groups = {workers};
  e.tensors = {elements};
  return e;
}

bool exact(const Outcome& outcome) {
  return outcome.wrong == 0 && outcome.slots_in_use == 0 &&
         std::count(outcome.finish.begin(), outcome.finish.end(), kNever) == 0;
}

Time last(const Outcome& outcome) { return *std::max_element(outcome.finish.begin(), outcome.finish.end()); }

}  // namespace

TEST(simulated_netreduce_is_exact_whatever_the_network_does) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Experiment e = ring(1 + static_cast<int>(seed % 9), 1 + static_cast<int>(seed % 4), 1 + static_cast<int>(seed % 6), 8,
                        300 + static_cast<std::int64_t>(seed));
    if (seed % 3 == 0) e.groups = {1 + e.job.workers / 3, e.job.workers - e.job.workers / 3 - 1};
    if (e.groups.back() == 0) e.groups = {e.job.workers};
    if (seed % 5 == 0) e.job.element = Element::float32;
    e.tensors.push_back(0);
    e.tensors.push_back(97);
    e.job.timeout = 60'000;
    e.link.drop = e.uplink.drop = 0.02 * static_cast<double>(seed % 6);
    e.link.duplicate = e.uplink.duplicate = 0.03;
    e.link.reorder = e.uplink.reorder = 0.05 * static_cast<double>(seed % 2);
    e.seed = seed;
    const Outcome outcome = run_experiment(e);
    CHECK(exact(outcome));
    CHECK(outcome.worst < 1e-5);
  }
}

TEST(simulated_netreduce_takes_the_time_of_the_tensor_on_one_link) {
  // x / B, whatever the number of workers: single hosts, N7 of the design notes. Then the latency, of one message twice
  // over the wire to the switch and from it.
  for (int workers : {2, 8, 32}) {
    Experiment e = ring(workers, 8, 16, 256, 256 * 16 * 200);
    e.link.overhead_bytes = 78;
    const Outcome outcome = run_experiment(e);
    CHECK(exact(outcome));
    const double packet = (1024 + 8 + 78) / 12.5, acknowledgement = (8 + 78) / 12.5, first = 12 / 12.5;
    const double wire = 200 * (16 * packet + first + acknowledgement);
    CHECK(std::abs(static_cast<double>(last(outcome)) / (wire + 2 * 1000 + packet) - 1) < 0.01);
    CHECK_EQ(outcome.workers[Count::resent], 0U);
  }
}

TEST(simulated_netreduce_is_bounded_by_its_credit) {
  // W messages a round trip: min(B, W msg / RTT).
  for (int window : {1, 2, 4, 8, 16}) {
    Experiment e = ring(4, window, 4, 256, 256 * 4 * 400);
    e.link.overhead_bytes = 78;
    e.link.latency = 5'000;
    const Outcome outcome = run_experiment(e);
    CHECK(exact(outcome));
    const double packet = (1024 + 8 + 78) / 12.5, message = 4 * packet + (12 + 8 + 78) / 12.5;
    // The last packet of a message gives the credit: its way to the switch and on, after the rest of the message.
    const double round = 2 * 5'000 + message + packet;
    const double expected = 400 * std::max(message, round / window) + round;  // the last acknowledgement
    CHECK(std::abs(static_cast<double>(last(outcome)) / expected - 1) < 0.03);
  }
}

TEST(simulated_leaves_send_one_stream_to_the_spine) {
  Experiment e = ring(12, 8, 16, 256, 256 * 16 * 50);
  e.groups = {4, 4, 4};
  const Outcome outcome = run_experiment(e);
  CHECK(exact(outcome));
  // Each of 800 packets: up from 12 hosts and 3 leaves; 50 acknowledgements from each host.
  CHECK_EQ(outcome.up.packets, 800 * (12 + 3) + 50 * 12);
  CHECK_EQ(outcome.down.packets, 800 * (12 + 3) + 50 * 12);
}

TEST(simulated_hierarchical_time_is_below_that_of_a_flat_ring_from_the_published_ratio_on) {
  // k processes of a machine reduce-scatter inside, the machines all-reduce over the switch, and all-gather inside:
  // T_h = 2 (k - 1) / k x / B_inside + x / B, against a flat ring of all processes over the machines' links.
  const double n = 8, k = 8, x = 256.0 * 16 * 200 * 4;
  Experiment e = ring(static_cast<int>(n), 8, 16, 256, static_cast<std::int64_t>(x / 4));
  const double between = static_cast<double>(last(run_experiment(e)));
  const double rate = x / between;
  const double flat = 2 * (n * k - 1) / (n * k) * x / rate;
  for (const double ratio : {1.6, 1.75, 1.9, 4.0}) {
    const double hierarchical = 2 * (k - 1) / k * x / (ratio * rate) + between;
    CHECK_EQ(hierarchical < flat, ratio > 1.81);
  }
}

TEST(simulated_netreduce_with_a_silent_worker_ends_in_an_error_that_tells_who) {
  Experiment e = ring(3, 2, 4, 8, 1000);
  e.job.give_up_timeout = 50'000'000;
  e.job.timeout = 1'000'000;
  e.crash_worker = 1;
  e.crash_at = 2'000;
  const Outcome outcome = run_experiment(e);
  CHECK(outcome.failures[0].find("had no result for 50 ms") != std::string::npos);
  CHECK((outcome.waited_for == std::vector<int>{1}));
}
