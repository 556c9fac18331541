// Binding of tasks/tasks.h and tasks/operations.h.
#include "tasks/tasks.h"

#include "tasks/operations.h"

#include "bindings.h"

using namespace coppice;

void init_tasks(nb::module_& m) {
  m.def(
      "run_tasks",
      [](Column<std::int32_t> stream, Column<double> seconds, Column<std::int64_t> priority,
         Column<std::int64_t> after_start, Column<std::int32_t> after, Column<std::int64_t> load_start,
         Column<std::int32_t> load_link, Column<double> load, std::int32_t num_streams, std::int32_t num_links,
         Column<std::int32_t> window, Column<double> window_bytes, Column<std::int32_t> returns, Column<double> credit) {
        const Tasks tasks{.stream = view(stream), .seconds = view(seconds), .priority = view(priority),
                          .after_start = view(after_start), .after = view(after), .load_start = view(load_start),
                          .load_link = view(load_link), .load = view(load), .num_streams = num_streams,
                          .num_links = num_links, .window = view(window), .window_bytes = view(window_bytes),
                          .returns = view(returns), .credit = view(credit)};
        TaskTimes found = stoppable([&](const StopFlag& stop) { return run_tasks(tasks, stop); });
        return nb::make_tuple(to_numpy(std::move(found.start)), to_numpy(std::move(found.finish)),
                              to_numpy(std::move(found.cause)), found.finished);
      },
      nb::arg("stream"), nb::arg("seconds"), nb::arg("priority"), nb::arg("after_start"), nb::arg("after"),
      nb::arg("load_start"), nb::arg("load_link"), nb::arg("load"), nb::arg("num_streams"), nb::arg("num_links"),
      nb::arg("window"), nb::arg("window_bytes"), nb::arg("returns"), nb::arg("credit"),
      "Tasks on streams and shared links, in seconds: start, finish, cause, and how many finished; see tasks.h.");
  m.def(
      "path_lengths",
      [](Column<double> seconds, Column<std::int64_t> after_start, Column<std::int32_t> after) {
        const std::vector<std::int32_t> stream(seconds.size(), -1);
        const std::vector<std::int64_t> priority(seconds.size(), 0);
        const Tasks tasks{.stream = stream, .seconds = view(seconds), .priority = priority,
                          .after_start = view(after_start), .after = view(after), .load_start = {}, .load_link = {},
                          .load = {}, .window = {}, .window_bytes = {}, .returns = {},
                          .credit = {}};
        PathLengths found = path_lengths(tasks);
        return nb::make_tuple(to_numpy(std::move(found.head)), to_numpy(std::move(found.tail)));
      },
      nb::arg("seconds"), nb::arg("after_start"), nb::arg("after"),
      "Longest paths before each task and from its start on; empty where tasks wait in a circle. See tasks.h.");
  m.def(
      "operation_tasks",
      [](Column<std::int32_t> decision, Column<std::int32_t> group, Column<std::int64_t> priority,
         Column<std::int32_t> ways, Column<std::int64_t> after_start, Column<std::int32_t> after,
         Column<std::int64_t> way_start, Column<std::int64_t> motif_start, Column<std::int64_t> option_start,
         Column<std::int32_t> stream, Column<double> starting, Column<double> amount, Column<double> rate,
         Column<std::int32_t> pieces, Column<std::int32_t> way, Column<std::uint8_t> ranked, Column<std::int64_t> rank,
         Column<std::int32_t> options, std::int32_t width) {
        const Operations operations{
            .decision = view(decision), .group = view(group), .priority = view(priority), .ways = view(ways),
            .after_start = view(after_start), .after = view(after), .way_start = view(way_start),
            .motif_start = view(motif_start), .option_start = view(option_start), .stream = view(stream),
            .starting = view(starting), .amount = view(amount), .rate = view(rate)};
        const OperationPlan plan{.pieces = view(pieces), .way = view(way), .ranked = view(ranked), .rank = view(rank),
                                 .options = view(options), .width = width};
        OperationTasks made = tasks_of(operations, plan);
        return nb::make_tuple(to_numpy(std::move(made.operation)), to_numpy(std::move(made.piece)),
                              to_numpy(std::move(made.option)), to_numpy(std::move(made.stream)),
                              to_numpy(std::move(made.seconds)), to_numpy(std::move(made.priority)),
                              to_numpy(std::move(made.after_start)), to_numpy(std::move(made.after)));
      },
      nb::arg("decision"), nb::arg("group"), nb::arg("priority"), nb::arg("ways"), nb::arg("after_start"), nb::arg("after"),
      nb::arg("way_start"), nb::arg("motif_start"), nb::arg("option_start"), nb::arg("stream"), nb::arg("starting"),
      nb::arg("amount"), nb::arg("rate"), nb::arg("pieces"), nb::arg("way"), nb::arg("ranked"), nb::arg("rank"),
      nb::arg("options"), nb::arg("width"),
      "Tasks of operations under a plan: operation, piece, option (-1: a barrier), stream, seconds, priority, after_start "
      "and after of each; see operations.h.");
}
