#include "stream_trees/switchagg.h"

#include <cmath>
#include <map>
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

constexpr Endpoint kRoot = 1000, kLeaf = 1001;

// Workers under one switch, or spread over leaf switches under a root.
struct Net {
  Net(Job with, int leaves, std::uint64_t seed, Faults faults) : job(std::move(with)), links(seed, faults) {
    leaves = std::min(leaves, job.workers);
    const auto add_switch = [&](Endpoint at, const std::vector<Endpoint>& children, Endpoint parent) {
      switches.push_back(std::make_unique<SwitchAgg>(1 << 20));
      switches.back()->open(job, children, parent);
      links.add(at, *switches.back());
    };
    std::vector<std::vector<Endpoint>> below(static_cast<std::size_t>(std::max(leaves, 1)));
    for (int rank = 0; rank < job.workers; ++rank) {
      const auto leaf = static_cast<std::size_t>(leaves == 0 ? 0 : rank % leaves);
      workers.push_back(std::make_unique<SwitchAggWorker>(job, rank, leaves == 0 ? kRoot : kLeaf + static_cast<Endpoint>(leaf)));
      links.add(rank, *workers.back());
      below[leaf].push_back(rank);
    }
    if (leaves == 0) {
      add_switch(kRoot, below[0], kNobody);
      return;
    }
    std::vector<Endpoint> roots_children;
    for (int leaf = 0; leaf < leaves; ++leaf) {
      add_switch(kLeaf + leaf, below[static_cast<std::size_t>(leaf)], kRoot);
      roots_children.push_back(kLeaf + leaf);
    }
    add_switch(kRoot, roots_children, kNobody);
  }
  bool run() {
    return links.run([&] {
      for (const auto& worker : workers) {
        if (!worker->done()) return false;
      }
      return true;
    });
  }
  std::uint64_t total(Count what) const {
    std::uint64_t found = 0;
    for (const auto& each : switches) found += each->counters()[what];
    return found;
  }
  Job job;
  Links links;
  std::vector<std::unique_ptr<SwitchAgg>> switches;
  std::vector<std::unique_ptr<SwitchAggWorker>> workers;
};

using Table = std::map<std::string, std::uint32_t>;
Table table(const SwitchAggWorker& worker) {
  Table found;
  for (const auto& [key, values] : worker.combined()) found[key] = values[0];
  return found;
}

Job streams(int workers, int slots, int back) {
  return {.id = 7, .workers = workers, .slots = slots, .values = 8, .window = 4,
          .settings = {{"lanes", 1}, {"key_bytes", 64}, {"back", static_cast<double>(back)}}};
}

}  // namespace

TEST(switchagg_combines_pairs_of_keys_of_every_length_under_every_eviction) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    Job job = streams(1 + static_cast<int>(random() % 6), 1 + static_cast<int>(random() % 6), static_cast<int>(random() % 9));
    const int operation = static_cast<int>(random() % 3);
    job.settings["operation"] = operation;
    Net net(job, static_cast<int>(random() % 3), seed,
            {.drop = 0.1 * static_cast<double>(random() % 3), .duplicate = 0.1, .spread = 20'000});
    Table expected;
    for (auto& worker : net.workers) {
      SwitchAggWorker::Pairs pairs;
      for (std::uint64_t count = random() % 80; count > 0; --count) {
        const auto length = 1 + random() % 64;
        const std::string key(length, static_cast<char>('a' + random() % 2));
        const auto value = static_cast<std::uint32_t>(random());
        pairs.push_back({key, {value}});
        const auto [found, first] = expected.try_emplace(key, value);
        if (!first) combine_kept(static_cast<Operation>(operation), Element::int32, &found->second, &value, 1);
      }
      worker->begin_pairs(std::move(pairs), 0, net.links.from(static_cast<Endpoint>(&worker - net.workers.data())));
    }
    CHECK(net.run());
    for (auto& worker : net.workers) CHECK(table(*worker) == expected);
    for (auto& each : net.switches) CHECK_EQ(each->slots_in_use(), 0);
  }
}

TEST(switchagg_adds_tensors_up_round_by_round_and_wraps) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    Job job{.id = 3, .workers = 1 + static_cast<int>(random() % 5), .slots = 4, .values = 16,
            .window = 1 + static_cast<int>(random() % 8),
            .settings = {{"lanes", 4}, {"back", static_cast<double>(random() % 12)}, {"round", 1.0 + static_cast<double>(random() % 30)},
                         {"sequence", 4294967290.0}}};
    if (seed % 2 == 1) job.element = Element::float32;
    Net net(job, static_cast<int>(random() % 3), seed, {.drop = 0.05, .duplicate = 0.05, .spread = 5'000});
    for (int tensor = 0; tensor < 3; ++tensor) {
      const std::size_t count = random() % 200;
      std::vector<std::vector<std::uint32_t>> memory;
      std::vector<std::uint32_t> expected(count, 0);
      for (int rank = 0; rank < job.workers; ++rank) {
        memory.emplace_back();
        for (std::size_t at = 0; at < count; ++at) {
          // Small whole numbers are exact in float32 too.
          const auto value = static_cast<std::uint32_t>(random());
          const float small = static_cast<float>(value % 1000);
          memory.back().push_back(job.element == Element::int32 ? value : std::bit_cast<std::uint32_t>(small));
          expected[at] = job.element == Element::int32
                             ? expected[at] + value
                             : std::bit_cast<std::uint32_t>(std::bit_cast<float>(expected[at]) + small);
        }
      }
      for (int rank = 0; rank < job.workers; ++rank) {
        auto& mine = memory[static_cast<std::size_t>(rank)];
        net.workers[static_cast<std::size_t>(rank)]->begin(mine.data(), mine.data(), count, net.links.now(), net.links.from(rank));
      }
      CHECK(net.run());
      for (const auto& mine : memory) CHECK(mine == expected);
    }
    for (auto& each : net.switches) CHECK_EQ(each->slots_in_use(), 0);
  }
}

