// Whole all-reduces of ATP over the simulated network: sums, restarts, and the closed forms of its throughput.
#include <algorithm>
#include <cmath>

#include "packet_network/experiment.h"
#include "testing/testing.h"

using namespace coppice::aggregation;

namespace {

constexpr double kFrame = 308 / 12.5;  // ns on a wire of 12.5 GB/s, Ethernet and IPv4 included

Experiment star(int workers, int window, int slots, std::int64_t packets) {
  Experiment e;
  e.protocol = "atp";
  e.job.workers = workers;
  e.job.window = window;
  e.job.slots = slots;
  e.job.values = 62;
  e.job.timeout = 50'000'000;
  e.groups = {workers};
  e.tensors = {62 * packets};
  e.link.overhead_bytes = e.uplink.overhead_bytes = 34;
  return e;
}

bool exact(const Outcome& outcome) {
  return outcome.wrong == 0 && outcome.slots_in_use == 0 &&
         std::count(outcome.finish.begin(), outcome.finish.end(), kNever) == 0;
}

double last(const Outcome& outcome) {
  return static_cast<double>(*std::max_element(outcome.finish.begin(), outcome.finish.end()));
}

}  // namespace

TEST(simulated_atp_is_exact_whatever_the_network_does) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Experiment e = star(1 + static_cast<int>(seed % 9), 1 + static_cast<int>(seed % 20), 1 + static_cast<int>(seed % 7), 12);
    if (seed % 3 == 0) e.groups = {1 + e.job.workers / 3, e.job.workers - e.job.workers / 3 - 1};
    if (e.groups.back() == 0) e.groups = {e.job.workers};
    if (seed % 5 == 0) e.job.element = Element::float32;
    e.tensors.push_back(0);
    e.tensors.push_back(61);
    e.job.timeout = 100'000;
    e.job.settings["short_timeout"] = 20'000;
    e.link.drop = e.uplink.drop = 0.04 * static_cast<double>(seed % 6);
    e.link.duplicate = e.uplink.duplicate = 0.03;
    e.link.reorder = e.uplink.reorder = 0.05 * static_cast<double>(seed % 2);
    e.seed = seed;
    const Outcome outcome = run_experiment(e);
    CHECK(exact(outcome));
    CHECK(outcome.worst < 1e-5);
  }
}

TEST(simulated_atp_survives_a_switch_that_forgets) {
  for (Time at = 0; at < 20'000; at += 1'370) {
    Experiment e = star(4, 20, 64, 200);
    e.restart_switch = 0;
    e.restart_at = at;
    CHECK(exact(run_experiment(e)));
  }
}

TEST(simulated_atp_takes_the_time_of_the_tensor_on_one_link_however_many_workers) {
  for (int workers : {2, 8, 32}) {
    Experiment e = star(workers, 100, 128, 4096);
    e.job.settings["mark_bytes"] = 1e12;
    const Outcome outcome = run_experiment(e);
    CHECK(exact(outcome));
    CHECK_EQ(outcome.workers[Count::resent], 0U);
    // Worker, switch, server, switch, worker: window of 100 packets a round trip of 4 links, or the wire.
    const double trip = 4 * (1'000 + kFrame);
    CHECK(std::abs(last(outcome) / (std::max(kFrame, trip / 100) * 4096 + trip) - 1) < 0.02);
  }
}

TEST(simulated_atp_without_slots_is_a_parameter_server) {
  // Everything goes to the server: n x over its link upwards, x downwards. A second job keeps the only slot by never
  // completing; here, the switch has one slot for a window of 64.
  Experiment e = star(8, 64, 1, 2048);
  e.job.settings["mark_bytes"] = 1e12;
  const Outcome outcome = run_experiment(e);
  CHECK(exact(outcome));
  const double through = static_cast<double>(outcome.server[Count::received]) / 2048;
  CHECK(through > 6);  // nearly all of the 8 workers' packets
  CHECK(last(outcome) > 0.98 * through * kFrame * 2048);
}

TEST(simulated_atp_marks_what_would_fill_a_queue_and_workers_slow_down) {
  // The server's link has a tenth of the workers' rate: the switch, with few slots, sends nearly everything over it.
  Experiment e = star(4, 100, 2, 3000);
  e.uplink.bytes_per_s = 1.25e9;
  e.job.settings["mark_bytes"] = 15'000;
  const Outcome outcome = run_experiment(e);
  CHECK(exact(outcome));
  CHECK(outcome.switches[Count::marked] > 0);
  CHECK(outcome.workers[Count::marked] > 0);
  Experiment bounded = e;
  bounded.uplink.queue_bytes = 200'000;  // more than the marks let pile up, less than windows of 100 would
  const Outcome held = run_experiment(bounded);
  CHECK(exact(held));
  CHECK_EQ(held.up.overflowed, 0);
  bounded.job.settings["mark_bytes"] = 1e12;
  bounded.uplink.queue_bytes = 60'000;
  CHECK(run_experiment(bounded).up.overflowed > 0);
}

TEST(simulated_atp_with_a_silent_worker_ends_in_an_error_that_tells_who) {
  Experiment e = star(3, 10, 64, 500);
  e.job.give_up_timeout = 200'000'000;
  e.crash_worker = 2;
  e.crash_at = 5'000;
  const Outcome outcome = run_experiment(e);
  CHECK(outcome.failures[0].find("had no result for 200 ms") != std::string::npos);
  CHECK(std::count(outcome.waited_for.begin(), outcome.waited_for.end(), 2) >= 1);
}
