// Binding of stream_trees/switchagg.h: what a worker of SwitchAgg does beyond adding up tensors.
#include "stream_trees/switchagg.h"

#include <nanobind/stl/string.h>

#include "bindings.h"
#include "sent.h"

using namespace coppice::aggregation;

void init_switchagg(nb::module_& m) {
  nb::class_<SwitchAggWorker, Worker>(m, "SwitchAggWorker")
      .def(nb::init<const Job&, int, Endpoint>(), nb::arg("job"), nb::arg("index"), nb::arg("above"))
      .def("begin_pairs",
           [](SwitchAggWorker& worker, const nb::list& pairs, Time now) {
             SwitchAggWorker::Pairs taken;
             taken.reserve(nb::len(pairs));
             for (nb::handle each : pairs) {
               const auto pair = nb::cast<nb::tuple>(each);
               const auto key = nb::cast<nb::bytes>(pair[0]);
               std::vector<std::uint32_t> values;
               for (nb::handle value : nb::cast<nb::sequence>(pair[1])) values.push_back(nb::cast<std::uint32_t>(value));
               taken.emplace_back(std::string(key.c_str(), key.size()), std::move(values));
             }
             Sent out;
             worker.begin_pairs(std::move(taken), now, out);
             return out.all;
           }, nb::arg("pairs"), nb::arg("now_ns"))
      .def("combined", [](const SwitchAggWorker& worker) {
        nb::dict found;
        for (const auto& [key, values] : worker.combined()) {
          nb::list list;
          for (std::uint32_t value : values) list.append(value);
          found[nb::bytes(key.data(), key.size())] = list;
        }
        return found;
      });
}
