// Binding of udp/server.h, udp/client.h and the envelope: a switch of this process, and a worker of a running one.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "aggregation/protocols.h"
#include "bindings.h"
#include "counters.h"
#include "udp/client.h"
#include "udp/server.h"

using namespace coppice::udp;
namespace aggregation = coppice::aggregation;

namespace {

Time nanoseconds(double seconds) { return static_cast<Time>(seconds * 1e9); }

std::string text_of(const nb::bytes& bytes) { return {static_cast<const char*>(bytes.data()), bytes.size()}; }

nb::dict report_of(const Server& server) {
  const ServerReport all = server.report();
  nb::dict found;
  found["jobs"] = all.jobs;
  found["slots_in_use"] = all.slots_in_use;
  found["sent"] = all.sent;
  found["lost"] = all.lost;
  found["dropped"] = all.dropped;
  found["duplicated"] = all.duplicated;
  found["reordered"] = all.reordered;
  found["gate"] = dict_of(all.gate);
  found["protocol"] = dict_of(all.protocol);
  return found;
}

using Place = std::pair<std::string, int>;  // host and port

std::unique_ptr<Server> make_server(nb::handle record, const std::optional<Place>& parent) {
  const Settings from(record), faults(record.attr("faults"));
  ServerSettings settings;
  from.fill("protocol", settings.gate.protocol);
  settings.gate.secret = text_of(from.get<nb::bytes>("secret"));
  from.fill("workers", settings.gate.workers);
  from.fill("slots", settings.gate.slots);
  settings.gate.silence = nanoseconds(from.get<double>("silence_s"));
  from.fill("most_jobs", settings.gate.most_jobs);
  from.fill("most_slots", settings.gate.most_slots);
  from.fill("most_per_second", settings.gate.most_per_second);
  from.fill("host", settings.host);
  from.fill("port", settings.port);
  from.fill("threads", settings.threads);
  faults.fill("drop", settings.faults.drop);
  faults.fill("duplicate", settings.faults.duplicate);
  faults.fill("reorder", settings.faults.reorder);
  faults.fill("seed", settings.faults.seed);
  faults.fill("after", settings.faults.after);
  if (parent) {
    settings.gate.parent =
        Parent{resolved(parent->first, parent->second), from.get<int>("index"), from.get<int>("siblings")};
  }
  return std::make_unique<Server>(std::move(settings));
}

// `member` of `members` is the worker's place at its switch.
std::unique_ptr<Client> make_client(nb::handle record, const std::string& host, int port, const aggregation::Job& job,
                                    int member, int members) {
  const Settings from(record);
  ClientSettings settings;
  from.fill("protocol", settings.connection.join.protocol);
  settings.make_worker = aggregation::protocol(settings.connection.join.protocol).make_worker;
  settings.host = host;
  settings.port = port;
  from.fill("threads", settings.threads);
  settings.connection.join.job = job;
  settings.connection.worker = member;
  settings.connection.join.members = members;
  from.fill("worker", settings.index);
  from.fill("epoch", settings.connection.epoch);
  settings.connection.secret = text_of(from.get<nb::bytes>("secret"));
  settings.connection.silence = nanoseconds(from.get<double>("silence_s"));
  return std::make_unique<Client>(std::move(settings));
}

}  // namespace

void init_udp(nb::module_& m) {
  nb::class_<Server>(m, "SwitchServer")
      .def("port", [](const Server& server) { return server.address().port; })
      .def("stop", &Server::stop, nb::call_guard<nb::gil_scoped_release>())
      .def("report", &report_of)
      .def("events", &Server::events);
  m.def("switch_server", &make_server, nb::arg("settings"), nb::kw_only(), nb::arg("parent").none());
  nb::class_<Client>(m, "SwitchClient")
      .def("join",
           [](Client& client, double timeout_s) {
             stoppable([&](const coppice::StopFlag& stop) { client.join(nanoseconds(timeout_s), stop); });
           }, nb::arg("timeout_s"))
      .def("all_reduce",
           [](Client& client, std::uintptr_t input, std::uintptr_t output, std::size_t count, double timeout_s) {
             stoppable([&](const coppice::StopFlag& stop) {
               client.all_reduce(reinterpret_cast<const void*>(input), reinterpret_cast<void*>(output), count,
                                 nanoseconds(timeout_s), stop);
             });
           }, nb::arg("input"), nb::arg("output"), nb::arg("count"), nb::arg("timeout_s"))
      .def("close", &Client::close, nb::arg("why"), nb::call_guard<nb::gil_scoped_release>())
      .def("counters", [](const Client& client) { return dict_of(client.counters()); });
  m.def("switch_client", &make_client, nb::arg("settings"), nb::kw_only(), nb::arg("host"), nb::arg("port"), nb::arg("job"),
        nb::arg("member"), nb::arg("members"));
  m.def("siphash",
        [](std::uint64_t first, std::uint64_t second, const nb::bytes& data) {
          return siphash({first, second}, {static_cast<const std::uint8_t*>(data.data()), data.size()});
        }, nb::arg("first"), nb::arg("second"), nb::arg("data"));
}
