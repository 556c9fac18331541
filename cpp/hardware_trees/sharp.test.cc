#include "hardware_trees/sharp.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "packet_network/exploration.h"
#include "shared_memory/float16.h"
#include "testing/frames.h"
#include "testing/testing.h"

using namespace coppice::aggregation;
using namespace coppice::testing;

namespace {

std::unique_ptr<Aggregator> a_switch(int slots) { return std::make_unique<SharpSwitch>(slots); }
std::unique_ptr<Worker> a_worker(const Job& job, int index, Endpoint above) {
  return std::make_unique<SharpWorker>(job, index, above);
}

Job job_of(int workers, int values, int window, Element element = Element::int32) {
  return coppice::testing::job_of(workers, window, values, window, element);
}

template <class T>
void whole_jobs(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Job job = drawn_job<T>(random);
  job.slots = job.window;
  job.settings["low_latency"] = static_cast<double>(random() % 200);
  check_sums<T>(seed, random, job, 15000, a_switch, a_worker);
}

Word bits(float value) { return std::bit_cast<Word>(value); }

}  // namespace

TEST(sharp_sums_are_exact_whatever_is_lost_doubled_or_late) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    whole_jobs<std::int32_t>(seed);
    whole_jobs<float>(seed + 1000);
  }
}

TEST(sharp_adds_in_the_order_of_children_whatever_the_order_of_arrival) {
  const float values[4] = {1e8F, 3.0F, -1e8F, 0.25F};
  const float expected = ((values[0] + values[1]) + values[2]) + values[3];
  std::vector<Endpoint> order{0, 1, 2, 3};
  int orders = 0;
  do {
    SharpSwitch node(2);
    const std::vector<Endpoint> children{0, 1, 2, 3};
    node.open(job_of(4, 1, 1, Element::float32), children, kNobody);
    Sent sent;
    for (Endpoint each : order) node.receive(each, frame(1, 0, {bits(values[each])}), 0, sent);
    CHECK_EQ(sent.all.size(), 4U);
    CHECK(sent.all[3].second == frame(2, 0, {bits(expected)}));
    ++orders;
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK_EQ(orders, 24);
}

TEST(sharp_minimum_and_maximum) {
  for (Element element : {Element::int32, Element::float32}) {
    for (int operation : {1, 2}) {
      Job job = job_of(3, 2, 1, element);
      job.settings["operation"] = operation;
      SharpSwitch node(2);
      const std::vector<Endpoint> children{0, 1, 2};
      node.open(job, children, kNobody);
      const auto word = [&](int value) {
        return element == Element::int32 ? static_cast<Word>(value) : bits(static_cast<float>(value));
      };
      Sent sent;
      node.receive(0, frame(1, 0, {word(-5), word(7)}), 0, sent);
      node.receive(1, frame(1, 0, {word(3), word(-9)}), 0, sent);
      node.receive(2, frame(1, 0, {word(-1), word(8)}), 0, sent);
      const std::vector<Word> expected =
          operation == 1 ? std::vector<Word>{word(-5), word(-9)} : std::vector<Word>{word(3), word(8)};
      CHECK(sent.all.at(0).second == frame(2, 0, expected));
    }
  }
}

TEST(sharp_adds_halves_in_float32_and_rounds_once) {
  // 2048 + 1 is no float16, 2048 + 1 + 1 is: one rounding at the end.
  Job job = job_of(3, 3, 1, Element::float32);
  job.settings["half"] = 1;
  SharpSwitch node(2);
  const std::vector<Endpoint> children{0, 1, 2};
  node.open(job, children, kNobody);
  const auto half = [](float value) { return Word{coppice::shm::narrow_float16(value).bits}; };
  Sent sent;
  node.receive(0, frame(1, 0, {half(2048) << 16 | half(-1), half(0.5F) << 16}), 0, sent);
  node.receive(1, frame(1, 0, {half(1) << 16 | half(2), half(0.25F) << 16}), 0, sent);
  node.receive(2, frame(1, 0, {half(1) << 16 | half(3), half(0.125F) << 16}), 0, sent);
  CHECK(sent.all.at(0).second == frame(2, 0, {half(2050) << 16 | half(4), half(0.875F) << 16}));
}

TEST(sharp_halves_reach_the_workers) {
  for (int kind : {1, 2}) {
    Job job = job_of(5, 7, 3, Element::float32);
    job.settings["half"] = kind;
    LossyNetwork network(3, {.loss = 0.1, .duplicates = 0.1, .most_late = 3000});
    SwitchedJob made(network, job, a_switch, a_worker, 2);
    std::vector<std::vector<float>> numbers(5, std::vector<float>(40));
    for (std::size_t i = 0; i < 40; ++i) {
      for (std::size_t w = 0; w < 5; ++w) numbers[w][i] = static_cast<float>((i * 7 + w * 3) % 11) - 5;
    }
    const auto inputs = numbers;
    for (std::size_t w = 0; w < 5; ++w) {
      network.act(made.endpoints[w],
                  [&](Time now, Outbox& out) { made.workers[w]->begin(numbers[w].data(), numbers[w].data(), 40, now, out); });
    }
    CHECK(network.run([&] { return all_done(made.workers); }));
    for (std::size_t i = 0; i < 40; ++i) {
      float sum = 0;
      for (std::size_t w = 0; w < 5; ++w) sum += inputs[w][i];
      for (std::size_t w = 0; w < 5; ++w) CHECK_EQ(numbers[w][i], sum);
    }
  }
}

TEST(sharp_refuses_groups_beyond_its_slots) {
  SharpSwitch node(10);
  const std::vector<Endpoint> children{0, 1};
  Job job = job_of(2, 4, 4);
  node.open(job, children, kNobody);
  CHECK_EQ(node.free_slots(), 6);
  job.id = 8;
  node.open(job, children, kNobody);
  job.id = 9;
  CHECK_THROWS(std::invalid_argument, node.open(job, children, kNobody));
  CHECK_EQ(node.free_slots(), 2);
  node.close(7);
  node.open(job, children, kNobody);
  Job wrong = job_of(2, 4, 4);
  wrong.slots = 3;
  CHECK_THROWS(std::invalid_argument, SharpSwitch(100).open(wrong, children, kNobody));
  wrong = job_of(2, 4, 4);
  wrong.settings["half"] = 1;  // of int32
  CHECK_THROWS(std::invalid_argument, SharpSwitch(100).open(wrong, children, kNobody));
}

TEST(one_group_streams_in_a_tree_at_a_time_and_small_messages_pass) {
  for (int streams : {1, 2}) {
    SharpSwitch node(8);
    const std::vector<Endpoint> children[3] = {{0, 1}, {2, 3}, {4, 5}};
    std::vector<std::unique_ptr<SharpWorker>> workers;
    std::int32_t numbers[6][8] = {};
    Sent sent;
    for (std::uint32_t group = 0; group < 3; ++group) {
      Job job = job_of(2, 4, 2);
      job.id = group;
      job.settings = {{"low_latency", 16}, {"streams", static_cast<double>(streams)}};
      node.open(job, children[group], kNobody);
      for (int w = 0; w < 2; ++w) workers.push_back(std::make_unique<SharpWorker>(job, w, 9));
    }
    // Everything that is sent arrives at once, but what is held back.
    const auto settle = [&](const std::vector<std::size_t>& held) {
      bool moved = true;
      std::vector<std::pair<Endpoint, std::vector<std::uint8_t>>> kept;
      while (moved) {
        moved = false;
        auto now = std::move(sent.all);
        sent.all.clear();
        for (auto& [to, packet] : now) {
          if (to < 6 && std::find(held.begin(), held.end(), static_cast<std::size_t>(to)) != held.end()) {
            kept.push_back({to, packet});
            continue;
          }
          moved = true;
          if (to == 9) continue;
          Sent up;
          workers[static_cast<std::size_t>(to)]->receive(9, packet, 0, up);
          for (auto& each : up.all) node.receive(to, each.second, 0, sent);
        }
      }
      for (auto& each : kept) sent.all.push_back(each);
    };
    for (std::size_t w = 0; w < 4; ++w) {
      Sent up;
      workers[w]->begin(numbers[w], numbers[w], 8, 0, up);
      CHECK_EQ(up.all.size(), 1U);  // the request alone
      for (auto& each : up.all) node.receive(static_cast<Endpoint>(w), each.second, 0, sent);
    }
    CHECK(node.streams(0));
    CHECK_EQ(node.streams(1), streams == 2);
    // The third group's message is small and needs no tree.
    for (std::size_t w = 4; w < 6; ++w) {
      Sent up;
      workers[w]->begin(numbers[w], numbers[w], 4, 0, up);
      for (auto& each : up.all) node.receive(static_cast<Endpoint>(w), each.second, 0, sent);
    }
    settle({0, 1});
    CHECK(workers[4]->done() && workers[5]->done());
    CHECK_EQ(workers[2]->done(), streams == 2);
    settle({});
    for (const auto& each : workers) CHECK(each->done());
    CHECK(!node.streams(0) && !node.streams(1));
    CHECK_EQ(node.slots_in_use(), 0);
  }
}

TEST(a_closed_group_leaves_its_tree_to_those_who_ask_again) {
  SharpSwitch node(8);
  const std::vector<Endpoint> a{0}, b{1};
  Job job = job_of(1, 4, 2);
  node.open(job, a, kNobody);
  job.id = 8;
  node.open(job, b, kNobody);
  Sent sent;
  node.receive(0, frame(3, 0, {}, 5), 0, sent);
  CHECK_EQ(sent.all.size(), 1U);
  node.receive(1, frame(3, 0, {}, 5, 8), 0, sent);
  CHECK_EQ(sent.all.size(), 1U);
  node.receive(1, frame(1, 1, {1, 2, 3, 4}, 1, 8), 0, sent);  // streams without the tree
  CHECK_EQ(node.counters()[Count::over_quota], 1U);
  node.close(7);
  node.receive(1, frame(3, 0, {}, 5, 8), 0, sent);
  CHECK(sent.all.at(1) == std::pair(Endpoint{1}, frame(4, 0, {}, 5, 8)));
}

TEST(sharp_refuses_to_stream_where_the_tree_does_not) {
  Job job = job_of(2, 4, 2);
  job.settings["streams"] = 0;
  SharpWorker worker(job, 0, 9);
  std::vector<std::int32_t> numbers(2000);
  Sent sent;
  CHECK_THROWS(std::invalid_argument, worker.begin(numbers.data(), numbers.data(), 1025, 0, sent));
  CHECK(worker.done() && sent.all.empty());
  worker.begin(numbers.data(), numbers.data(), 1024, 0, sent);
  CHECK(!worker.done());
}

TEST(sharp_drops_what_is_not_its_own) {
  SharpSwitch node(8);
  const std::vector<Endpoint> children{0, 1};
  node.open(job_of(2, 2, 2), children, kNobody);
  std::vector<std::uint8_t> before, later;
  before = state_of(node, 0);
  Sent sent;
  const std::vector<std::uint8_t> good = frame(1, 0, {1, 2});
  for (std::size_t length = 0; length < good.size(); ++length) node.receive(0, Bytes(good.data(), length), 0, sent);
  node.receive(0, frame(2, 0, {1, 2}), 0, sent);
  node.receive(0, frame(1, 0, {1, 2, 3}), 0, sent);
  node.receive(0, frame(1, 0, {1, 2}, 2), 0, sent);
  node.receive(0, frame(3, 0, {}, 0), 0, sent);
  CHECK_EQ(node.counters()[Count::malformed], good.size() + 4);
  node.receive(5, good, 0, sent);
  node.receive(0, frame(1, 0, {1, 2}, 0, 8), 0, sent);
  CHECK_EQ(node.counters()[Count::unknown_sender], 2U);
  node.receive(0, frame(1, 4, {1, 2}), 0, sent);             // a round on, before this one was used
  node.receive(0, frame(1, 0xfffffffc, {1, 2}), 0, sent);    // a round before
  CHECK_EQ(node.counters()[Count::future], 1U);
  CHECK_EQ(node.counters()[Count::stale], 1U);
  later = state_of(node, 0);
  CHECK(before == later);
  CHECK(sent.all.empty());
}

TEST(sharp_is_right_in_the_first_interleavings) {
  Search search;
  search.job = job_of(2, 1, 2);
  search.job.settings["low_latency"] = 4;  // the second tensor is streamed
  search.groups = {2};
  search.tensors = {1, 2};
  search.most_states = 3000;
  const Finding finding = explore(protocol("sharp"), search);
  CHECK_EQ(finding.fault, "");
}
