// Bindings of cuts/feasibility.h and cuts/bound.h.
#include "bindings.h"
#include "core/wide.h"
#include "cuts/bound.h"
#include "cuts/feasibility.h"

using namespace coppice;

static nb::object python_int(Wide value) { return nb::module_::import_("builtins").attr("int")(to_decimal(value).c_str()); }

void init_feasibility(nb::module_& m) {
  m.def(
      "violated_cuts",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<Amount> cap, Column<Amount> supply,
         Column<bool> terminal, Amount demand, std::size_t limit) {
        auto terminals = checked_terminals(num_nodes, src, dst, cap, supply, terminal);
        auto sets = stoppable([&](const StopFlag& stop) {
          Digraph graph(num_nodes, view(src), view(dst));
          return FeasibilityCheck<Amount>(graph, terminals).violated(view(cap), view(supply), demand, limit, stop);
        });
        nb::list result;
        for (auto& set : sets) result.append(to_numpy(std::move(set)));
        return result;
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("cap"), nb::arg("supply"), nb::arg("terminal"),
      nb::arg("demand"), nb::arg("limit") = 1,
      "Vertex sets X (sink sides) that contain a terminal and have in_cap(X) + supply(X) < demand.");
  m.def(
      "cut_bound",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<Amount> cap, Column<Amount> weight,
         Column<bool> terminal) {
        auto terminals = checked_terminals(num_nodes, src, dst, cap, weight, terminal);
        CutBound bound = stoppable([&](const StopFlag& stop) {
          Digraph graph(num_nodes, view(src), view(dst));
          return cut_bound(graph, terminals, view(weight), view(cap), stop);
        });
        return nb::make_tuple(python_int(bound.numerator), python_int(bound.denominator), to_numpy(std::move(bound.sink_side)),
                              bound.rounds);
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("cap"), nb::arg("weight"), nb::arg("terminal"),
      "Largest (W - w(X)) / in_cap(X) over sets X that contain a terminal: (numerator, denominator, X, rounds).");
}
