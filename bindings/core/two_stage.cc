// Bindings of two_stage/two_stage.h and graph/distances.h.
#include "two_stage/two_stage.h"

#include "bindings.h"
#include "graph/distances.h"

using namespace coppice;

void init_two_stage(nb::module_& m) {
  m.def(
      "shortest_distances",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<Amount> length, Column<Vertex> sources) {
        check_length("dst", dst.size(), src.size());
        return to_numpy(stoppable([&](const StopFlag& stop) {
          return shortest_distances(Digraph(num_nodes, view(src), view(dst)), view(length), view(sources), stop);
        }));
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("length"), nb::arg("sources"),
      "Distance from each source to each node, source by source; 2^62 where no path leads.");

  nb::class_<TwoStage>(m, "TwoStage", "Blocks between boxes, dealt to rails so that all links are busy alike.")
      .def("__init__",
           [](TwoStage* at, std::int32_t boxes, std::int32_t width, Column<std::int64_t> near_start, Column<Arc> near,
              Column<std::int64_t> far_start, Column<Arc> far, Column<std::int64_t> cross_start, Column<Arc> cross, Column<Amount> cap,
              Column<Amount> demand, Amount scale) {
             new (at) TwoStage(BoxNetwork{boxes, width, copied(near_start), copied(near), copied(far_start), copied(far),
                                          copied(cross_start), copied(cross), copied(cap)},
                               view(demand), scale);
           },
           nb::arg("boxes"), nb::arg("width"), nb::arg("near_start"), nb::arg("near"), nb::arg("far_start"), nb::arg("far"),
           nb::arg("cross_start"), nb::arg("cross"), nb::arg("cap"), nb::arg("demand"), nb::arg("scale"))
      .def("fill", [](TwoStage& self, std::int32_t deal) {
        if (deal < 0 || deal > static_cast<std::int32_t>(Deal::kDirect)) throw std::invalid_argument("there is no such way to deal");
        self.fill(static_cast<Deal>(deal));
      }, nb::arg("deal"), "Deals all blocks anew.")
      .def("sweep", [](TwoStage& self, double steepness) {
        stoppable([&](const StopFlag& stop) { return self.sweep(steepness, stop), 0; });
      }, nb::arg("steepness"), "Moves blocks towards shorter ways.")
      .def("worst", &TwoStage::worst, "The largest load over capacity, in 1 / scale of a unit.")
      .def("lengths", [](const TwoStage& self, double steepness) { return to_numpy(self.lengths(steepness)); },
           nb::arg("steepness"), "Lengths of links that rise steeply with the load.")
      .def("loads", [](const TwoStage& self) { return to_numpy(self.loads()); }, "Load of each link, in 1 / scale of a unit.")
      .def("parts", [](const TwoStage& self) {
        Parts found = self.parts();
        return nb::make_tuple(to_numpy(std::move(found.source)), to_numpy(std::move(found.target)), to_numpy(std::move(found.way)),
                              to_numpy(std::move(found.amount)));
      }, "(source, target, way, amount) by source and target; positions, and a member or `width` as the way.");
}
