// Binding of symmetry/symmetry.h.
#include "symmetry/symmetry.h"

#include "bindings.h"

using namespace coppice;

void init_symmetry(nb::module_& m) {
  m.def(
      "find_symmetry",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<std::int32_t> colour,
         Column<std::int32_t> label, Column<bool> compute) {
        std::vector<std::uint8_t> flags(compute.data(), compute.data() + compute.size());
        Symmetry found = stoppable([&](const StopFlag& stop) {
          return find_symmetry(Digraph(num_nodes, view(src), view(dst)), view(colour), view(label), flags, stop);
        });
        nb::list generators;
        for (VertexMap& generator : found.generators) generators.append(to_numpy(std::move(generator)));
        return nb::make_tuple(to_numpy(std::move(found.orders)), generators, to_numpy(std::move(found.node_orbit)),
                              to_numpy(std::move(found.node_element)), to_numpy(std::move(found.link_orbit)),
                              to_numpy(std::move(found.link_orbit_size)));
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("colour"), nb::arg("label"), nb::arg("compute"),
      "A large abelian group of automorphisms that is free on the compute nodes: (orders, generators, node_orbit, "
      "node_element, link_orbit, link_orbit_size).");
}
