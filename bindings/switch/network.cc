// Binding of packet_network/experiment.h and exploration.h: all-reduces over a simulated network, and over every network.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "counters.h"
#include "packet_network/experiment.h"
#include "packet_network/exploration.h"

using namespace coppice::aggregation;

namespace {

nb::dict as_dict(const Traffic& traffic) {
  nb::dict found;
  found["packets"] = traffic.packets;
  found["size_bytes"] = traffic.bytes;
  found["dropped"] = traffic.dropped;
  found["overflowed"] = traffic.overflowed;
  found["duplicated"] = traffic.duplicated;
  found["reordered"] = traffic.reordered;
  return found;
}

}  // namespace

void init_network(nb::module_& m) {
  nb::class_<Link>(m, "AggregationLink")
      .def("__init__",
           [](Link* at, double bytes_per_s, Time latency_ns, std::int64_t queue_bytes, std::int64_t overhead_bytes,
              double drop, double duplicate, double reorder, Time reorder_delay_ns) {
             new (at) Link{bytes_per_s, latency_ns, queue_bytes, overhead_bytes, drop, duplicate, reorder, reorder_delay_ns};
           },
           nb::kw_only(), nb::arg("bytes_per_s"), nb::arg("latency_ns"), nb::arg("queue_bytes"), nb::arg("overhead_bytes"),
           nb::arg("drop"), nb::arg("duplicate"), nb::arg("reorder"), nb::arg("reorder_delay_ns"));
  m.def(
      "aggregation_experiment",
      [](const std::string& protocol, const Job& job, const std::vector<int>& groups, const Link& link, const Link& uplink,
         double switch_packets_per_s, double worker_packets_per_s, const std::vector<std::int64_t>& tensors,
         const std::vector<Time>& starts_ns, std::uint64_t seed, int crash_worker, Time crash_at_ns, int restart_switch,
         Time restart_at_ns, Time limit_ns) {
        const Experiment experiment{protocol, job, groups, link, uplink, switch_packets_per_s, worker_packets_per_s, tensors,
                                    starts_ns, seed, crash_worker, crash_at_ns, restart_switch, restart_at_ns, limit_ns};
        const Outcome outcome = stoppable([&](const coppice::StopFlag& stop) { return run_experiment(experiment, stop); });
        nb::list finish;
        for (Time each : outcome.finish) finish.append(each == kNever ? nb::object(nb::none()) : nb::object(nb::int_(each)));
        nb::dict found;
        found["finish_ns"] = finish;
        found["failures"] = nb::cast(outcome.failures);
        found["wrong"] = outcome.wrong;
        found["worst"] = outcome.worst;
        found["slots_in_use"] = outcome.slots_in_use;
        found["waited_for"] = nb::cast(outcome.waited_for);
        found["end_ns"] = outcome.end;
        found["delivered"] = outcome.delivered;
        found["up"] = as_dict(outcome.up);
        found["down"] = as_dict(outcome.down);
        found["workers"] = dict_of(outcome.workers);
        found["switches"] = dict_of(outcome.switches);
        found["server"] = dict_of(outcome.server);
        return found;
      },
      nb::kw_only(), nb::arg("protocol"), nb::arg("job"), nb::arg("groups"), nb::arg("link"), nb::arg("uplink"),
      nb::arg("switch_packets_per_s"), nb::arg("worker_packets_per_s"), nb::arg("tensors"), nb::arg("starts_ns"),
      nb::arg("seed"), nb::arg("crash_worker"), nb::arg("crash_at_ns"), nb::arg("restart_switch"), nb::arg("restart_at_ns"),
      nb::arg("limit_ns"));
  m.def(
      "aggregation_exploration",
      [](const std::string& protocol_name, const Job& job, const std::vector<int>& groups,
         const std::vector<std::int64_t>& tensors, bool reordering, int losses, int duplicates, int early_timeouts,
         int most_events, std::int64_t most_states) {
        const Search search{job, groups, tensors, reordering, losses, duplicates, early_timeouts, most_events, most_states};
        const Finding finding = stoppable(
            [&](const coppice::StopFlag& stop) { return explore(protocol(protocol_name), search, stop); });
        nb::dict found;
        found["fault"] = finding.fault;
        found["trace"] = nb::cast(finding.trace);
        found["states"] = finding.states;
        found["events"] = finding.events;
        found["depth"] = finding.depth;
        found["whole"] = finding.whole;
        return found;
      },
      nb::kw_only(), nb::arg("protocol"), nb::arg("job"), nb::arg("groups"), nb::arg("tensors"), nb::arg("reordering"),
      nb::arg("losses"), nb::arg("duplicates"), nb::arg("early_timeouts"), nb::arg("most_events"), nb::arg("most_states"));
}
