#include "stream_trees/netagg.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "aggregation/bytes.h"
#include "aggregation/protocols.h"
#include "packet_network/exploration.h"
#include "testing/links.h"
#include "testing/testing.h"

using namespace coppice::aggregation;
using coppice::testing::Faults;
using coppice::testing::Links;

namespace {

constexpr Endpoint kMaster = 1000, kBox = 1001;

// Workers below boxes below a master; `change` sets up one party's job further.
struct Net {
  using Change = std::function<void(Job&, Endpoint)>;
  Net(Job with, int groups, std::uint64_t seed, Faults faults, Change change = [](Job&, Endpoint) {})
      : job(std::move(with)), links(seed, faults) {
    groups = std::min(groups, job.workers);
    const auto job_of = [&](Endpoint at) {
      Job made = job;
      change(made, at);
      return made;
    };
    std::vector<std::vector<Endpoint>> below(static_cast<std::size_t>(std::max(groups, 1)));
    for (int rank = 0; rank < job.workers; ++rank) {
      const Endpoint above = groups == 0 ? kMaster : kBox + rank % groups;
      workers.push_back(std::make_unique<NetAggWorker>(job_of(rank), rank, above));
      links.add(rank, *workers.back());
      below[static_cast<std::size_t>(groups == 0 ? 0 : rank % groups)].push_back(rank);
    }
    std::vector<Endpoint> top = below[0];
    if (groups > 0) {
      top.clear();
      for (int box = 0; box < groups; ++box) {
        add(kBox + box, job_of(kBox + box), below[static_cast<std::size_t>(box)], kMaster);
        top.push_back(kBox + box);
      }
    }
    const Job masters = job_of(kMaster);
    if (masters.setting("standby", 0) != 0) {
      for (int rank = 0; rank < job.workers; ++rank) top.push_back(rank);
    }
    add(kMaster, masters, top, kNobody);
  }
  void add(Endpoint at, const Job& its, const std::vector<Endpoint>& children, Endpoint parent) {
    boxes.push_back(std::make_unique<NetAgg>(1 << 16));
    boxes.back()->open(its, children, parent);
    links.add(at, *boxes.back());
  }
  // Adds tensors up; whether all workers came to the end with the right result.
  bool all_reduce(std::size_t count, std::mt19937_64& random, bool stays = true) {
    memory.assign(workers.size(), std::vector<std::uint32_t>(count));
    expected.assign(count, 0);
    for (auto& mine : memory) {
      for (std::size_t at = 0; at < count; ++at) {
        const auto drawn = static_cast<std::uint32_t>(random());
        const float small = static_cast<float>(drawn % 1000);
        const bool whole = job.element == Element::int32;
        mine[at] = whole ? drawn : std::bit_cast<std::uint32_t>(small);
        expected[at] = whole ? expected[at] + drawn : std::bit_cast<std::uint32_t>(std::bit_cast<float>(expected[at]) + small);
      }
    }
    for (std::size_t rank = 0; rank < workers.size(); ++rank) {
      workers[rank]->begin(memory[rank].data(), memory[rank].data(), count, links.now(), links.from(static_cast<Endpoint>(rank)));
    }
    return !stays || finish();
  }
  bool finish(Time until = kNever) {
    if (!links.run([&] { return std::all_of(workers.begin(), workers.end(), [](auto& each) { return each->done(); }); }, until)) {
      return false;
    }
    return std::all_of(memory.begin(), memory.end(), [&](auto& mine) { return mine == expected; });
  }
  std::uint64_t total(Count what) const {
    std::uint64_t found = 0;
    for (const auto& each : boxes) found += each->counters()[what];
    return found;
  }
  Job job;
  Links links;
  std::vector<std::unique_ptr<NetAgg>> boxes;  // the master last
  std::vector<std::unique_ptr<NetAggWorker>> workers;
  std::vector<std::vector<std::uint32_t>> memory;
  std::vector<std::uint32_t> expected;
};

Job job_of(int workers, int window) {
  return {.id = 5, .workers = workers, .slots = 2 * std::max(window, 4) + 3, .values = 8, .window = window, .settings = {}};
}

}  // namespace

