#include "tacos/tacos.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "testing/testing.h"

using namespace coppice;

namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

/// Channels that are added one by one.
struct Network {
  std::int32_t ranks, ports = 0;
  std::vector<std::int32_t> src, dst, port;
  std::vector<std::int64_t> duration, port_start{0}, hold;

  explicit Network(std::int32_t n) : ranks(n) {}
  void add(std::int32_t a, std::int32_t b, std::int64_t time, std::vector<std::pair<std::int32_t, std::int64_t>> held) {
    src.push_back(a);
    dst.push_back(b);
    duration.push_back(time);
    for (auto [which, how_long] : held) {
      port.push_back(which);
      hold.push_back(how_long);
      ports = std::max(ports, which + 1);
    }
    port_start.push_back(static_cast<std::int64_t>(port.size()));
  }
  void link(std::int32_t a, std::int32_t b, std::int64_t time) { add(a, b, time, {{ports, time}}); }
  ChannelNetwork view() const {
    return {.num_ranks = ranks, .num_ports = ports, .src = src, .dst = dst, .duration = duration,
            .port_start = port_start, .port = port, .hold = hold};
  }
};

Network ring(std::int32_t n) {
  Network made(n);
  for (std::int32_t v = 0; v < n; ++v) made.link(v, (v + 1) % n, 10);
  return made;
}

/// All ranks on one switch: rank v sends by port v and receives by port n + v.
Network star(std::int32_t n) {
  Network made(n);
  for (std::int32_t a = 0; a < n; ++a)
    for (std::int32_t b = 0; b < n; ++b)
      if (a != b) made.add(a, b, 10, {{a, 10}, {n + b, 10}});
  return made;
}

struct AllGather {
  std::vector<std::int32_t> source, target;
  explicit AllGather(std::int32_t ranks) : target(static_cast<std::size_t>(ranks), -1) {
    for (std::int32_t v = 0; v < ranks; ++v) source.push_back(v);
  }
  ChunkDemand view() const { return {source, target, {}}; }
};

}  // namespace

TEST(matching_of_a_one_way_ring_takes_as_many_rounds_as_there_are_other_ranks) {
  const Network network = ring(5);
  const AllGather demand(5);
  for (auto rule : {MatchingRule::kRandom, MatchingRule::kRarest, MatchingRule::kLocal}) {
    const Matching found = match_chunks(network.view(), demand.view(), rule, 1, kNoLimit);
    CHECK_EQ(found.time, 40);
    CHECK_EQ(found.chunk.size(), 20u);
  }
}

TEST(matching_lets_a_port_of_a_switch_serve_one_chunk_at_a_time) {
  const Network network = star(4);
  const AllGather demand(4);
  const Matching found = match_chunks(network.view(), demand.view(), MatchingRule::kRandom, 3, kNoLimit);
  std::vector<std::tuple<std::int32_t, std::int64_t>> taken;  // (port, start)
  for (std::size_t i = 0; i < found.start.size(); ++i) {
    const auto k = static_cast<std::size_t>(found.channel[i]);
    taken.emplace_back(network.src[k], found.start[i]);
    taken.emplace_back(4 + network.dst[k], found.start[i]);
  }
  std::sort(taken.begin(), taken.end());
  CHECK(std::adjacent_find(taken.begin(), taken.end()) == taken.end());
  CHECK(found.time >= 30);
}

TEST(matching_asks_again_for_what_a_slow_link_would_bring_late) {
  Network network(3);  // 0 -> 2 directly takes 100, by way of 1 only 20
  network.link(0, 2, 100);
  network.link(0, 1, 10);
  network.link(1, 2, 10);
  const std::vector<std::int32_t> source{0}, target{-1};
  const Matching found = match_chunks(network.view(), {source, target, {}}, MatchingRule::kRandom, 1, kNoLimit);
  CHECK_EQ(found.time, 20);
  CHECK_EQ(found.start.size(), 2u);
}

TEST(matching_gives_up_beyond_the_limit_and_where_a_chunk_cannot_come) {
  const Network network = ring(5);
  const AllGather demand(5);
  CHECK_EQ(match_chunks(network.view(), demand.view(), MatchingRule::kRandom, 1, 39).time, -1);
  CHECK_EQ(match_chunks(network.view(), demand.view(), MatchingRule::kRandom, 1, 40).time, 40);
  Network cut(2);
  cut.link(0, 1, 10);
  const AllGather both(2);
  CHECK_EQ(match_chunks(cut.view(), both.view(), MatchingRule::kLocal, 1, kNoLimit).time, -1);
}

TEST(best_matching_does_not_depend_on_the_number_of_threads) {
  const Network network = star(7);
  const AllGather demand(7);
  const std::vector<MatchingRule> rules{MatchingRule::kRandom, MatchingRule::kRarest};
  const Matching one = best_matching(network.view(), demand.view(), rules, 9, 0, 30, 1, kNoLimit);
  for (std::int32_t threads : {2, 5}) {
    const Matching more = best_matching(network.view(), demand.view(), rules, 9, 0, 30, threads, kNoLimit);
    CHECK_EQ(more.time, one.time);
    CHECK_EQ(more.attempt, one.attempt);
    CHECK(more.start == one.start && more.channel == one.channel && more.chunk == one.chunk);
  }
}

TEST(best_matching_stops_when_asked) {
  const Network network = star(7);
  const AllGather demand(7);
  const std::vector<MatchingRule> rules{MatchingRule::kRandom};
  CHECK_THROWS(Cancelled, best_matching(network.view(), demand.view(), rules, 9, 0, 30, 2, kNoLimit, [] { return true; }));
}

TEST(matching_refuses_columns_that_do_not_fit) {
  Network network = ring(3);
  const AllGather demand(3);
  network.duration[1] = 0;
  CHECK_THROWS(std::invalid_argument, check_matching(network.view(), demand.view()));
  network.duration[1] = std::int64_t{1} << 60;
  CHECK_THROWS(std::invalid_argument, check_matching(network.view(), demand.view()));
  network = ring(3);
  network.dst[0] = 3;
  CHECK_THROWS(std::invalid_argument, check_matching(network.view(), demand.view()));
}

TEST(tacos_groups_get_what_is_theirs) {
  // Two groups of two gather at once: each rank gets the one chunk of the other one of its group.
  const Network network = star(4);
  const AllGather demand(4);
  const std::vector<std::int32_t> group{0, 1, 0, 1};
  const ChunkDemand together{demand.source, demand.target, group};
  const Matching found = match_chunks(network.view(), together, MatchingRule::kRandom, 1, kNoLimit);
  CHECK_EQ(found.time, 10);
  CHECK_EQ(found.chunk.size(), 4u);
  for (std::size_t k = 0; k < found.chunk.size(); ++k)
    CHECK_EQ(network.dst[static_cast<std::size_t>(found.channel[k])], (found.chunk[k] + 2) % 4);
  const std::vector<std::int32_t> short_column{0, 1};
  const ChunkDemand wrong{demand.source, demand.target, short_column};
  CHECK_THROWS(std::invalid_argument, match_chunks(network.view(), wrong, MatchingRule::kRandom, 1, kNoLimit));
}
