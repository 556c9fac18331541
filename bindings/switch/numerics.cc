// Bindings of numerics/: sums as switches make them.
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "numerics/block_float.h"
#include "numerics/fpisa.h"
#include "numerics/saturating.h"
#include "shared_memory/reduce.h"

using namespace coppice;
using namespace coppice::numerics;

namespace {

// A column that is written.
template <class T>
using Written = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Table = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

FpisaForm form_of(const std::string& format, bool full, int guard, int headroom) {
  const FloatFormat found = format == "float16"    ? FloatFormat::float16
                            : format == "bfloat16" ? FloatFormat::bfloat16
                                                   : FloatFormat::float32;
  return {found, full, guard, headroom};
}

template <class Bits>
nb::tuple add_fpisa(const std::string& format, bool full, int guard, int headroom, Written<std::int32_t> exponents,
                    Written<std::int32_t> mantissas, Column<Bits> values) {
  check_length("mantissas", mantissas.size(), exponents.size());
  check_length("values", values.size(), exponents.size());
  const FpisaCounts counts = fpisa_add(form_of(format, full, guard, headroom), exponents.data(), mantissas.data(), values.data(), values.size());
  return nb::make_tuple(counts.overflowed, counts.overwritten, counts.not_finite);
}

template <class Bits>
nb::object sum_floats(const Table<Bits>& rows, shm::DataType type) {
  std::vector<const void*> sources;
  for (std::size_t row = 0; row < rows.shape(0); ++row) sources.push_back(rows.data() + row * rows.shape(1));
  std::vector<Bits> sums(rows.shape(1));
  shm::combine_all(sums.data(), sources, sums.size(), type, shm::ReduceOp::sum);
  return to_numpy(std::move(sums));
}

}  // namespace

void init_numerics(nb::module_& m) {
  m.def("block_exponent", [](const Column<float>& values) { return block_exponent(values.data(), values.size()); }, nb::arg("values"),
        "Exponent that a block announces; 128 where a value is infinite or NaN.");
  m.def("block_scale", &block_scale, nb::arg("exponent"), nb::arg("workers"));
  m.def("block_quantise",
        [](const Column<float>& values, int exponent, int workers) {
          std::vector<std::int32_t> to(values.size());
          quantise(values.data(), to.data(), to.size(), exponent, workers);
          return to_numpy(std::move(to));
        }, nb::arg("values"), nb::arg("exponent"), nb::arg("workers"));
  m.def("block_dequantise",
        [](const Column<std::int32_t>& sums, int exponent, int workers) {
          std::vector<float> to(sums.size());
          dequantise(sums.data(), to.data(), to.size(), exponent, workers);
          return to_numpy(std::move(to));
        }, nb::arg("sums"), nb::arg("exponent"), nb::arg("workers"));
  m.def("add_saturating",
        [](Written<std::int32_t> to, const Column<std::int32_t>& values) {
          check_length("values", values.size(), to.size());
          return add_saturating(to.data(), values.data(), to.size());
        }, nb::arg("to"), nb::arg("values"), "Adds in place; how many sums came to an end of their range.");
  m.def("to_fixed",
        [](const Column<float>& values, double factor) {
          std::vector<std::int32_t> to(values.size());
          to_fixed(values.data(), to.data(), to.size(), factor);
          return to_numpy(std::move(to));
        }, nb::arg("values"), nb::arg("factor"));
  m.def("from_fixed",
        [](const Column<std::int32_t>& sums, double factor) {
          std::vector<float> to(sums.size());
          from_fixed(sums.data(), to.data(), to.size(), factor);
          return to_numpy(std::move(to));
        }, nb::arg("sums"), nb::arg("factor"));
  m.def("fpisa_add", add_fpisa<std::uint32_t>, nb::arg("kind"), nb::arg("full"), nb::arg("guard"), nb::arg("headroom"),
        nb::arg("exponents"), nb::arg("mantissas"), nb::arg("values"), "Adds bits of float32; (overflowed, overwritten, not finite).");
  m.def("fpisa_add", add_fpisa<std::uint16_t>, nb::arg("kind"), nb::arg("full"), nb::arg("guard"), nb::arg("headroom"),
        nb::arg("exponents"), nb::arg("mantissas"), nb::arg("values"), "The same of float16 or bfloat16.");
  m.def("fpisa_read",
        [](const std::string& format, int guard, bool nearest, const Column<std::int32_t>& exponents,
           const Column<std::int32_t>& mantissas) -> nb::object {
          check_length("mantissas", mantissas.size(), exponents.size());
          const FpisaForm form = form_of(format, true, guard, 0);
          auto read = [&](auto bits) {
            fpisa_read(form, exponents.data(), mantissas.data(), bits.data(), bits.size(), nearest);
            return to_numpy(std::move(bits));
          };
          if (form.format == FloatFormat::float32) return read(std::vector<std::uint32_t>(exponents.size()));
          return read(std::vector<std::uint16_t>(exponents.size()));
        }, nb::arg("kind"), nb::arg("guard"), nb::arg("nearest"), nb::arg("exponents"), nb::arg("mantissas"),
        "Bits of the sums in the format.");
  m.def("float_sum", [](const Table<float>& rows) { return sum_floats(rows, shm::DataType::float32); }, nb::arg("rows"));
  m.def("float_sum",
        [](const Table<std::uint16_t>& rows, bool bfloat16) {
          return sum_floats(rows, bfloat16 ? shm::DataType::bfloat16 : shm::DataType::float16);
        }, nb::arg("rows"), nb::arg("bfloat16"), "Sums of bits of half precision, added in float32 and rounded once.");
}
