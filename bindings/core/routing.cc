// Binding of graph/routing.h.
#include "graph/routing.h"

#include "bindings.h"

using namespace coppice;

void init_routing(nb::module_& m) {
  m.def(
      "find_routes",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<Amount> cap, Column<bool> forwards,
         Column<Vertex> from, Column<Vertex> to, Column<std::int64_t> channel, bool relays, std::uint64_t hash) {
        check_length("dst", dst.size(), src.size());
        check_length("cap", cap.size(), src.size());
        check_length("forwards", forwards.size(), static_cast<std::size_t>(num_nodes));
        check_length("to", to.size(), from.size());
        check_length("channel", channel.size(), from.size());
        std::vector<std::uint8_t> flags(forwards.data(), forwards.data() + forwards.size());
        Routes found = stoppable([&](const StopFlag& stop) {
          Digraph graph(num_nodes, view(src), view(dst));
          return find_routes({graph, view(cap), flags, relays, hash}, view(from), view(to), view(channel), stop);
        });
        return nb::make_tuple(to_numpy(std::move(found.start)), to_numpy(std::move(found.nodes)));
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("cap"), nb::arg("forwards"), nb::arg("from_node"),
      nb::arg("to_node"), nb::arg("channel"), nb::arg("relays"), nb::arg("hash"),
      "Default routes for requests (from_node, to_node, channel), up to the first that has none: (start, nodes).");
}
