// Binding of flow/path_flow.h.
#include "flow/path_flow.h"

#include "bindings.h"

using namespace coppice;

void init_path_flow(nb::module_& m) {
  nb::class_<PathFlow>(m, "PathFlow", "Demands on paths, moved so that the busiest link carries as little as possible.")
      .def("__init__",
           [](PathFlow* at, Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<Amount> cap, Column<Vertex> sources,
              Column<Amount> demand) {
             check_length("dst", dst.size(), src.size());
             new (at) PathFlow(Digraph(num_nodes, view(src), view(dst)), view(cap), view(sources), view(demand));
           },
           nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("cap"), nb::arg("sources"), nb::arg("demand"))
      .def("sweep", [](PathFlow& self, double steepness) {
        stoppable([&](const StopFlag& stop) { return self.sweep(steepness, stop), 0; });
      }, nb::arg("steepness"), "Moves flow of every source towards shortest paths.")
      .def("worst", &PathFlow::worst, "The largest load over capacity.")
      .def("lengths", [](const PathFlow& self, double steepness) { return to_numpy(self.lengths(steepness)); },
           nb::arg("steepness"), "Lengths of links that rise steeply with the load.")
      .def("bound", [](const PathFlow& self, Column<double> length) {
        return stoppable([&](const StopFlag& stop) { return self.bound(view(length), stop); });
      }, nb::arg("length"), "What the lengths prove of the largest load over capacity, in floats.")
      .def("paths", [](const PathFlow& self) {
        FlowPaths found = self.paths();
        return nb::make_tuple(to_numpy(std::move(found.source)), to_numpy(std::move(found.target)),
                              to_numpy(std::move(found.part)), to_numpy(std::move(found.start)), to_numpy(std::move(found.arc)));
      }, "(source, target, part, start, link): paths by source and target, with their shares of the demand.");
}
