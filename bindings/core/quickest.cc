// Binding of quickest/quickest.h.
#include "quickest/quickest.h"

#include "bindings.h"

using namespace coppice;

void init_quickest(nb::module_& m) {
  m.def(
      "quickest_to",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<double> rate, Column<std::int64_t> latency,
         Column<double> supply, Vertex sink, double least, std::size_t most_offsets) {
        check_length("dst", dst.size(), src.size());
        const Digraph graph(num_nodes, view(src), view(dst));
        Quickest found = stoppable([&](const StopFlag& stop) {
          return quickest_to({graph, view(rate), view(latency)}, view(supply), sink, least, most_offsets, stop);
        });
        return nb::make_tuple(found.time, found.since, to_numpy(std::move(found.labelling.offset)),
                              to_numpy(std::move(found.labelling.from_end)), found.complete, found.steps);
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("rate"), nb::arg("latency"), nb::arg("supply"),
      nb::arg("sink"), nb::arg("least"), nb::arg("most_offsets"),
      "The least time in which a sink has what others hold: (time, since, offset, from_end, complete, steps); see quickest.h.");
}
