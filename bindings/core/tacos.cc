// Binding of tacos/tacos.h.
#include "tacos/tacos.h"

#include "bindings.h"

using namespace coppice;

void init_tacos(nb::module_& m) {
  m.def(
      "match_chunks",
      [](std::int32_t num_ranks, std::int32_t num_ports, Column<std::int32_t> src, Column<std::int32_t> dst,
         Column<std::int64_t> duration, Column<std::int64_t> port_start, Column<std::int32_t> port,
         Column<std::int64_t> hold, Column<std::int32_t> source, Column<std::int32_t> target,
         Column<std::int32_t> group, Column<std::uint8_t> rules, std::uint64_t seed, std::int64_t first, std::int64_t count, std::int32_t threads,
         std::int64_t limit, double seconds) {
        const ChannelNetwork network{.num_ranks = num_ranks, .num_ports = num_ports, .src = view(src), .dst = view(dst),
                                     .duration = view(duration), .port_start = view(port_start), .port = view(port),
                                     .hold = view(hold)};
        std::vector<MatchingRule> taken;
        for (std::uint8_t rule : view(rules)) {
          if (rule > 2) throw std::invalid_argument("a rule of matching is 0, 1 or 2");
          taken.push_back(static_cast<MatchingRule>(rule));
        }
        Matching found = stoppable([&](const StopFlag& stop) {
          using clock = std::chrono::steady_clock;
          const auto begun = clock::now();
          bool late = false;
          const StopFlag flag = [&] {
            late = seconds >= 0 && std::chrono::duration<double>(clock::now() - begun).count() > seconds;
            return late || stop();
          };
          try {
            return best_matching(network, {view(source), view(target), view(group)}, taken, seed, first, count, threads, limit, flag);
          } catch (const Cancelled&) {
            if (late) return Matching{};
            throw;
          }
        });
        return nb::make_tuple(found.time, found.attempt, to_numpy(std::move(found.start)),
                              to_numpy(std::move(found.channel)), to_numpy(std::move(found.chunk)));
      },
      nb::arg("num_ranks"), nb::arg("num_ports"), nb::arg("src"), nb::arg("dst"), nb::arg("duration"),
      nb::arg("port_start"), nb::arg("port"), nb::arg("hold"), nb::arg("source"), nb::arg("target"), nb::arg("group"), nb::arg("rules"),
      nb::arg("seed"), nb::arg("first"), nb::arg("count"), nb::arg("threads"), nb::arg("limit"), nb::arg("seconds"),
      "The best of several greedy matchings of chunks with links: (time, attempt, start, channel, chunk); time -1 where "
      "none is within the limit, or in so many seconds (negative: no limit).");
}