TEST(netagg_adds_up_over_links_that_lose_double_and_reorder) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    Job job = job_of(1 + static_cast<int>(random() % 7), 1 + static_cast<int>(random() % 4));
    job.settings["sequence"] = 4294967280.0;
    if (seed % 3 == 0) job.settings["straggler"] = 15'000;
    if (seed % 4 == 0) job.settings["rate"] = 1e8;
    if (seed % 2 == 1) job.element = Element::float32;
    Net net(job, static_cast<int>(random() % 4), seed,
            {.drop = 0.1 * static_cast<double>(random() % 3), .duplicate = 0.1, .spread = 20'000});
    for (std::size_t count : {std::size_t{0}, std::size_t{random() % 300}, std::size_t{1}}) CHECK(net.all_reduce(count, random));
    for (auto& each : net.boxes) CHECK_EQ(each->slots_in_use(), 0);
  }
}

TEST(netagg_loses_no_result_for_want_of_room) {
  // Nobody asks again: a result that finds its stream full, since acknowledgements were lost, has to come by itself.
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    Job job = job_of(1 + static_cast<int>(random() % 4), 1 + static_cast<int>(random() % 8));
    job.slots = 2 * job.window;
    job.give_up_timeout = kNever;
    Net net(job, static_cast<int>(random() % 3), seed,
            {.drop = 0.03 * static_cast<double>(1 + random() % 5), .spread = 20'000});
    CHECK(net.all_reduce(3'000, random));
  }
}

TEST(netagg_workers_of_a_dead_box_send_again_to_the_master) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    Job job = job_of(6, 4);
    job.timeout = 50'000;
    job.settings["heartbeat"] = 20'000;
    job.settings["straggler"] = 200'000;
    job.settings["again"] = 5'000'000;
    Net net(job, 2, seed, {.drop = 0.05, .spread = 10'000}, [](Job& made, Endpoint at) {
      if (at < 6) made.settings["next"] = kMaster;
      if (at == kMaster) made.settings["standby"] = 6, made.settings["members"] = 63;
    });
    net.all_reduce(1'000, random, false);
    CHECK(!net.links.run([] { return false; }, 5'000 + static_cast<Time>(random() % 100'000)));
    net.links.remove(kBox);
    CHECK(net.finish());
    CHECK(net.all_reduce(300, random));
    CHECK_EQ(net.boxes.back()->slots_in_use(), 0);
  }
}

TEST(netagg_passes_on_what_it_has_when_a_straggler_is_late_and_its_values_later) {
  std::mt19937_64 random(1);
  Job job = job_of(4, 2);
  job.settings["straggler"] = 1'000'000;
  Net net(job, 2, 1, {});
  net.memory.assign(4, std::vector<std::uint32_t>(16, 3));
  net.expected.assign(16, 12);
  for (int rank : {0, 1, 3}) net.workers[static_cast<std::size_t>(rank)]->begin(net.memory[static_cast<std::size_t>(rank)].data(), net.memory[static_cast<std::size_t>(rank)].data(), 16, 0, net.links.from(rank));
  CHECK(!net.links.run([] { return false; }, 5'000'000));
  CHECK_EQ(net.boxes[0]->counters()[Count::forwarded], 0u);
  CHECK_EQ(net.boxes[2]->counters()[Count::aggregated], 2u);  // what box 0 had of two requests joined that of box 1
  net.workers[2]->begin(net.memory[2].data(), net.memory[2].data(), 16, net.links.now(), net.links.from(2));
  CHECK(net.finish());
  CHECK_EQ(net.boxes[0]->counters()[Count::forwarded], 2u);
  CHECK_EQ(net.boxes[2]->counters()[Count::aggregated], 4u);
}

TEST(netagg_counts_nothing_twice_when_a_box_is_taken_for_dead) {
  // The box is alive, but one of its workers goes past it: the master has that worker alone, and then the box's partial.
  struct Drop final : Outbox {
    using Outbox::send;
    void send(std::span<const Endpoint>, Bytes) override {}
  } out;
  Job job = job_of(3, 1);
  job.settings["members"] = 7;
  job.settings["standby"] = 3;
  NetAgg master(64);
  master.open(job, std::vector<Endpoint>{kBox, 0, 1, 2}, kNobody);
  const auto message = [&](std::uint32_t sequence, std::uint32_t contributors, std::uint32_t value) {
    std::vector<std::uint8_t> packet(netagg::kHeadBytes + 4);
    netagg::write_head(packet.data(), {1, 0, 0, 0, 5, sequence, 0, contributors, 0, 1, 0});
    store(packet.data() + netagg::kHeadBytes, value);
    return packet;
  };
  master.receive(0, message(0, 1, 10), 0, out);
  master.receive(kBox, message(0, 3, 110), 0, out);  // 0 and 1
  CHECK_EQ(master.counters()[Count::collided], 1u);
  CHECK_EQ(master.slots_in_use(), 1);
  master.receive(kBox, message(1, 4, 1'000), 0, out);
  master.receive(0, message(1, 1, 10), 0, out);
  CHECK_EQ(master.counters()[Count::duplicate], 1u);
  master.receive(1, message(0, 2, 100), 0, out);
  CHECK_EQ(master.counters()[Count::completed], 1u);
  CHECK_EQ(master.slots_in_use(), 0);
}

TEST(netagg_keeps_the_largest_of_all_workers) {
  std::mt19937_64 random(2);
  for (Element element : {Element::int32, Element::float32}) {
    Job job = job_of(5, 2);
    job.element = element;
    job.settings["operation"] = 3;
    job.settings["k"] = 3;
    Net net(job, 2, 2, {.drop = 0.1, .duplicate = 0.1, .spread = 9'000});
    std::vector<std::vector<float>> floats(5, std::vector<float>(20));
    std::vector<std::vector<std::int32_t>> ints(5, std::vector<std::int32_t>(20));
    for (int rank = 0; rank < 5; ++rank) {
      for (std::size_t at = 0; at < 20; ++at) {
        ints[static_cast<std::size_t>(rank)][at] = static_cast<std::int32_t>(random() % 2'000) - 1'000;
        floats[static_cast<std::size_t>(rank)][at] = static_cast<float>(ints[static_cast<std::size_t>(rank)][at]) / 8;
      }
    }
    std::vector<float> expected(20, 0);
    for (std::size_t first : {0, 8, 16}) {
      std::vector<float> all;
      for (const auto& mine : floats) all.insert(all.end(), mine.begin() + static_cast<std::ptrdiff_t>(first), mine.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(first + 8, 20)));
      std::sort(all.begin(), all.end(), std::greater<>());
      std::copy_n(all.begin(), 3, expected.begin() + static_cast<std::ptrdiff_t>(first));
    }
    for (int rank = 0; rank < 5; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      void* mine = element == Element::int32 ? static_cast<void*>(ints[at].data()) : static_cast<void*>(floats[at].data());
      net.workers[at]->begin(mine, mine, 20, 0, net.links.from(rank));
    }
    CHECK(net.finish());
    for (std::size_t rank = 0; rank < 5; ++rank) {
      for (std::size_t at = 0; at < 20; ++at) {
        CHECK_EQ(element == Element::int32 ? static_cast<float>(ints[rank][at]) / 8 : floats[rank][at], expected[at]);
      }
    }
  }
}

TEST(netagg_spreads_requests_over_trees_by_their_hash) {
  std::mt19937_64 random(3);
  Job job = job_of(4, 8);
  job.settings["trees"] = 3;
  job.settings["above_1"] = 2'001;
  job.settings["above_2"] = 2'002;
  Net net(job, 0, 3, {.drop = 0.02, .spread = 5'000});
  net.add(2'001, job, {0, 1, 2, 3}, kNobody);
  net.add(2'002, job, {0, 1, 2, 3}, kNobody);
  CHECK(net.all_reduce(8 * 900, random));
  for (const auto& each : net.boxes) CHECK(each->counters()[Count::completed] > 250 && each->counters()[Count::completed] < 350);
}

TEST(netagg_divides_its_time_by_weights_whatever_a_task_takes) {
  // Two applications with tasks that are ever waiting; those of the second take five times as long.
  struct Drop final : Outbox {
    using Outbox::send;
    void send(std::span<const Endpoint>, Bytes) override {}
  } out;
  NetAgg box(1 << 12);
  Job job{.id = 0, .workers = 1, .slots = 1024, .values = 8, .window = 8, .settings = {{"rate", 1e9}, {"latency", 1'000}, {"weight", 3}}};
  box.open(job, std::vector<Endpoint>{0}, kNobody);
  job.id = 1;
  job.settings["latency"] = 5'000;
  job.settings["weight"] = 1;
  box.open(job, std::vector<Endpoint>{0}, kNobody);
  for (std::uint32_t request = 0; request < 1'000; ++request) {
    for (std::uint32_t application : {0u, 1u}) {
      std::vector<std::uint8_t> packet(netagg::kHeadBytes + 4);
      netagg::write_head(packet.data(), {1, 0, 0, 0, application, request, request, 1, 1, 1, 0});
      box.receive(0, packet, 0, out);
    }
  }
  Time now = 0;
  while (box.counters()[Count::completed] < 800) box.wake(now = box.deadline(), out);
  // 32 bytes at 1 GB/s are 32 ns, and each application had its share of the time: 3 / 4 of it at 1,032 ns a task.
  const double first = 0.75 * static_cast<double>(now) / 1'032, second = 0.25 * static_cast<double>(now) / 5'032;
  CHECK(std::abs(first + second - 800) < 8);
}

TEST(netagg_refuses_what_is_none_of_a_job) {
  struct Nothing final : Outbox {
    using Outbox::send;
    void send(std::span<const Endpoint>, Bytes) override { ++sent; }
    int sent = 0;
  } out;
  const Job job = job_of(2, 4);
  NetAgg box(12);
  box.open(job, std::vector<Endpoint>{0, 1}, kNobody);
  CHECK_THROWS(std::invalid_argument, box.open(job, std::vector<Endpoint>{0, 1}, kNobody));
  Job other = job;
  other.id = 6;
  CHECK_THROWS(std::invalid_argument, box.open(other, std::vector<Endpoint>{0, 1}, kNobody));
  other.slots = 1;
  NetAgg free(100);
  CHECK_THROWS(std::invalid_argument, free.open(other, std::vector<Endpoint>{0, 1}, kNobody));
  other.workers = 33;
  CHECK_THROWS(std::invalid_argument, netagg::Options{other});
  std::vector<std::uint8_t> packet(netagg::kHeadBytes + 4);
  netagg::write_head(packet.data(), {1, 0, 0, 0, 5, 0, 0, 1, 1, 1, 0});
  for (std::size_t size = 0; size < packet.size(); ++size) box.receive(0, Bytes(packet).first(size), 0, out);
  CHECK_EQ(box.counters()[Count::malformed], packet.size());
  box.receive(9, packet, 0, out);
  CHECK_EQ(box.counters()[Count::unknown_sender], 1u);
  packet[0] = 2;
  box.receive(0, packet, 0, out);
  CHECK_EQ(box.counters()[Count::unknown_sender], 2u);
  CHECK_EQ(out.sent, 0);
  CHECK_EQ(box.slots_in_use(), 0);
  NetAggWorker worker(job, 0, kMaster);
  CHECK_THROWS(std::invalid_argument, NetAggWorker(job, 2, kMaster));
  other = job;
  other.settings = {{"trees", 2}, {"above_1", kMaster}};
  CHECK_THROWS(std::invalid_argument, NetAggWorker(other, 0, kMaster));
}

TEST(netagg_is_right_in_every_state_that_a_network_may_bring_it_into) {
  Search search;
  search.job = {.id = 1, .workers = 2, .slots = 2, .values = 1, .window = 1, .settings = {}};
  search.groups = {2};
  search.tensors = {1};
  search.duplicates = 0;
  const Finding found = explore(protocol("netagg"), search);
  CHECK_EQ(found.fault, "");
  CHECK(found.whole);
  CHECK(found.states > 100);
}
