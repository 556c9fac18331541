#include "alltoallv/alltoallv.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <tuple>

#include "testing/testing.h"

using namespace coppice;

namespace {

RailNetwork network(std::int32_t boxes, std::int32_t width, bool crossing, Amount near = 10, Amount far = 1) {
  RailNetwork result{boxes, width, std::vector<std::int32_t>(boxes * width), crossing, {}, {}};
  std::iota(result.order.begin(), result.order.end(), 0);
  result.near.assign(boxes * width, near), result.far.assign(boxes * width, far);
  return result;
}

std::vector<Amount> drawn(std::mt19937_64& random, std::int32_t ranks) {
  std::vector<Amount> counts(ranks * ranks);
  auto kind = random() % 4;
  for (Amount& each : counts) {
    each = static_cast<Amount>(random() % 20);
    if (kind == 1 && random() % 5) each = 0;
    if (kind == 2 && random() % 8 == 0) each *= 50;
  }
  if (kind == 3)
    for (std::int32_t r = 0; r < ranks; ++r) counts[r * ranks + ranks - 1] += 200;
  return counts;
}

/// All parts of all ranks, each of which all its ranks know alike.
std::vector<BlockPart> all_parts(const AllToAllV& plan, std::int32_t ranks) {
  std::map<std::tuple<int, int, Amount, Amount, int, int>, int> seen;
  for (std::int32_t r = 0; r < ranks; ++r)
    for (const BlockPart& each : plan.parts(r)) ++seen[{each.source, each.target, each.offset, each.length, each.out, each.into}];
  std::vector<BlockPart> result;
  for (const auto& [key, times] : seen) {
    auto [source, target, offset, length, out, into] = key;
    std::vector<int> ends{source, out, into, target};
    std::sort(ends.begin(), ends.end());
    CHECK_EQ(times, static_cast<int>(std::unique(ends.begin(), ends.end()) - ends.begin()));
    result.push_back({source, out, into, target, offset, length});
  }
  return result;
}

/// Runs the programs of all ranks, step by step, on values that tell where they come from.
void run(const AllToAllV& plan, const std::vector<Amount>& counts, std::int32_t ranks, Amount piece) {
  std::vector<RankColumns> programs;
  std::vector<std::array<std::vector<Amount>, 3>> memory(ranks);
  std::int32_t steps = 0;
  for (std::int32_t r = 0; r < ranks; ++r) {
    programs.push_back(plan.program(r, piece));
    auto& own = programs.back();
    for (Amount x = 0; x < own.input; ++x) memory[r][0].push_back(1000000 * r + x);
    memory[r][1].assign(own.output, -1), memory[r][2].assign(own.scratch, -1);
    for (auto step : own.step) steps = std::max(steps, step + 1);
    CHECK(std::is_sorted(own.step.begin(), own.step.end()));
  }
  std::map<std::tuple<int, int, int>, std::vector<Amount>> messages;
  for (std::int32_t step = 0; step < steps; ++step)
    for (int receives = 0; receives < 2; ++receives)
      for (std::int32_t r = 0; r < ranks; ++r) {
        auto& own = programs[r];
        for (std::size_t x = 0; x < own.step.size(); ++x) {
          if (own.step[x] != step || (own.kind[x] != 0) != receives) continue;
          auto begin = memory[r][own.buffer[x]].begin() + own.offset[x];
          if (own.kind[x] == 0) {
            messages[{r, own.peer[x], own.tag[x]}].assign(begin, begin + own.length[x]);
          } else if (own.kind[x] == 1) {
            auto& arrived = messages[{own.peer[x], r, own.tag[x]}];
            CHECK_EQ(static_cast<Amount>(arrived.size()), own.length[x]);
            if (static_cast<Amount>(arrived.size()) == own.length[x]) std::copy(arrived.begin(), arrived.end(), begin);
          } else {
            std::copy_n(memory[r][own.source[x]].begin() + own.source_offset[x], own.length[x], begin);
          }
        }
      }
  for (std::int32_t r = 0; r < ranks; ++r) {
    std::vector<Amount> wanted;
    for (std::int32_t p = 0; p < ranks; ++p) {
      Amount before = std::accumulate(counts.begin() + p * ranks, counts.begin() + p * ranks + r, Amount{0});
      for (Amount x = 0; x < counts[p * ranks + r]; ++x) wanted.push_back(1000000 * p + before + x);
    }
    CHECK(memory[r][1] == wanted);
  }
}

/// What NICs and links inside boxes carry.
std::vector<std::array<Amount, 4>> loads(const std::vector<BlockPart>& parts, std::int32_t ranks, std::int32_t width) {
  std::vector<std::array<Amount, 4>> result(ranks, {0, 0, 0, 0});
  for (const BlockPart& part : parts) {
    std::int32_t stops[]{part.source, part.out, part.into, part.target};
    for (int hop = 0; hop < 3; ++hop) {
      if (stops[hop] == stops[hop + 1]) continue;
      int kind = stops[hop] / width == stops[hop + 1] / width ? 0 : 2;
      result[stops[hop]][kind] += part.length, result[stops[hop + 1]][kind + 1] += part.length;
    }
  }
  return result;
}

}  // namespace

