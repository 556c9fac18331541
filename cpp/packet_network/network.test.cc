#include "packet_network/network.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <stdexcept>

#include "packet_network/experiment.h"
#include "testing/testing.h"

using namespace coppice::aggregation;

namespace {

Experiment star(int workers, int slots, int values, std::int64_t elements) {
  Experiment e;
  e.job.workers = workers;
  e.job.slots = e.job.window = slots;
  e.job.values = values;
  e.groups = {workers};
  e.tensors = {elements};
  e.link.overhead_bytes = e.uplink.overhead_bytes = 72;
  return e;
}

bool exact(const Outcome& outcome) {
  for (Time each : outcome.finish) {
    if (each == kNever) return false;
  }
  return outcome.wrong == 0 && outcome.slots_in_use == 0;
}

Time last(const Outcome& outcome) { return *std::max_element(outcome.finish.begin(), outcome.finish.end()); }

}  // namespace

TEST(simulated_links_take_their_time) {
  // One packet there and back over one link: twice the wire and the latency, to the nanosecond.
  Experiment e = star(1, 1, 256, 256);
  e.link.latency = 1'500;
  const Outcome one = run_experiment(e);
  CHECK(exact(one));
  const double wire = (1034 + 72) / 12.5;
  CHECK(std::abs(static_cast<double>(last(one)) - (2 * wire + 3'000)) <= 1);
  e.switch_packets_per_s = 1e6;
  CHECK(std::abs(static_cast<double>(last(run_experiment(e))) - (2 * wire + 4'000)) <= 1);
  CHECK_EQ(one.up.bytes, 1106);
  CHECK_EQ(one.down.packets, 1);
  CHECK_EQ(one.delivered, 2);
}

TEST(simulated_switchml_has_the_published_throughput) {
  // min(B, window of packets per round trip), with frames of 82 + 4 k bytes: N5 of the design notes.
  for (int slots : {16, 32, 64, 256}) {
    Experiment e = star(8, slots, 256, 256 * 4096);
    e.link.latency = 1'456;
    const Outcome outcome = run_experiment(e);
    CHECK(exact(outcome));
    const double frame = 82 + 1024, wire = frame / 12.5, trip = 2 * (1'456 + wire);
    const double per_packet = std::max(wire, trip / slots);
    const double expected = per_packet * 4096 + trip;
    CHECK(std::abs(static_cast<double>(last(outcome)) / expected - 1) < 0.02);
  }
}

TEST(simulated_trees_sum_through_two_levels) {
  Experiment e = star(6, 4, 16, 1000);
  e.groups = {3, 2, 1};
  e.tensors = {1000, 0, 1, 500};
  e.link.drop = e.uplink.drop = 0.05;
  e.link.duplicate = e.uplink.duplicate = 0.05;
  e.link.reorder = e.uplink.reorder = 0.1;
  e.job.timeout = 100'000;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    e.seed = seed;
    const Outcome outcome = run_experiment(e);
    CHECK(exact(outcome));
    CHECK(outcome.up.dropped > 0 && outcome.down.duplicated > 0 && outcome.up.reordered > 0);
  }
  e.groups = {3, 2};
  CHECK_THROWS(std::invalid_argument, run_experiment(e));
  e.groups = {6, 0};
  CHECK_THROWS(std::invalid_argument, run_experiment(e));
  e.groups = {6};
  e.protocol = "nothing";
  CHECK_THROWS(std::invalid_argument, run_experiment(e));
}

TEST(simulated_runs_repeat_by_seed) {
  Experiment e = star(4, 8, 64, 64 * 200);
  e.link.drop = 0.01, e.link.reorder = 0.2;
  e.seed = 7;
  const Outcome a = run_experiment(e), b = run_experiment(e);
  CHECK(a.finish == b.finish && a.delivered == b.delivered && exact(a));
  e.seed = 8;
  CHECK(run_experiment(e).finish != a.finish);
}

TEST(simulated_queues_overflow_and_the_sum_is_still_exact) {
  Experiment e = star(4, 64, 256, 256 * 512);
  e.groups = {2, 2};
  e.link.bytes_per_s = 12.5e9;
  e.uplink.bytes_per_s = 3e9;  // two leaves' worth of sums over slow links
  e.uplink.queue_bytes = 20'000;
  e.job.timeout = 200'000;
  const Outcome outcome = run_experiment(e);
  CHECK(exact(outcome));
  CHECK(outcome.up.overflowed > 0);
}

TEST(simulated_crashes_give_errors_and_no_wrong_sum) {
  Experiment e = star(3, 8, 64, 64 * 2'000);
  e.job.give_up_timeout = 200'000'000;
  e.crash_worker = 1;
  e.crash_at = 50'000;
  Outcome outcome = run_experiment(e);
  CHECK_EQ(outcome.wrong, 0);
  CHECK(!outcome.failures[0].empty() && outcome.failures[1].empty() && !outcome.failures[2].empty());
  CHECK(outcome.waited_for == std::vector<int>{1});
  CHECK(outcome.slots_in_use > 0 && outcome.slots_in_use <= 8);
  e.crash_worker = -1;
  e.restart_switch = 0;
  e.restart_at = 50'000;
  outcome = run_experiment(e);
  CHECK_EQ(outcome.wrong, 0);
  for (const std::string& each : outcome.failures) CHECK(!each.empty());
  CHECK_EQ(outcome.slots_in_use, 0);
  // C8: a worker that is late makes the others wait, and no more.
  e.restart_switch = -1;
  e.starts = {0, 100'000'000, 0};
  outcome = run_experiment(e);
  CHECK(exact(outcome) && last(outcome) > 100'000'000);
}

TEST(simulated_floats_stay_within_their_bound) {
  Experiment e = star(8, 4, 32, 32 * 30 + 5);
  e.job.element = Element::float32;
  e.link.drop = 0.02;
  e.job.timeout = 50'000;
  const Outcome outcome = run_experiment(e);
  CHECK(exact(outcome));
  CHECK(outcome.worst > 0 && outcome.worst < 8 * 8 * 0x1p-31 + 8 * 0x1p-24);
}
