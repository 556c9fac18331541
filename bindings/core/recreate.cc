// Binding of recreate/recreate.h.
#include "recreate/recreate.h"

#include "bindings.h"

using namespace coppice;

void init_recreate(nb::module_& m) {
  m.def(
      "recreate",
      [](std::int32_t num_ranks, std::int32_t num_ports, Column<std::int32_t> src, Column<std::int32_t> dst,
         Column<std::int64_t> port_start, Column<std::int32_t> port, Column<std::int64_t> duration,
         Column<std::int64_t> offset, Column<std::int64_t> hold, Column<std::int32_t> source, Column<std::int32_t> target, Column<std::int32_t> size,
         Column<std::int64_t> start, Column<std::int32_t> channel, Column<std::int32_t> chunk, Column<std::uint8_t> adds, bool summed, std::uint64_t seed, std::int64_t looks,
         std::int64_t enough) {
        const SizedNetwork network{.num_ranks = num_ranks, .num_ports = num_ports, .src = view(src), .dst = view(dst),
                                   .port_start = view(port_start), .port = view(port), .duration = view(duration),
                                   .offset = view(offset), .hold = view(hold)};
        Recreated found = stoppable([&](const StopFlag& stop) {
          return recreate(network, {view(source), view(target), view(size), summed}, {view(start), view(channel), view(chunk), view(adds)}, seed, looks,
                          enough, stop);
        });
        return nb::make_tuple(found.time, to_numpy(std::move(found.start)), to_numpy(std::move(found.arrive)),
                              to_numpy(std::move(found.channel)), to_numpy(std::move(found.chunk)), to_numpy(std::move(found.adds)));
      },
      nb::arg("num_ranks"), nb::arg("num_ports"), nb::arg("src"), nb::arg("dst"), nb::arg("port_start"), nb::arg("port"),
      nb::arg("duration"), nb::arg("offset"), nb::arg("hold"), nb::arg("source"), nb::arg("target"), nb::arg("size"), nb::arg("start"), nb::arg("channel"),
      nb::arg("chunk"), nb::arg("adds"), nb::arg("summed"), nb::arg("seed"), nb::arg("looks"), nb::arg("enough"),
      "Improve a schedule of chunks on channels by ruin and recreate: (time, start, arrive, channel, chunk, adds).");
}