TEST(alltoallv_programs_deliver_every_block) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    auto boxes = static_cast<std::int32_t>(1 + random() % 4), width = static_cast<std::int32_t>(1 + random() % 4);
    RailNetwork given = network(boxes, width, random() % 2, 1 + random() % 12);
    if (random() % 2) std::shuffle(given.order.begin(), given.order.end(), random);
    if (random() % 3 == 0)
      for (Amount& each : given.far) each = static_cast<Amount>(1 + random() % 3);
    std::vector<Amount> counts = drawn(random, boxes * width);
    AllToAllV plan(given, counts);
    run(plan, counts, boxes * width, 1 + random() % 40);
    CHECK(plan.relays() || plan.busiest() == plan.busiest_directly());
  }
}

TEST(alltoallv_loads_are_as_told_and_nics_alike) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 100; ++round) {
    std::int32_t boxes = 2 + random() % 3, width = 2 + random() % 3, ranks = boxes * width;
    std::vector<Amount> counts = drawn(random, ranks);
    AllToAllV plan(network(boxes, width, true, 100000, 1), counts);
    auto parts = all_parts(plan, ranks);
    Amount most = 0, needed = 0;
    auto carried = loads(parts, ranks, width);
    for (auto& each : carried) most = std::max({most, each[2], each[3]});
    for (std::int32_t s = 0; s < boxes; ++s) {
      Amount sent = 0, got = 0;
      for (std::int32_t p = 0; p < ranks; ++p)
        for (std::int32_t q = 0; q < ranks; ++q) {
          if (p / width == q / width) continue;
          if (p / width == s) sent += counts[p * ranks + q];
          if (q / width == s) got += counts[p * ranks + q];
        }
      needed = std::max(needed, (std::max(sent, got) + width - 1) / width);
    }
    if (needed) CHECK_EQ(most, plan.busiest().first);
    CHECK_EQ(most, needed);
  }
}

TEST(alltoallv_never_plans_worse_than_direct_and_spares_links_inside) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 100; ++round) {
    std::int32_t width = 2 + random() % 3, ranks = 2 * width;
    std::vector<Amount> counts = drawn(random, ranks);
    AllToAllV plan(network(2, width, true, 1 + random() % 3, 1 + random() % 3), counts);
    auto [load, capacity] = plan.busiest();
    auto [direct, of] = plan.busiest_directly();
    CHECK(load * of <= direct * capacity);
    auto carried = loads(all_parts(plan, ranks), ranks, width);
    Amount near = 0, far = 0;
    for (auto& each : carried) near = std::max({near, each[0], each[1]}), far = std::max({far, each[2], each[3]});
    CHECK(near == load || far == load);
  }
}

TEST(alltoallv_saves_as_much_as_is_asked_or_goes_directly) {
  std::vector<Amount> counts(16, 0);
  counts[2] = 100;
  CHECK(AllToAllV(network(2, 2, true), counts, 50).relays());
  CHECK(!AllToAllV(network(2, 2, true), counts, 51).relays());
  CHECK(AllToAllV(network(2, 2, false), counts, 50).relays());
  CHECK(!AllToAllV(network(2, 2, false), counts, 51).relays());
  std::vector<Amount> even(16, 7);
  CHECK(!AllToAllV(network(2, 2, true), even).relays());
  CHECK(!AllToAllV(network(2, 2, false), even).relays());
}

TEST(alltoallv_refuses_what_it_cannot_count) {
  std::vector<Amount> counts(16, 0);
  counts[1] = Amount{1} << 59, counts[2] = Amount{1} << 59;
  CHECK_THROWS(std::overflow_error, AllToAllV(network(2, 2, true), counts));
  counts[2] = -1;
  CHECK_THROWS(std::invalid_argument, AllToAllV(network(2, 2, true), counts));
  counts.pop_back();
  CHECK_THROWS(std::invalid_argument, AllToAllV(network(2, 2, true), counts));
  RailNetwork twice = network(2, 2, true);
  twice.order[1] = 0;
  CHECK_THROWS(std::invalid_argument, AllToAllV(twice, std::vector<Amount>(16, 1)));
}
