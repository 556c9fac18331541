// Binding of flow/circuits.h.
#include "flow/circuits.h"

#include "bindings.h"

using namespace coppice;

void init_circuits(nb::module_& m) {
  m.def(
      "route_circuits",
      [](std::int32_t num_nodes, Column<std::int32_t> tail, Column<std::int32_t> head, Column<double> rate,
         Column<double> fixed, Column<std::int32_t> terminals, std::int32_t parts, Column<std::int32_t> power,
         Column<double> message, double fullest, double even) {
        check_length("message", message.size(), power.size());
        std::vector<CircuitRound> rounds;
        for (std::size_t i = 0; i < power.size(); ++i) rounds.push_back({view(power)[i], view(message)[i]});
        Circuits found = stoppable([&](const StopFlag& stop) {
          return route_circuits({num_nodes, view(tail), view(head), view(rate), view(fixed)}, view(terminals), parts,
                                rounds, fullest, even, stop);
        });
        return nb::make_tuple(found.load, to_numpy(std::move(found.loads)), to_numpy(std::move(found.start)),
                              to_numpy(std::move(found.links)));
      },
      nb::arg("num_nodes"), nb::arg("tail"), nb::arg("head"), nb::arg("rate"), nb::arg("fixed"), nb::arg("terminals"),
      nb::arg("parts"), nb::arg("power"), nb::arg("message"), nb::arg("fullest"), nb::arg("even"),
      "Blocks between all terminals, each on one path: (load of the fullest link, loads, start, links); see circuits.h.");
}
