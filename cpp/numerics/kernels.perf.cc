// Goals of the kernels of a switch and its workers: packets of 256 values that stay in the first-level cache.
// Usage: build/numerics/kernels.perf
#include <random>
#include <string>
#include <vector>

#include "numerics/block_float.h"
#include "numerics/fpisa.h"
#include "numerics/network_order.h"
#include "numerics/saturating.h"
#include "testing/perf.h"

using namespace coppice;
using namespace coppice::numerics;

namespace {

constexpr std::size_t kValues = 256;
constexpr int kPackets = 200'000;

template <class Work>
void measure(const std::string& what, std::size_t bytes_a_value, double goal_gb_per_s, Work&& work) {
  const double time = perf::seconds([&] {
    for (int packet = 0; packet < kPackets; ++packet) work();
  });
  const double bytes = static_cast<double>(bytes_a_value) * kValues * kPackets;
  perf::report(what + " (" + std::to_string(bytes / time / 1e9).substr(0, 5) + " GB/s)", time, bytes / goal_gb_per_s / 1e9);
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::vector<float> values(kValues), out(kValues);
  for (float& value : values) value = std::normal_distribution<float>()(random);
  std::vector<std::int32_t> a(kValues), b(kValues, 3), exponents(kValues), mantissas(kValues);
  std::vector<std::uint8_t> wire(4 * kValues + 10);
  volatile std::size_t kept = 0;
  std::uint8_t* payload = wire.data() + 10;
  measure("block exponent", 4, 4, [&] { kept = kept + static_cast<std::size_t>(block_exponent(values.data(), kValues)); });
  measure("quantise", 4, 3, [&] { quantise(values.data(), a.data(), kValues, 3, 8); });
  measure("quantise into a payload", 4, 3, [&] { quantise_big_endian(values.data(), payload, kValues, 3, 8); });
  measure("values of a payload", 4, 3, [&] { dequantise_big_endian(payload, out.data(), kValues, 3, 8); });
  measure("add a payload, wrapping", 4, 4, [&] { add_payload(a.data(), payload, kValues); });
  measure("add a payload, saturating", 4, 3, [&] { kept = kept + add_payload_saturating(a.data(), payload, kValues); });
  measure("write a payload", 4, 4, [&] { store_payload(payload, a.data(), kValues); });
  measure("to fixed point", 4, 3, [&] { kept = kept + to_fixed(values.data(), a.data(), kValues); });
  measure("from fixed point", 4, 3, [&] { kept = kept + from_fixed(a.data(), out.data(), kValues); });
  for (bool full : {true, false}) {
    const FpisaForm form{FloatFormat::float32, full, 0, 7};
    fpisa_clear(exponents.data(), mantissas.data(), kValues);
    for (float& value : values) value = -value;
    measure(full ? "FPISA, full" : "FPISA, approximate", 4, 1,
            [&] { kept = kept + static_cast<std::size_t>(fpisa_add(form, exponents.data(), mantissas.data(), values.data(), kValues).not_finite); });
    measure("FPISA, read", 4, 0.5, [&] { fpisa_read(form, exponents.data(), mantissas.data(), out.data(), kValues, true); });
  }
}
