// Bindings of alltoallv/alltoallv.h.
#include "alltoallv/alltoallv.h"

#include "bindings.h"

using namespace coppice;

namespace {

/// A plan with the counts that it refers to.
struct Planned {
  Planned(RailNetwork network, const Column<Amount>& given, Amount least_saved)
      : counts(copied(given)), plan(std::move(network), counts, least_saved) {}
  std::vector<Amount> counts;
  AllToAllV plan;
};

nb::tuple pair(AllToAllV::Busiest busiest) { return nb::make_tuple(busiest.first, busiest.second); }

}  // namespace

void init_alltoallv(nb::module_& m) {
  nb::class_<Planned>(m, "AllToAllV", "An all-to-all of unequal blocks, planned from its counts.")
      .def("__init__",
           [](Planned* at, std::int32_t width, Column<std::int32_t> order, bool crossing, Column<Amount> near, Column<Amount> far,
              Column<Amount> counts, Amount least_saved) {
             if (width < 1 || order.size() % static_cast<std::size_t>(width)) throw std::invalid_argument("boxes have one width");
             RailNetwork network{static_cast<std::int32_t>(order.size()) / width, width, copied(order), crossing, copied(near), copied(far)};
             new (at) Planned(std::move(network), counts, least_saved);
           },
           nb::arg("width"), nb::arg("order"), nb::arg("crossing"), nb::arg("near"), nb::arg("far"), nb::arg("counts"), nb::arg("least_saved"))
      .def("relays", [](const Planned& self) { return self.plan.relays(); }, "Whether blocks pass other ranks.")
      .def("busiest", [](const Planned& self) { return pair(self.plan.busiest()); },
           "Elements of the busiest NIC or link inside a box, and its rate.")
      .def("busiest_directly", [](const Planned& self) { return pair(self.plan.busiest_directly()); },
           "The same if all went directly.")
      .def("parts", [](const Planned& self, std::int32_t rank) {
        std::vector<std::int32_t> source, out, into, target;
        std::vector<Amount> offset, length;
        for (const BlockPart& part : self.plan.parts(rank)) {
          source.push_back(part.source), out.push_back(part.out), into.push_back(part.into), target.push_back(part.target);
          offset.push_back(part.offset), length.push_back(part.length);
        }
        return nb::make_tuple(to_numpy(std::move(source)), to_numpy(std::move(out)), to_numpy(std::move(into)), to_numpy(std::move(target)),
                              to_numpy(std::move(offset)), to_numpy(std::move(length)));
      }, nb::arg("rank"), "(source, out, into, target, offset, length) of the parts that a rank knows.")
      .def("program", [](const Planned& self, std::int32_t rank, Amount piece) {
        RankColumns found = self.plan.program(rank, piece);
        return nb::make_tuple(to_numpy(std::move(found.step)), to_numpy(std::move(found.kind)), to_numpy(std::move(found.peer)),
                              to_numpy(std::move(found.tag)), to_numpy(std::move(found.buffer)), to_numpy(std::move(found.offset)),
                              to_numpy(std::move(found.length)), to_numpy(std::move(found.source)), to_numpy(std::move(found.source_offset)),
                              to_numpy(std::move(found.predecessors_start)), to_numpy(std::move(found.predecessors)), found.input,
                              found.output, found.scratch, found.pieces);
      }, nb::arg("rank"), nb::arg("piece"), "Columns of a rank's program, and elements of input, output and scratch memory, and pieces.");
}
