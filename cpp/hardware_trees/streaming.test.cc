#include "hardware_trees/streaming.h"

#include <cstring>

#include "packet_network/exploration.h"
#include "testing/frames.h"
#include "testing/testing.h"

using namespace coppice::aggregation;
using namespace coppice::testing;

namespace {

std::unique_ptr<Aggregator> a_switch(int slots) { return std::make_unique<StreamingSwitch>(slots); }
std::unique_ptr<Worker> a_worker(const Job& job, int index, Endpoint above) {
  return std::make_unique<StreamingWorker>(job, index, above);
}

template <class T>
void whole_jobs(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Job job = drawn_job<T>(random);
  job.settings["headroom"] = static_cast<double>(random() % static_cast<std::uint64_t>(job.slots));
  check_sums<T>(seed, random, job, 1500, a_switch, a_worker);
}

}  // namespace

TEST(streamed_sums_are_exact_whatever_is_lost_doubled_or_late) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    whole_jobs<std::int32_t>(seed);
    whole_jobs<float>(seed + 1000);
  }
}

TEST(streamed_floats_are_added_in_the_order_of_ports) {
  const float values[3] = {1e8F, 1.0F, -1e8F};
  for (const std::vector<Endpoint>& order : {std::vector<Endpoint>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
    StreamingSwitch node(4);
    const std::vector<Endpoint> children{0, 1, 2};
    node.open(job_of(3, 4, 1, 1, Element::float32), children, kNobody);
    Sent sent;
    for (Endpoint each : order) {
      node.receive(each, frame(1, 0, {std::bit_cast<Word>(values[each])}), 0, sent);
    }
    CHECK_EQ(sent.all.size(), 3U);
    CHECK(sent.all[0].second == frame(2, 0, {std::bit_cast<Word>((1e8F + 1.0F) + -1e8F)}));
  }
}

TEST(streaming_switch_pauses_full_queues_and_resumes_half_empty_ones) {
  StreamingSwitch node(4);
  const std::vector<Endpoint> children{0, 1};
  Job job = job_of(2, 4, 1, 16);
  job.settings["headroom"] = 1;
  node.open(job, children, kNobody);
  Sent sent;
  for (Word n = 0; n < 6; ++n) node.receive(0, frame(1, n, {n}), 0, sent);
  // Three fill the queue up to its headroom: pause; the fourth is taken still, the next refused, the last out of sequence.
  CHECK_EQ(sent.all.size(), 2U);
  CHECK(sent.all[0] == std::pair(Endpoint{0}, frame(3, 3, {})));
  CHECK(sent.all[1] == std::pair(Endpoint{0}, frame(3, 4, {})));
  CHECK_EQ(node.most_queued(7), 4);
  CHECK_EQ(node.counters()[Count::over_quota], 1U);
  sent.all.clear();
  for (Word n = 0; n < 3; ++n) node.receive(1, frame(1, n, {10}), 0, sent);
  // With the third sum one is left: resumed, and told what was dropped.
  CHECK_EQ(sent.all.size(), 8U);
  CHECK(sent.all[6] == std::pair(Endpoint{0}, frame(4, 4, {})));
  CHECK(sent.all[7] == std::pair(Endpoint{0}, frame(5, 4, {})));
  CHECK_EQ(node.counters()[Count::completed], 3U);
}

TEST(queue_grows_with_the_skew_and_memory_not_with_the_message) {
  // Worker 1 starts `skew` packets later: so many frames of worker 0 wait.
  for (int skew : {1, 5, 20}) {
    for (std::size_t count : {std::size_t{100}, std::size_t{10000}}) {
      const Job job = job_of(2, 64, 1, 64);
      StreamingSwitch node(64);
      const std::vector<Endpoint> children{0, 1};
      node.open(job, children, kNobody);
      Sent sent;
      for (std::size_t n = 0; n < count + static_cast<std::size_t>(skew); ++n) {
        if (n < count) node.receive(0, frame(1, static_cast<Word>(n), {1}), 0, sent);
        if (n >= static_cast<std::size_t>(skew)) {
          node.receive(1, frame(1, static_cast<Word>(n) - static_cast<Word>(skew), {1}), 0, sent);
        }
      }
      CHECK_EQ(node.most_queued(7), skew + 1);
      CHECK_EQ(node.memory(7), 4 * (2 * 64 + 64));
      CHECK_EQ(node.counters()[Count::completed], count);
    }
  }
}

TEST(streaming_drops_what_is_not_its_own) {
  StreamingSwitch node(8);
  const std::vector<Endpoint> children{0, 1};
  const Job job = job_of(2, 4, 2, 4);
  node.open(job, children, kNobody);
  CHECK_THROWS(std::invalid_argument, node.open(job, children, kNobody));
  Job wider = job;
  wider.id = 8, wider.slots = 5;
  CHECK_THROWS(std::invalid_argument, node.open(wider, children, kNobody));
  const std::vector<Endpoint> twice{0, 0};
  wider.slots = 4;
  CHECK_THROWS(std::invalid_argument, node.open(wider, twice, kNobody));
  std::vector<std::uint8_t> before, later;
  before = state_of(node, 0);
  Sent sent;
  std::vector<std::uint8_t> good = frame(1, 0, {1, 2});
  for (std::size_t length = 0; length < good.size(); ++length) node.receive(0, Bytes(good.data(), length), 0, sent);
  CHECK_EQ(node.counters()[Count::malformed], good.size());
  std::vector<std::uint8_t> longer = good;
  longer.push_back(0);
  node.receive(0, longer, 0, sent);
  node.receive(0, frame(2, 0, {1, 2}), 0, sent);   // a sum, from below
  node.receive(0, frame(9, 0, {}), 0, sent);       // unknown
  node.receive(0, frame(1, 0, {1, 2, 3}), 0, sent);
  node.receive(5, good, 0, sent);                  // from nobody of the job
  node.receive(kNobody, frame(2, 0, {1, 2}), 0, sent);
  node.receive(0, frame(1, 0, {1, 2}, 0, 8), 0, sent);  // of another job
  node.receive(0, frame(1, 0xffffffff, {1, 2}), 0, sent);
  CHECK_EQ(node.counters()[Count::malformed], good.size() + 4);
  CHECK_EQ(node.counters()[Count::unknown_sender], 3U);
  CHECK_EQ(node.counters()[Count::stale], 1U);
  later = state_of(node, 0);
  CHECK(before == later);
  CHECK(sent.all.empty());
  node.close(7);
  node.close(7);
  wider.slots = 8;
  node.open(wider, children, kNobody);
}

TEST(streaming_worker_gives_up_after_its_patience) {
  Job job = job_of(2, 4, 2, 4);
  job.give_up_timeout = 1'000'000;
  StreamingWorker worker(job, 0, 9);
  std::int32_t numbers[5] = {1, 2, 3, 4, 5};
  Sent sent;
  worker.begin(numbers, numbers, 5, 0, sent);
  CHECK_EQ(sent.all.size(), 3U);
  CHECK_THROWS(std::invalid_argument, worker.begin(numbers, numbers, 5, 0, sent));
  Time now = 0;
  while (worker.deadline() != kNever) {
    CHECK(worker.deadline() > now);
    now = worker.deadline();
    worker.wake(now, sent);
  }
  CHECK_EQ(now, 1'000'000);
  CHECK(worker.failure().find("frame 0 of 3") != std::string::npos);
  CHECK_EQ(worker.counters()[Count::resent], 3U * 19);
}

TEST(streaming_is_right_in_the_first_interleavings) {
  Search search;
  search.job = job_of(2, 2, 1, 2);
  search.job.settings["headroom"] = 1;
  search.groups = {2};
  search.tensors = {2, 1};
  search.most_states = 3000;
  const Finding finding = explore(protocol("streaming"), search);
  CHECK_EQ(finding.fault, "");
}
