// Binding of udp/server.h, udp/client.h and the envelope: a switch of this process, and a worker of a running one.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <tuple>

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

std::unique_ptr<Server> make_server(const std::string& protocol, const nb::bytes& secret, int workers, int slots,
                                    const std::string& host, int port, int threads,
                                    std::tuple<double, double, double, std::uint64_t, std::uint64_t> faults,
                                    std::optional<std::tuple<std::string, int, int, int>> parent, double silence_s,
                                    int most_jobs, int most_slots, double most_per_second) {
  ServerSettings settings;
  settings.gate.protocol = protocol;
  settings.gate.secret = text_of(secret);
  settings.gate.workers = workers;
  settings.gate.slots = slots;
  settings.gate.silence = nanoseconds(silence_s);
  settings.gate.most_jobs = most_jobs;
  settings.gate.most_slots = most_slots;
  settings.gate.most_per_second = most_per_second;
  settings.host = host;
  settings.port = port;
  settings.threads = threads;
  const auto [drop, duplicate, reorder, seed, after] = faults;
  settings.faults = {drop, duplicate, reorder, seed, after};
  if (parent) {
    const auto [parent_host, parent_port, index, siblings] = *parent;
    settings.gate.parent = Parent{resolved(parent_host, parent_port), index, siblings};
  }
  return std::make_unique<Server>(std::move(settings));
}

std::unique_ptr<Client> make_client(const std::string& host, int port, int threads, const std::string& protocol,
                                    const nb::bytes& secret, const aggregation::Job& job, int index,
                                    int member, int members, std::uint32_t epoch, double silence_s) {
  ClientSettings settings;
  settings.make_worker = aggregation::protocol(protocol).make_worker;
  settings.host = host;
  settings.port = port;
  settings.threads = threads;
  settings.connection.join.protocol = protocol;
  settings.connection.join.job = job;
  settings.connection.worker = member;
  settings.connection.join.members = members;
  settings.index = index;
  settings.connection.epoch = epoch;
  settings.connection.secret = text_of(secret);
  settings.connection.silence = nanoseconds(silence_s);
  return std::make_unique<Client>(std::move(settings));
}

}  // namespace

void init_udp(nb::module_& m) {
  nb::class_<Server>(m, "SwitchServer")
      .def("port", [](const Server& server) { return server.address().port; })
      .def("stop", &Server::stop, nb::call_guard<nb::gil_scoped_release>())
      .def("report", &report_of)
      .def("events", &Server::events);
  m.def("switch_server", &make_server, nb::arg("protocol"), nb::arg("secret"), nb::arg("workers"), nb::arg("slots"),
        nb::arg("host"), nb::arg("port"), nb::arg("threads"), nb::arg("faults"), nb::arg("parent").none(),
        nb::arg("silence_s"), nb::arg("most_jobs"), nb::arg("most_slots"), nb::arg("most_per_second"));
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
  m.def("switch_client", &make_client, nb::arg("host"), nb::arg("port"), nb::arg("threads"), nb::arg("protocol"),
        nb::arg("secret"), nb::arg("job"), nb::arg("index"), nb::arg("member"), nb::arg("members"), nb::arg("epoch"), nb::arg("silence_s"));
  m.def("siphash",
        [](std::uint64_t first, std::uint64_t second, const nb::bytes& data) {
          return siphash({first, second}, {static_cast<const std::uint8_t*>(data.data()), data.size()});
        }, nb::arg("first"), nb::arg("second"), nb::arg("data"));
}
