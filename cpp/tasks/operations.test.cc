#include "tasks/operations.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "tasks/tasks.h"
#include "testing/testing.h"

using namespace coppice;

namespace {

/// A device that computes, then a sum over a network, in one way or in two halves; both of one group.
struct Pair {
  std::vector<std::int32_t> decision{0, 0}, group{0, 0}, ways{0, 1}, after{0}, stream{0, 1, 1, 1};
  std::vector<std::int64_t> priority{5, 7}, after_start{0, 0, 1}, way_start{0, 1, 3}, motif_start{0, 1, 2, 4},
      option_start{0, 1, 2, 3, 4};
  std::vector<double> starting{0, 0, 0, 0}, amount{3, 8, 4, 4}, rate{1, 2, 2, 2};
  std::vector<std::int32_t> pieces{1}, way{0}, options{0};
  std::vector<std::uint8_t> ranked{0};
  std::vector<std::int64_t> rank{0};
  std::int32_t width = 1;

  OperationTasks tasks() const {
    return tasks_of({.decision = decision, .group = group, .priority = priority, .ways = ways, .after_start = after_start,
                     .after = after, .way_start = way_start, .motif_start = motif_start, .option_start = option_start,
                     .stream = stream, .starting = starting, .amount = amount, .rate = rate},
                    {.pieces = pieces, .way = way, .ranked = ranked, .rank = rank, .options = options, .width = width});
  }
  double seconds() const {
    const OperationTasks made = tasks();
    const TaskTimes times = run_tasks({.stream = made.stream, .seconds = made.seconds, .priority = made.priority,
                                       .after_start = made.after_start, .after = made.after, .load_start = {},
                                       .load_link = {}, .load = {}, .num_streams = 2, .window = {}, .window_bytes = {},
                                       .returns = {}, .credit = {}});
    return *std::max_element(times.finish.begin(), times.finish.end());
  }
};

}  // namespace

TEST(operations_go_piece_by_piece) {
  Pair pair;
  CHECK_EQ(pair.seconds(), 7.0);
  pair.pieces = {4};
  CHECK_EQ(pair.seconds(), 4.75);
  const OperationTasks made = pair.tasks();
  CHECK((made.operation == std::vector<std::int32_t>{0, 0, 0, 0, 0, 1, 1, 1, 1, 1}));
  CHECK((made.option == std::vector<std::int32_t>{0, 0, 0, 0, -1, 1, 1, 1, 1, -1}));
  CHECK((made.after == std::vector<std::int32_t>{0, 1, 2, 3, 0, 1, 2, 3, 5, 6, 7, 8}));
  pair.group = {0, 1};
  CHECK_EQ(pair.seconds(), 7.0);
  CHECK((pair.tasks().after == std::vector<std::int32_t>{0, 1, 2, 3, 4, 4, 4, 4, 5, 6, 7, 8}));
}

TEST(operations_in_a_way_that_some_do_not_have) {
  Pair pair;
  pair.way = {1};
  pair.ranked = {1};
  pair.rank = {-3};
  const OperationTasks made = pair.tasks();
  CHECK((made.option == std::vector<std::int32_t>{0, 2, 3}));
  CHECK((made.after == std::vector<std::int32_t>{0, 1}));
  CHECK((made.priority == std::vector<std::int64_t>{-3, -3, -3}));
  CHECK_EQ(pair.seconds(), 7.0);
  for (std::int32_t none : {-1, 2, 1 << 30}) {
    pair.way = {none};
    CHECK((pair.tasks().option == std::vector<std::int32_t>{0, 1}));
    pair.options = {none};
    CHECK((pair.tasks().option == std::vector<std::int32_t>{0, 1}));
  }
}

TEST(operations_refuse_what_points_outside) {
  const auto refused = [](auto change) {
    Pair pair;
    change(pair);
    CHECK_THROWS(std::invalid_argument, pair.tasks());
  };
  for (std::int32_t bad : {-2, 2, 1 << 30, -(1 << 30)}) {
    refused([&](Pair& pair) { pair.decision[1] = bad; });
    refused([&](Pair& pair) { pair.ways[1] = bad; });
    refused([&](Pair& pair) { pair.after[0] = bad; });
  }
  for (std::int64_t bad : {std::int64_t{-1}, std::int64_t{9}, std::int64_t{1} << 60}) {
    for (auto Pair::*column : {&Pair::after_start, &Pair::way_start, &Pair::motif_start, &Pair::option_start}) {
      refused([&](Pair& pair) { (pair.*column)[1] = bad; });
      refused([&](Pair& pair) { (pair.*column).push_back(bad); });
      refused([&](Pair& pair) { (pair.*column).clear(); });
    }
  }
  for (auto Pair::*column : {&Pair::group, &Pair::ways, &Pair::after, &Pair::stream, &Pair::way, &Pair::options})
    refused([&](Pair& pair) { (pair.*column).push_back(0); });
  for (auto Pair::*column : {&Pair::starting, &Pair::amount, &Pair::rate})
    refused([&](Pair& pair) { (pair.*column).pop_back(); });
  for (auto Pair::*column : {&Pair::priority, &Pair::rank}) refused([&](Pair& pair) { (pair.*column).pop_back(); });
  refused([](Pair& pair) { pair.ranked.clear(); });
  refused([](Pair& pair) { pair.width = -1; });
  refused([](Pair& pair) { pair.width = 2; });
  refused([](Pair& pair) { pair.pieces = {0}; });
  refused([](Pair& pair) { pair.pieces = {std::numeric_limits<std::int32_t>::max()}; });
}

TEST(operations_of_nothing) {
  const std::vector<std::int64_t> none{0};
  const OperationTasks made = tasks_of(
      {.decision = {}, .group = {}, .priority = {}, .ways = {}, .after_start = none, .after = {}, .way_start = none,
       .motif_start = none, .option_start = none, .stream = {}, .starting = {}, .amount = {}, .rate = {}},
      {.pieces = {}, .way = {}, .ranked = {}, .rank = {}, .options = {}});
  CHECK(made.operation.empty());
  CHECK_EQ(made.after_start.size(), std::size_t{1});
}
