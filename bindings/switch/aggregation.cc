// Binding of aggregation/node.h and aggregation/protocols.h: any party of any protocol, driven packet by packet.
#include "aggregation/node.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "aggregation/protocols.h"
#include "aggregation/state.h"
#include "bindings.h"
#include "counters.h"
#include "sent.h"

using namespace coppice::aggregation;

namespace {

Bytes bytes_of(const nb::bytes& packet) {
  return {static_cast<const std::uint8_t*>(packet.data()), packet.size()};
}

}  // namespace

void init_aggregation(nb::module_& m) {
  nb::enum_<Element>(m, "Element").value("int32", Element::int32).value("float32", Element::float32);
  nb::class_<Job>(m, "AggregationJob")
      .def("__init__",
           [](Job* at, std::uint32_t id, int workers, int slots, int values, int window, Element element, Time timeout_ns,
              Time give_up_timeout_ns, std::map<std::string, double> settings) {
             new (at) Job{id, workers, slots, values, window, element, timeout_ns, give_up_timeout_ns, std::move(settings)};
           },
           nb::arg("id"), nb::arg("workers"), nb::arg("slots"), nb::arg("values"), nb::arg("window"), nb::arg("element"),
           nb::arg("timeout_ns"), nb::arg("give_up_timeout_ns"), nb::arg("settings"));
  nb::class_<Node>(m, "Node")
      .def("receive",
           [](Node& node, Endpoint from, const nb::bytes& packet, Time now) {
             Sent out;
             node.receive(from, bytes_of(packet), now, out);
             return out.all;
           }, nb::arg("sender"), nb::arg("packet"), nb::arg("now_ns"))
      .def("wake",
           [](Node& node, Time now) {
             Sent out;
             node.wake(now, out);
             return out.all;
           }, nb::arg("now_ns"))
      .def("deadline_ns", [](const Node& node) -> nb::object {
        const Time at = node.deadline();
        return at == kNever ? nb::object(nb::none()) : nb::object(nb::int_(at));
      })
      .def("state",
           [](const Node& node, Time now) {
             return to_bytes(state_of(node, now));
           }, nb::arg("now_ns"))
      .def("clone", &Node::clone)
      .def("counters", [](const Node& node) { return dict_of(node.counters()); });
  nb::class_<Aggregator, Node>(m, "Aggregator")
      .def("open",
           [](Aggregator& node, const Job& job, const std::vector<Endpoint>& children, Endpoint parent) {
             node.open(job, children, parent);
           }, nb::arg("job"), nb::arg("children"), nb::arg("parent") = kNobody)
      .def("close", &Aggregator::close, nb::arg("job"))
      .def("slots_in_use", &Aggregator::slots_in_use)
      .def("waits_for", &Aggregator::waits_for, nb::arg("job"));
  nb::class_<Worker, Node>(m, "Worker")
      .def("begin",
           [](Worker& node, std::uintptr_t input, std::uintptr_t output, std::size_t count, Time now) {
             Sent out;
             node.begin(reinterpret_cast<const void*>(input), reinterpret_cast<void*>(output), count, now, out);
             return out.all;
           }, nb::arg("input"), nb::arg("output"), nb::arg("count"), nb::arg("now_ns"))
      .def("done", &Worker::done)
      .def("failure", [](const Worker& node) { return node.failure(); });
  m.def("aggregation_protocols", [] {
    nb::list names;
    for (const Protocol& each : protocols()) names.append(nb::str(each.name.data(), each.name.size()));
    return names;
  });
  m.def("aggregation_switch", [](const std::string& name, int slots) { return protocol(name).make_switch(slots); },
        nb::arg("protocol"), nb::arg("slots"));
  m.def("aggregation_worker",
        [](const std::string& name, const Job& job, int index, Endpoint above) {
          return protocol(name).make_worker(job, index, above);
        }, nb::arg("protocol"), nb::arg("job"), nb::arg("index"), nb::arg("above"));
  m.def("aggregation_server",
        [](const std::string& name) -> std::unique_ptr<Aggregator> {
          const Protocol& found = protocol(name);
          return found.make_server == nullptr ? nullptr : found.make_server();
        }, nb::arg("protocol"));
}
