// Binding of put_signal/schedules.h.
#include "put_signal/schedules.h"

#include "bindings.h"

using namespace coppice;
using namespace coppice::put_signal;

namespace {

/// A program and what its memory holds, kept for many runs.
struct PutSignalRuns {
  Script script;
  std::int64_t words;
  std::vector<std::uint64_t> begin, wanted;
  std::vector<std::int64_t> output, wanted_start;

  Contents contents() const { return {words, begin, output, wanted_start, wanted}; }
};

template <class T>
std::vector<T> kept(const Column<T>& column) {
  return {column.data(), column.data() + column.size()};
}

}  // namespace

void init_put_signal(nb::module_& m) {
  using Ints = Column<std::int64_t>;
  using Words = Column<std::uint64_t>;
  nb::class_<PutSignalRuns>(m, "PutSignalRuns", "Runs of a put/signal program under adversarial schedules.")
      .def(
          "__init__",
          [](PutSignalRuns* self, std::int64_t num_slots, Ints rank_start, Ints call_start, Ints stream, Ints communicator,
             Ints act, Ints peer, Ints context, Ints signal, Ints count, Ints source, Ints addend, Ints target,
             std::int64_t words, Words begin, Ints output, Ints wanted_start, Words wanted) {
            const Columns columns{.num_slots = num_slots, .rank_start = view(rank_start), .call_start = view(call_start),
                                  .stream = view(stream), .communicator = view(communicator), .act = view(act),
                                  .peer = view(peer), .context = view(context), .signal = view(signal),
                                  .count = view(count), .source = view(source), .addend = view(addend),
                                  .target = view(target)};
            new (self) PutSignalRuns{Script(columns), words, kept(begin), kept(wanted), kept(output), kept(wanted_start)};
          },
          nb::arg("num_slots"), nb::arg("rank_start"), nb::arg("call_start"), nb::arg("stream"), nb::arg("communicator"),
          nb::arg("act"), nb::arg("peer"), nb::arg("context"), nb::arg("signal"), nb::arg("count"), nb::arg("source"),
          nb::arg("addend"), nb::arg("target"), nb::arg("words"), nb::arg("begin"), nb::arg("output"),
          nb::arg("wanted_start"), nb::arg("wanted"))
      .def(
          "run",
          [](const PutSignalRuns& self, std::int64_t first, std::int64_t count) {
            const Runs found = stoppable([&](const StopFlag& stop) { return run_schedules(self.script, self.contents(), first, count, stop); });
            return nb::make_tuple(static_cast<int>(found.fault.kind), found.fault.first, found.fault.second, found.seed,
                                  found.runs, found.actions);
          },
          nb::arg("first"), nb::arg("count"),
          "Runs of so many numbers, up to the first that goes wrong: (fault, first, second, its number, runs, actions).")
      .def(
          "trace",
          [](const PutSignalRuns& self, std::int64_t number) {
            Trace found = trace_schedule(self.script, self.contents(), number);
            return nb::make_tuple(static_cast<int>(found.fault.kind), found.fault.first, found.fault.second,
                                  to_numpy(std::move(found.happening)), to_numpy(std::move(found.number)),
                                  to_numpy(std::move(found.possible)));
          },
          nb::arg("number"),
          "One run: (fault, first, second, what happened, to whom, actions that might have come instead, it included).");
}
