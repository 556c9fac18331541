// Binding of shared_memory/: one rank's end of a shared memory segment.
#include <nanobind/stl/string.h>

#include <array>
#include <memory>
#include <vector>

#include "bindings.h"
#include "shared_memory/direct.h"
#include "shared_memory/program.h"

using namespace coppice;

namespace {

/// A rank of a segment. The segment is shared with the other ranks of the process.
struct Endpoint {
  Endpoint(std::shared_ptr<shm::Segment> shared, int number)
      : segment(std::move(shared)), rank(number), direct(*segment, number), executor(*segment, number) {
    segment->attach(rank);
  }
  Endpoint(const Endpoint&) = delete;
  ~Endpoint() { segment->leave(rank); }

  std::shared_ptr<shm::Segment> segment;
  int rank;
  shm::Direct direct;
  shm::Executor executor;
  std::vector<std::byte> scratch;
};

std::byte* memory_at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

/// None, or what went wrong: (kind, culprit, by).
template <class Work>
nb::object outcome(Work&& work) {
  shm::Fault fault;
  try {
    try {
      nb::gil_scoped_release release;
      work(signal_flag());
    } catch (const shm::Failed& failed) {
      fault = failed.fault;
    }
  } catch (const shm::SegmentError& error) {
    raise_coppice("CoppiceError", error.what());
  }
  if (PyErr_Occurred()) throw nb::python_error();
  if (fault.kind == shm::FaultKind::none) return nb::none();
  return nb::make_tuple(static_cast<int>(fault.kind), fault.culprit, fault.by);
}

shm::DataType checked_type(int number) {
  if (number < 0 || number >= shm::kDataTypes) throw std::invalid_argument("expected the number of an element type");
  return static_cast<shm::DataType>(number);
}

shm::ReduceOp checked_op(int number) {
  if (number < 0 || number >= shm::kReduceOps) throw std::invalid_argument("expected the number of an operation");
  return static_cast<shm::ReduceOp>(number);
}

shm::Program make_program(int rank, int ranks, std::array<std::int64_t, 3> elements, Column<std::int8_t> kind,
                          Column<std::int32_t> peer, Column<std::int32_t> tag, Column<std::int8_t> place,
                          Column<std::int64_t> offset, Column<std::int64_t> length, Column<std::int8_t> source,
                          Column<std::int64_t> source_offset, Column<std::int64_t> needs_start,
                          Column<std::int32_t> needs) {
  return shm::Program({rank,
                       ranks,
                       {elements[0], elements[1], elements[2]},
                       view(kind),
                       view(peer),
                       view(tag),
                       view(place),
                       view(offset),
                       view(length),
                       view(source),
                       view(source_offset),
                       view(needs_start),
                       view(needs)});
}

nb::object run_program(Endpoint& self, const shm::Program& program, std::uintptr_t input, std::uintptr_t output,
                       std::size_t scratch_bytes, std::int64_t result_offset, std::int64_t result_elements, int type,
                       int op, std::uint64_t run, double timeout_s) {
  shm::DataType data_type = checked_type(type);
  shm::ReduceOp operation = checked_op(op);
  return outcome([&](const StopFlag& stop) {
    if (self.scratch.size() < scratch_bytes) self.scratch.resize(scratch_bytes);
    shm::ProgramCall call{{memory_at(input), memory_at(output), self.scratch.data()},
                          data_type,
                          operation,
                          run,
                          result_offset,
                          result_elements};
    self.executor.run(program, call, timeout_s, stop);
  });
}

nb::object run_direct(Endpoint& self, int collective, std::uintptr_t input, std::uintptr_t output,
                      Column<std::int64_t> bounds, int type, int op, int root, double timeout_s) {
  check_length("bounds", bounds.size(), static_cast<std::size_t>(self.segment->ranks()) + 1);
  if (collective < 0 || collective > static_cast<int>(shm::Collective::barrier)) {
    throw std::invalid_argument("expected the number of a collective");
  }
  shm::DirectCall call{static_cast<shm::Collective>(collective), memory_at(input), memory_at(output), view(bounds),
                       checked_type(type), checked_op(op), root};
  return outcome([&](const StopFlag& stop) { self.direct.run(call, timeout_s, stop); });
}

using SharedSegment = std::shared_ptr<shm::Segment>;

/// A segment, or the error of coppice.errors that says why there is none.
template <class Make>
SharedSegment made(Make&& make) {
  try {
    return std::make_shared<shm::Segment>(make());
  } catch (const shm::SegmentError& error) {
    raise_coppice("CoppiceError", error.what());
  }
}

}  // namespace