TEST(switchagg_sends_each_key_once_where_the_large_memory_holds_them_all) {
  Job job = streams(1, 4, 256);
  Net net(job, 1, 1, {});
  std::mt19937_64 random(1);
  SwitchAggWorker::Pairs pairs;
  for (int at = 0; at < 5'000; ++at) pairs.push_back({std::string(1, static_cast<char>(random() % 250)), {1}});
  net.workers[0]->begin_pairs(pairs, 0, net.links.from(0));
  CHECK(net.run());
  // What the root and the leaf combined: all pairs but one for each key, and nothing was passed on.
  CHECK_EQ(net.switches[0]->counters()[Count::aggregated], 5'000u - 250u);
  CHECK_EQ(net.total(Count::forwarded), 0u);
  CHECK_EQ(net.switches[1]->counters()[Count::aggregated], 0u);
}

TEST(switchagg_waits_for_a_straggler_and_a_worker_names_it) {
  Job job = streams(3, 4, 16);
  job.give_up_timeout = 1'000'000'000;
  Net net(job, 0, 1, {});
  net.workers[0]->begin_pairs({{"a", {1}}}, 0, net.links.from(0));
  net.workers[2]->begin_pairs({{"a", {1}}}, 0, net.links.from(2));
  CHECK(!net.run());
  CHECK_EQ(net.workers[0]->failure(),
           "worker 0 heard nothing new for 1000 ms: all of its packets are there, but child 1 of its switch is not at the "
           "end of the round");
  CHECK(net.workers[1]->failure().empty());
}

TEST(switchagg_refuses_what_is_none_of_a_job) {
  struct Nothing final : Outbox {
    using Outbox::send;
    void send(std::span<const Endpoint>, Bytes) override { ++sent; }
    int sent = 0;
  } out;
  const Job job = streams(2, 4, 4);
  SwitchAgg box(20);
  box.open(job, std::vector<Endpoint>{0, 1}, kNobody);
  CHECK_THROWS(std::invalid_argument, box.open(job, std::vector<Endpoint>{0, 1}, kNobody));
  Job other = job;
  other.id = 8;
  CHECK_THROWS(std::invalid_argument, box.open(other, std::vector<Endpoint>{0, 1}, kNobody));  // 5 engines of 4 slots: full
  std::vector<std::uint8_t> packet(switchagg::kHeadBytes);
  switchagg::write_head(packet.data(), {switchagg::kUp, 0, 1, 0, 7, 0, 0, 0, 1});
  packet.insert(packet.end(), {1, 'k', 0, 0, 0, 5});
  for (std::size_t size = 0; size < packet.size(); ++size) box.receive(0, Bytes(packet).first(size), 0, out);
  std::vector<std::uint8_t> longer = packet;
  longer.push_back(0);
  box.receive(0, longer, 0, out);
  CHECK_EQ(box.counters()[Count::malformed], packet.size() + 1);
  box.receive(5, packet, 0, out);
  CHECK_EQ(box.counters()[Count::unknown_sender], 1u);
  std::vector<std::uint8_t> of_another = packet;
  store(of_another.data() + 4, std::uint32_t{9});
  box.receive(0, of_another, 0, out);
  CHECK_EQ(box.counters()[Count::out_of_range], 1u);
  CHECK_EQ(out.sent, 0);
  CHECK_EQ(box.slots_in_use(), 0);
  box.receive(0, packet, 0, out);
  box.receive(0, packet, 0, out);
  CHECK_EQ(box.counters()[Count::duplicate], 1u);
  CHECK_EQ(box.slots_in_use(), 1);
  CHECK_EQ(out.sent, 2);
  box.close(7);
  CHECK_EQ(box.slots_in_use(), 0);
  CHECK_THROWS(std::invalid_argument, switchagg::Options(Job{.values = 20'000, .settings = {}}));
  CHECK_THROWS(std::invalid_argument, switchagg::Options(Job{.settings = {{"lanes", 0.5}}}));
}

TEST(switchagg_is_a_protocol) {
  CHECK_EQ(protocol("switchagg").name, "switchagg");
  const auto made = protocol("switchagg").make_switch(16);
  made->open({.id = 1, .workers = 2, .slots = 16, .settings = {}}, std::vector<Endpoint>{0, 1}, kNobody);
}

TEST(switchagg_minimum_and_maximum_do_not_depend_on_order) {
  const std::uint32_t samples[] = {0, 0x80000000u, 0x3f800000u, 0xbf800000u, 0x7f800000u, 0xff800000u, 0x7fc00001u, 0xffc00000u};
  for (Operation operation : {Operation::minimum, Operation::maximum}) {
    for (std::uint32_t a : samples) {
      for (std::uint32_t b : samples) {
        std::uint32_t one = a, two = b;
        combine_kept(operation, Element::float32, &one, &b, 1);
        combine_kept(operation, Element::float32, &two, &a, 1);
        if (a != b) CHECK_EQ(one, two);
      }
    }
  }
}

TEST(switchagg_is_right_in_every_state_that_a_network_may_bring_it_into) {
  Search search;
  search.job = {.id = 1, .workers = 2, .slots = 2, .values = 1, .window = 1, .settings = {}};
  search.groups = {2};
  search.tensors = {1};
  search.duplicates = 0;
  const Finding found = explore(protocol("switchagg"), search);
  CHECK_EQ(found.fault, "");
  CHECK(found.whole);
  CHECK(found.states > 100);
}
