#include "numerics/fpisa.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "testing/testing.h"

using namespace coppice::numerics;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Sum {
  float value;
  FpisaCounts counts;
};

Sum sum_of(const std::vector<float>& values, const FpisaForm& form = {}, bool nearest = true) {
  // As long as a vector and a rest, all lanes alike.
  constexpr std::size_t n = 19;
  std::vector<std::int32_t> exponents(n), mantissas(n);
  fpisa_clear(exponents.data(), mantissas.data(), n);
  FpisaCounts counts;
  for (float value : values) {
    std::vector<float> lanes(n, value);
    FpisaCounts more = fpisa_add(form, exponents.data(), mantissas.data(), lanes.data(), n);
    counts.overflowed += more.overflowed / static_cast<int>(n);
    counts.overwritten += more.overwritten / static_cast<int>(n);
    counts.not_finite += more.not_finite / static_cast<int>(n);
  }
  std::vector<float> read(n);
  fpisa_read(form, exponents.data(), mantissas.data(), read.data(), n, nearest);
  for (float each : read) CHECK_EQ(std::bit_cast<std::uint32_t>(each), std::bit_cast<std::uint32_t>(read[0]));
  return {read[0], counts};
}

constexpr FpisaForm kApproximate{FloatFormat::float32, false, 0, 7};

}  // namespace

TEST(fpisa_reads_back_what_it_was_given) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    for (const FpisaForm& form : {FpisaForm{}, kApproximate, FpisaForm{FloatFormat::float32, true, 7, 0}}) {
      CHECK(sum_of({value}, form).value == value);
      CHECK(sum_of({value}, form, false).value == value);
    }
  }
}

TEST(fpisa_adds_small_whole_numbers_exactly) {
  CHECK_EQ(sum_of({1, 2, 3, -4, 1000, 0}).value, 1002.0f);
  CHECK_EQ(sum_of({5, -5, 3}).value, 3.0f);
  CHECK_EQ(sum_of({0, -0.0f}).value, 0.0f);
  CHECK_EQ(sum_of({3, 2, 1}, kApproximate).value, 6.0f);
  CHECK_EQ(sum_of({1, 2, 3}, kApproximate).value, 6.0f);
  const float least = std::numeric_limits<float>::denorm_min();
  CHECK_EQ(sum_of({least, least, -3 * least}).value, -least);
  CHECK_EQ(sum_of({1, least}).value, 1.0f);
  CHECK(sum_of({1, -least}, {}, false).value < 1.0f);  // shifts round down
}

TEST(fpisa_sums_are_too_small_by_less_than_a_unit_for_each_value) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    std::vector<float> values(2 + round % 30);
    double exact = 0, most = 0;
    for (float& value : values) {
      value = std::ldexp(std::normal_distribution<float>()(random), static_cast<int>(random() % 20));
      exact += value;
      most = std::max(most, std::abs(double{value}));
    }
    for (int guard : {0, 2}) {
      const FpisaForm form{FloatFormat::float32, true, guard, 0};
      const double unit = std::ldexp(1.0, std::ilogb(most) - 23 - guard);
      const Sum sum = sum_of(values, form);
      CHECK_EQ(sum.counts.overflowed, 0);
      const double half = std::ldexp(1.0, std::max(std::ilogb(sum.value), -126) - 24);
      CHECK(sum.value <= exact + half);
      CHECK(sum.value > exact - static_cast<double>(values.size() - 1) * unit - half);
    }
  }
}

TEST(fpisa_sums_depend_on_the_order) {
  const float small = 0x1p-24f;
  CHECK_EQ(sum_of({1, -small}, {}, true).value, 1 - 0x1p-23f);  // 1 ulp below: -2^-24 was shifted to -1 unit
  CHECK(sum_of({small, small, 1}, {}, true).value != sum_of({1, small, small}, {}, true).value);
}

TEST(approximate_fpisa_counts_what_it_overwrites) {
  Sum within = sum_of({1, 128}, kApproximate);
  CHECK_EQ(within.value, 129.0f);
  CHECK_EQ(within.counts.overwritten, 0);
  Sum beyond = sum_of({1, 256}, kApproximate);
  CHECK_EQ(beyond.value, 256.0f);  // the 1 is lost
  CHECK_EQ(beyond.counts.overwritten, 1);
  CHECK_EQ(sum_of({256, 1}, kApproximate).value, 257.0f);
  CHECK_EQ(sum_of({0, 256}, kApproximate).counts.overwritten, 0);
  CHECK_EQ(sum_of({1, -1, 1e20f}, kApproximate).counts.overwritten, 0);
  CHECK_EQ(sum_of({1, 1e20f, 1}, kApproximate).counts.overwritten, 1);
}

TEST(fpisa_marks_sums_that_leave_the_register) {
  std::vector<float> values(128, 0x1.fffffep0f);
  CHECK_EQ(sum_of(values).counts.overflowed, 0);  // 128 (2^24 - 1) < 2^31
  values.push_back(0x1.fffffep0f);
  Sum over = sum_of(values);
  CHECK_EQ(over.counts.overflowed, 1);
  CHECK(std::isnan(over.value));
  values.push_back(-1);
  CHECK(std::isnan(sum_of(values).value));
  CHECK_EQ(sum_of(values).counts.overflowed, 1);  // once
  std::vector<float> exactly(128, -1.0f);
  CHECK_EQ(sum_of(exactly, {FloatFormat::float32, true, 0, 0}).value, -128.0f);
  exactly.resize(256, -1.0f);
  CHECK_EQ(sum_of(exactly, {FloatFormat::float32, true, 0, 0}).counts.overflowed, 1);  // |M| = 2^31
}

TEST(fpisa_reads_infinities_and_nan_as_ieee_does) {
  CHECK_EQ(sum_of({1, kInfinity, 2}).value, kInfinity);
  CHECK_EQ(sum_of({1, -kInfinity, kInfinity * -1}).value, -kInfinity);
  CHECK(std::isnan(sum_of({kInfinity, -kInfinity}).value));
  CHECK(std::isnan(sum_of({std::nanf(""), 1}).value));
  CHECK_EQ(sum_of({kInfinity, std::nanf("")}).counts.not_finite, 2);
  const float most = std::numeric_limits<float>::max();
  CHECK_EQ(sum_of({most, most}).value, kInfinity);
  CHECK_EQ(sum_of({most, most}, {}, false).value, most);
  CHECK_EQ(sum_of({-most, -most}, {}, false).value, -most);
  CHECK_EQ(sum_of({most, most, -most}).value, most);  // the register has room beyond float32
}

TEST(fpisa_refuses_forms_beyond_its_register) {
  std::int32_t exponent = 1, mantissa = 0;
  const float value = 1;
  for (FpisaForm form : {FpisaForm{FloatFormat::float32, true, 8, 0}, FpisaForm{FloatFormat::float32, false, 1, 7},
                         FpisaForm{FloatFormat::float16, true, -1, 0}, FpisaForm{FloatFormat::bfloat16, false, 0, 24}}) {
    CHECK_THROWS(std::invalid_argument, fpisa_add(form, &exponent, &mantissa, &value, 1));
  }
}
