// Binding of graph/routing.h and graph/hashed_loads.h.
#include "graph/hashed_loads.h"
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
  m.def(
      "hashed_loads",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<Amount> cap, Column<bool> forwards, bool relays,
         Column<Vertex> from, Column<Vertex> to, Column<std::int64_t> channel, Column<std::int64_t> units,
         std::int64_t parts, bool dealt, std::uint64_t first_seed, std::int64_t draws) {
        check_length("dst", dst.size(), src.size());
        check_length("cap", cap.size(), src.size());
        check_length("forwards", forwards.size(), static_cast<std::size_t>(num_nodes));
        std::vector<std::uint8_t> flags(forwards.data(), forwards.data() + forwards.size());
        std::vector<double> expected;
        HashedLoads found = stoppable([&](const StopFlag& stop) {
          Digraph graph(num_nodes, view(src), view(dst));
          Routing routing{graph, view(cap), flags, relays, 0};
          HashedFlows flows{view(from), view(to), view(channel), view(units), parts, dealt};
          expected = expected_loads(routing, flows, stop);
          return hashed_loads(routing, flows, first_seed, draws, stop);
        });
        return nb::make_tuple(to_numpy(std::move(found.busiest)), to_numpy(std::move(found.busiest_chosen)),
                              to_numpy(std::move(found.hits)), to_numpy(std::move(expected)));
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("cap"), nb::arg("forwards"), nb::arg("relays"),
      nb::arg("from_node"), nb::arg("to_node"), nb::arg("channel"), nb::arg("units"), nb::arg("parts"), nb::arg("dealt"),
      nb::arg("first_seed"), nb::arg("draws"),
      "Units over capacity of the busiest link in each draw, of the busiest that is chosen, how often each flow crosses "
      "the busiest link, and the expected units on every link.");
}
