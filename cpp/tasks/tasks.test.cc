#include "tasks/tasks.h"

#include <iterator>
#include <limits>
#include <random>
#include <stdexcept>
#include <type_traits>

#include "testing/testing.h"

using namespace coppice;

namespace {

struct Load {
  std::int32_t link;
  double share;
};

/// A graph that is written down task by task.
struct Graph {
  std::vector<std::int32_t> stream, after, load_link;
  std::vector<double> seconds, load;
  std::vector<std::int64_t> priority, after_start{0}, load_start{0};
  std::int32_t streams = 0, links = 0;
  std::vector<std::int32_t> window, returns;  // none, or one for each task
  std::vector<double> window_bytes, credit;

  std::int32_t add(std::int32_t on, double takes, std::vector<std::int32_t> before = {}, std::int64_t rank = 0,
                   std::vector<Load> loads = {}) {
    stream.push_back(on);
    seconds.push_back(takes);
    priority.push_back(rank);
    after.insert(after.end(), before.begin(), before.end());
    after_start.push_back(static_cast<std::int64_t>(after.size()));
    for (Load each : loads) {
      load_link.push_back(each.link);
      load.push_back(each.share);
      links = std::max(links, each.link + 1);
    }
    load_start.push_back(static_cast<std::int64_t>(load.size()));
    streams = std::max(streams, on + 1);
    return static_cast<std::int32_t>(stream.size()) - 1;
  }
  Tasks tasks() const {
    return {.stream = stream, .seconds = seconds, .priority = priority, .after_start = after_start, .after = after,
            .load_start = load_start, .load_link = load_link, .load = load, .num_streams = streams, .num_links = links,
            .window = window, .window_bytes = window_bytes, .returns = returns, .credit = credit};
  }
  TaskTimes run() const { return run_tasks(tasks()); }
};

}  // namespace

TEST(tasks_a_free_stream_takes_the_least_priority_then_the_least_id) {
  Graph graph;
  graph.add(0, 1);
  graph.add(0, 1, {}, 5);
  graph.add(0, 1, {}, 3);
  graph.add(0, 1, {}, 3);
  const TaskTimes times = graph.run();
  CHECK((times.start == std::vector<double>{0, 3, 1, 2}));
  CHECK((times.cause == std::vector<std::int32_t>{-1, 3, 0, 2}));
}

TEST(tasks_what_ends_now_has_ended_before_a_stream_chooses) {
  Graph graph;
  const auto a = graph.add(0, 2);
  const auto b = graph.add(1, 2);
  const auto barrier = graph.add(-1, 0, {b});
  graph.add(0, 1, {a}, 9);
  const auto urgent = graph.add(0, 1, {barrier}, 0);
  const TaskTimes times = graph.run();
  CHECK_EQ(times.start[urgent], 2.0);
  CHECK_EQ(times.start[3], 3.0);
  CHECK_EQ(times.cause[urgent], barrier);
}

TEST(tasks_tenths_add_up) {
  Graph graph;
  std::int32_t last = -1;
  for (int k = 0; k < 10; ++k) last = graph.add(0, 0.1, last < 0 ? std::vector<std::int32_t>{} : std::vector{last});
  const auto whole = graph.add(1, 1.0);
  const TaskTimes times = graph.run();
  CHECK(std::abs(times.finish[last] - times.finish[whole]) < 1e-9);
}

TEST(tasks_share_a_link) {
  Graph graph;
  // Two halves fit at full speed; a third one makes all three run at 2/3.
  graph.add(-1, 2, {}, 0, {{0, 0.5}});
  graph.add(-1, 2, {}, 0, {{0, 0.5}});
  const auto late = graph.add(-1, 1);
  graph.add(-1, 2, {late}, 0, {{0, 0.5}});
  const TaskTimes times = graph.run();
  CHECK(std::abs(times.finish[0] - 2.5) < 1e-9);
  CHECK(std::abs(times.finish[1] - 2.5) < 1e-9);
  CHECK(std::abs(times.finish[3] - 3.5) < 1e-9);
}

TEST(tasks_on_two_links_leave_the_rest_to_others) {
  Graph graph;
  graph.add(-1, 1, {}, 0, {{0, 1.0}, {1, 1.0}});
  graph.add(-1, 1, {}, 0, {{0, 1.0}});
  graph.add(-1, 1, {}, 0, {{1, 0.25}});
  const TaskTimes times = graph.run();
  CHECK(std::abs(times.finish[0] - 2) < 1e-9);
  CHECK(std::abs(times.finish[1] - 2) < 1e-9);
  CHECK_EQ(times.finish[2], 1.0);
}

TEST(tasks_in_a_circle_never_start) {
  Graph graph;
  graph.add(0, 1, {1});
  graph.add(0, 1, {0});
  graph.add(0, 1);
  const TaskTimes times = graph.run();
  CHECK_EQ(times.finished, 1);
  CHECK(times.start[0] < 0 && times.start[1] < 0);
  CHECK(path_lengths(graph.tasks()).head.empty());
}

