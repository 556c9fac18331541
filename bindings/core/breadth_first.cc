// Binding of breadth_first/breadth_first.h.
#include "breadth_first/breadth_first.h"

#include "bindings.h"

using namespace coppice;

void init_breadth_first(nb::module_& m) {
  m.def(
      "balanced_loads",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<Amount> cap, Column<Vertex> targets) {
        check_length("dst", dst.size(), src.size());
        StepLoads loads = stoppable([&](const StopFlag& stop) {
          return balanced_loads(Digraph(num_nodes, view(src), view(dst)), view(cap), view(targets), stop);
        });
        return nb::make_tuple(to_numpy(std::move(loads.numerator)), to_numpy(std::move(loads.denominator)));
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("cap"), nb::arg("targets"),
      "Least loads of breadth-first broadcast, step by step, per unit of capacity: (numerators, denominators).");
  m.def(
      "balanced_deliveries",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<Amount> cap, Column<Vertex> targets,
         Column<Amount> numerator, Column<Amount> denominator, Amount pieces) {
        check_length("dst", dst.size(), src.size());
        Deliveries found = stoppable([&](const StopFlag& stop) {
          StepLoads loads{{numerator.data(), numerator.data() + numerator.size()},
                          {denominator.data(), denominator.data() + denominator.size()}};
          return balanced_deliveries(Digraph(num_nodes, view(src), view(dst)), view(cap), view(targets), loads, pieces,
                                     stop);
        });
        return nb::make_tuple(to_numpy(std::move(found.step)), to_numpy(std::move(found.source)),
                              to_numpy(std::move(found.arc)), to_numpy(std::move(found.first)),
                              to_numpy(std::move(found.count)));
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("cap"), nb::arg("targets"), nb::arg("numerator"),
      nb::arg("denominator"), nb::arg("pieces"),
      "Runs of pieces that attain these loads: (step, source, arc, first piece, number of pieces), target by target.");
}