void init_shm(nb::module_& m) {
  m.attr("SHM_LAYOUT") = shm::kLayout;
  nb::class_<shm::Program>(m, "ShmProgram", "A checked program of one rank, see coppice.program.dialects.rank.program.")
      .def("__init__", [](shm::Program* at, int rank, int ranks, std::int64_t input_elements, std::int64_t output_elements,
                          std::int64_t scratch_elements, Column<std::int8_t> kind, Column<std::int32_t> peer,
                          Column<std::int32_t> tag, Column<std::int8_t> place, Column<std::int64_t> offset,
                          Column<std::int64_t> length, Column<std::int8_t> source, Column<std::int64_t> source_offset,
                          Column<std::int64_t> needs_start, Column<std::int32_t> needs) {
        new (at) shm::Program(make_program(rank, ranks, {input_elements, output_elements, scratch_elements}, kind, peer,
                                           tag, place, offset, length, source, source_offset, needs_start, needs));
      });
  nb::class_<Endpoint>(m, "ShmRank", "One rank's end of a shared memory segment; made by the functions shm_...")
      .def_prop_ro("ranks", [](const Endpoint& self) { return self.segment->ranks(); })
      .def_prop_ro("path", [](const Endpoint& self) { return self.segment->path(); })
      .def("unlink", [](Endpoint& self) { self.segment->unlink(); }, "Removes the name of the segment.")
      .def("leave", [](Endpoint& self) { self.segment->leave(self.rank); }, "This rank does nothing any more.")
      .def("give_up", [](Endpoint& self) { self.segment->announce({shm::FaultKind::interrupted, self.rank, self.rank}); },
           "Makes all ranks fail.")
      .def("run_program", run_program, "None, or what went wrong: (kind, culprit, by).")
      .def("run_direct", run_direct, "None, or what went wrong: (kind, culprit, by).");
  m.def(
      "shm_create",
      [](const std::string& path, int ranks, std::uint64_t host, std::uint64_t slot_bytes, std::uint64_t slots,
         std::uint64_t ring_bytes) {
        SharedSegment segment = made([&] { return shm::Segment::create(path, ranks, host, {slot_bytes, slots, ring_bytes}); });
        return new Endpoint(segment, 0);
      },
      nb::rv_policy::take_ownership, "Rank 0 of a new segment in a file, without a name where the path is empty.");
  m.def(
      "shm_open",
      [](const std::string& path, int rank, int ranks, std::uint64_t host) {
        SharedSegment segment = made([&] { return shm::Segment::open(path, ranks, host); });
        try {
          return new Endpoint(segment, rank);
        } catch (const shm::SegmentError& error) {
          raise_coppice("CoppiceError", error.what());
        }
      },
      nb::rv_policy::take_ownership, "A further rank of a segment that another process has created.");
  m.def(
      "shm_threads",
      [](int ranks, std::uint64_t slot_bytes, std::uint64_t slots, std::uint64_t ring_bytes) {
        SharedSegment segment = made([&] { return shm::Segment::anonymous(ranks, {slot_bytes, slots, ring_bytes}); });
        nb::list all;
        for (int rank = 0; rank < ranks; ++rank) all.append(nb::cast(new Endpoint(segment, rank), nb::rv_policy::take_ownership));
        return all;
      },
      "All ranks of a segment of this process.");
}