// Four messages of a byte, the last one most urgent but ready late; acknowledged 3 s after their ends.
Graph window_of(double credit) {
  Graph graph;
  const auto late = graph.add(1, 1.5);
  for (int k = 0; k < 4; ++k) graph.add(0, 1, k == 3 ? std::vector{late} : std::vector<std::int32_t>{}, k == 3 ? 0 : 5);
  for (std::int32_t k = 1; k <= 4; ++k) graph.add(-1, 3, {k});
  graph.window = {-1, 0, 0, 0, 0, -1, -1, -1, -1};
  graph.window_bytes = {0, 1, 1, 1, 1, 0, 0, 0, 0};
  graph.returns = {-1, -1, -1, -1, -1, 1, 2, 3, 4};
  graph.credit = {credit};
  return graph;
}

TEST(tasks_of_a_window_wait_for_credit) {
  // One byte in flight: a message every 4 s, the urgent one second.
  const TaskTimes one = window_of(1).run();
  CHECK((std::vector<double>(one.start.begin() + 1, one.start.begin() + 5) == std::vector<double>{0, 8, 12, 4}));
  CHECK_EQ(one.cause[4], 5);
  // Two bytes in flight: the second one is admitted before the urgent one is there.
  const TaskTimes two = window_of(2).run();
  CHECK((std::vector<double>(two.start.begin() + 1, two.start.begin() + 5) == std::vector<double>{0, 1, 5, 4}));
  // Half a byte of credit is enough to admit one more.
  CHECK((window_of(1.5).run().start == two.start));
  // All at once: first come, first served, whatever is urgent.
  const TaskTimes all = window_of(100).run();
  CHECK((std::vector<double>(all.start.begin() + 1, all.start.begin() + 5) == std::vector<double>{0, 1, 2, 3}));
  CHECK_EQ(all.finished, 9);
}

TEST(tasks_whose_credit_never_comes_back_do_not_start) {
  Graph graph = window_of(1);
  graph.returns[5] = -1;
  CHECK(graph.run().finished < 9);
}

TEST(tasks_windows_are_checked) {
  Graph graph = window_of(1);
  graph.returns[6] = 1;  // twice
  CHECK_THROWS(std::invalid_argument, graph.run());
  graph = window_of(1);
  graph.credit[0] = 0;
  CHECK_THROWS(std::invalid_argument, graph.run());
  graph.credit[0] = std::numeric_limits<double>::infinity();
  CHECK_THROWS(std::invalid_argument, graph.run());
  graph = window_of(1);
  graph.window[2] = 1;
  CHECK_THROWS(std::invalid_argument, graph.run());
  graph = window_of(1);
  graph.stream[2] = -1;
  CHECK_THROWS(std::invalid_argument, graph.run());
  graph = window_of(1);
  graph.window_bytes.pop_back();
  CHECK_THROWS(std::invalid_argument, graph.run());
}

TEST(tasks_columns_are_checked) {
  Graph graph;
  graph.add(0, 1);
  graph.seconds[0] = -1;
  CHECK_THROWS(std::invalid_argument, graph.run());
  graph.seconds[0] = 1;
  graph.stream[0] = 4;
  CHECK_THROWS(std::invalid_argument, graph.run());
}

TEST(tasks_of_nothing) {
  Graph graph;
  CHECK_EQ(graph.run().finished, 0);
  CHECK(path_lengths(graph.tasks()).head.empty());
  graph.streams = -1;
  CHECK_THROWS(std::invalid_argument, graph.run());
  graph.streams = 0;
  graph.links = -1;
  CHECK_THROWS(std::invalid_argument, graph.run());
  graph.links = 0;
  graph.after_start.clear();
  CHECK_THROWS(std::invalid_argument, graph.run());
}

/// Tasks of all kinds: on streams and without, on links of any share, of windows, long, short and of no time.
Graph mixed(std::mt19937& random) {
  const double times[] = {0, 1e-300, 1e-11, 1e-3, 1, 3, 1e6};
  const double shares[] = {1e-300, 1e-13, 0.25, 1.0 / 3, 1, 1.1, 1e6, 1e300};
  Graph graph;
  const std::size_t n = random() % 40;
  for (std::size_t t = 0; t < n; ++t) {
    std::vector<std::int32_t> before;
    for (std::size_t other = 0; other < t; ++other)
      if (random() % 8 == 0) before.push_back(static_cast<std::int32_t>(other));
    if (!before.empty() && random() % 4 == 0) before.push_back(before[0]);  // twice
    std::vector<Load> loads;
    for (std::uint32_t k = random() % 4; k-- > 0;)
      loads.push_back({static_cast<std::int32_t>(random() % 3), shares[random() % std::size(shares)]});  // links may repeat
    graph.add(static_cast<std::int32_t>(random() % 5) - 1, times[random() % std::size(times)], before,
              static_cast<std::int64_t>(random() % 3), loads);
  }
  if (random() % 2) return graph;
  graph.credit = {1, 1e-9, 1e9};
  for (std::size_t t = 0; t < n; ++t) {
    const bool held = graph.stream[t] >= 0 && random() % 2;
    graph.window.push_back(held ? static_cast<std::int32_t>(random() % 3) : -1);
    graph.window_bytes.push_back(held ? 0.5 * static_cast<double>(random() % 5) : 0);
    graph.returns.push_back(held ? static_cast<std::int32_t>(t) : -1);
  }
  return graph;
}

TEST(tasks_of_all_kinds_end) {
  std::mt19937 random(12);
  for (int round = 0; round < 3000; ++round) {
    const Graph graph = mixed(random);
    const TaskTimes times = graph.run();
    CHECK_EQ(times.finished, static_cast<std::int64_t>(graph.stream.size()));
    for (std::size_t t = 0; t < graph.stream.size(); ++t) CHECK(times.start[t] >= 0 && times.finish[t] >= times.start[t]);
  }
}

TEST(tasks_with_a_wrong_entry_run_or_are_refused) {
  std::mt19937 random(13);
  const std::int32_t wrong[] = {-2, -1, 0, 1, 39, 40, 1 << 20, std::numeric_limits<std::int32_t>::min(),
                                std::numeric_limits<std::int32_t>::max()};
  int refused = 0;
  for (int round = 0; round < 6000; ++round) {
    Graph graph = mixed(random);
    const auto spoil = [&](auto& column) {
      const auto value = wrong[random() % std::size(wrong)];
      const std::uint32_t how = random() % 8;
      if (how == 0) column.push_back(static_cast<typename std::decay_t<decltype(column)>::value_type>(value));
      if (column.empty()) return;
      if (how == 1) column.pop_back();
      if (how == 2) column.clear();
      if (how > 2) column[random() % column.size()] = static_cast<typename std::decay_t<decltype(column)>::value_type>(value);
    };
    switch (random() % 11) {
      case 0: spoil(graph.stream); break;
      case 1: spoil(graph.seconds); break;
      case 2: spoil(graph.priority); break;
      case 3: spoil(graph.after_start); break;
      case 4: spoil(graph.after); break;
      case 5: spoil(graph.load_start); break;
      case 6: spoil(graph.load_link); break;
      case 7: spoil(graph.load); break;
      case 8: spoil(graph.window); break;
      case 9: spoil(graph.window_bytes); break;
      default: spoil(graph.returns); break;
    }
    try {
      graph.run();
      path_lengths(graph.tasks());
    } catch (const std::invalid_argument&) {
      ++refused;
    }
  }
  CHECK(refused > 1000);
}

// No stream idles while it has something to do, none runs two at once, nothing starts early, no link is overloaded.
TEST(tasks_of_random_graphs_keep_the_rules) {
  std::mt19937 random(11);
  for (int round = 0; round < 400; ++round) {
    Graph graph;
    const int n = 1 + static_cast<int>(random() % 30);
    for (int t = 0; t < n; ++t) {
      std::vector<std::int32_t> before;
      for (int other = 0; other < t; ++other)
        if (random() % 6 == 0) before.push_back(other);
      std::vector<Load> loads;
      const std::int32_t stream = static_cast<std::int32_t>(random() % 4) - 1;
      for (std::int32_t link = 0; link < 3; ++link)
        if (random() % 3 == 0) loads.push_back({link, 0.25 * static_cast<double>(1 + random() % 5)});
      graph.add(stream, static_cast<double>(random() % 4), before, static_cast<std::int64_t>(random() % 3), loads);
    }
    const TaskTimes times = graph.run();
    CHECK_EQ(times.finished, n);
    const PathLengths paths = path_lengths(graph.tasks());
    std::vector<double> carried(3, 0);
    double end = 0;
    for (int t = 0; t < n; ++t) {
      double ready = 0;
      for (std::int32_t before : graph.tasks().predecessors(static_cast<std::size_t>(t)))
        ready = std::max(ready, times.finish[before]);
      CHECK(times.start[t] >= ready);
      CHECK(times.start[t] >= paths.head[t] - 1e-9);
      CHECK(times.finish[t] >= times.start[t] + graph.seconds[t] - 1e-9);
      end = std::max(end, times.finish[t]);
      for (auto k = graph.load_start[t]; k < graph.load_start[t + 1]; ++k)
        carried[graph.load_link[k]] += graph.load[k] * graph.seconds[t];
      if (graph.stream[t] < 0) {
        CHECK_EQ(times.start[t], ready);
        continue;
      }
      double idle_from = ready;  // its stream is busy from when it is ready until it starts
      for (bool moved = true; moved;) {
        moved = false;
        for (int other = 0; other < n; ++other) {
          if (other == t || graph.stream[other] != graph.stream[t]) continue;
          const bool apart = times.finish[other] <= times.start[t] || times.finish[t] <= times.start[other];
          CHECK(apart || graph.seconds[t] == 0 || graph.seconds[other] == 0);
          if (times.start[other] <= idle_from && times.finish[other] > idle_from && times.finish[other] <= times.start[t])
            idle_from = times.finish[other], moved = true;
        }
      }
      CHECK(idle_from >= times.start[t]);
    }
    for (double seconds : carried) CHECK(seconds <= end + 1e-9);
  }
}
