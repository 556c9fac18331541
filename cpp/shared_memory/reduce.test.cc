#include "shared_memory/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "shared_memory/float16.h"
#include "testing/testing.h"

using namespace coppice::shm;

namespace {

template <class T>
T one(DataType type, ReduceOp op, T a, T b) {
  // Long enough for vector code, and a rest.
  constexpr std::size_t n = 37;
  std::vector<T> x(n, a), y(n, b), to(n);
  combine(to.data(), x.data(), y.data(), n, type, op);
  for (const T& value : to) {
    if (std::memcmp(&value, &to[0], sizeof(T)) != 0) coppice::testing::fail(__FILE__, __LINE__, "elements differ");
  }
  return to[0];
}

/// float16 by definition: nearest multiple of the spacing at its magnitude, ties to even.
float to_half_and_back(float x) {
  if (std::isnan(x) || std::isinf(x)) return x;
  int exponent = x == 0 ? -14 : std::max(-14, std::ilogb(x));
  double spacing = std::ldexp(1.0, exponent - 10);
  double rounded = std::nearbyint(x / spacing) * spacing;
  return std::abs(rounded) >= 65520 ? std::copysign(std::numeric_limits<float>::infinity(), x) : static_cast<float>(rounded);
}

}  // namespace

TEST(integers_wrap_around) {
  CHECK_EQ(one<std::int32_t>(DataType::int32, ReduceOp::sum, 2147483647, 1), std::numeric_limits<std::int32_t>::min());
  CHECK_EQ(one<std::uint16_t>(DataType::uint16, ReduceOp::product, 65535, 65535), 1);
  CHECK_EQ(one<std::int64_t>(DataType::int64, ReduceOp::product, std::numeric_limits<std::int64_t>::min(), -1),
           std::numeric_limits<std::int64_t>::min());
  CHECK_EQ(static_cast<int>(one<std::int8_t>(DataType::int8, ReduceOp::sum, 127, 127)), -2);
}

TEST(comparisons_know_signs_and_nan) {
  CHECK_EQ(static_cast<int>(one<std::int8_t>(DataType::int8, ReduceOp::min, -1, 1)), -1);
  CHECK_EQ(static_cast<int>(one<std::uint8_t>(DataType::uint8, ReduceOp::max, 255, 1)), 255);
  float nan = std::numeric_limits<float>::quiet_NaN();
  for (ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    CHECK(std::isnan(one<float>(DataType::float32, op, nan, 1)));
    CHECK(std::isnan(one<float>(DataType::float32, op, 1, nan)));
  }
  CHECK_EQ(one<double>(DataType::float64, ReduceOp::max, -2, -3), -2);
}

TEST(bool_is_or_and_and) {
  for (int a : {0, 1}) {
    for (int b : {0, 1}) {
      auto value = [&](ReduceOp op) { return static_cast<int>(one<std::uint8_t>(DataType::boolean, op, static_cast<std::uint8_t>(a), static_cast<std::uint8_t>(b))); };
      CHECK_EQ(value(ReduceOp::sum), a | b);
      CHECK_EQ(value(ReduceOp::max), a | b);
      CHECK_EQ(value(ReduceOp::product), a & b);
      CHECK_EQ(value(ReduceOp::min), a & b);
      CHECK_EQ(value(ReduceOp::bxor), a ^ b);
    }
  }
  CHECK_EQ(static_cast<int>(one<std::uint8_t>(DataType::boolean, ReduceOp::sum, 2, 2)), 1);
}

TEST(every_half_survives_widening) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    Float16 half{static_cast<std::uint16_t>(bits)};
    float wide = widen(half);
    bool is_nan = (bits & 0x7c00) == 0x7c00 && (bits & 0x3ff);
    CHECK_EQ(std::isnan(wide), is_nan);
    if (is_nan) {
      CHECK(std::isnan(widen(narrow_float16(wide))));
    } else {
      CHECK_EQ(narrow_float16(wide).bits, half.bits);
      CHECK_EQ(to_half_and_back(wide), wide);
    }
    // By arrays, with the processor's own instructions where it has them.
    std::array<Float16, 11> from, back;
    std::array<float, 11> floats;
    from.fill(half);
    widen(floats.data(), from.data(), from.size());
    narrow(back.data(), floats.data(), from.size());
    CHECK(is_nan ? std::isnan(floats[0]) && std::isnan(floats[10]) : floats[0] == wide && floats[10] == wide);
    CHECK(is_nan || (back[0].bits == bits && back[10].bits == bits));
  }
}

TEST(halves_round_to_even) {
  std::uint32_t state = 1;
  for (int i = 0; i < 200000; ++i) {
    state = state * 1664525 + 1013904223;
    // Magnitudes from 2^-27 to 2^18, often with just the bits that make a tie.
    std::uint32_t mantissa = i % 3 == 0 ? state & 0x7ff000 : state & 0x7fffff;
    float x = std::bit_cast<float>((state & 0x80000000) | (100 + state % 46) << 23 | mantissa);
    CHECK_EQ(widen(narrow_float16(x)), to_half_and_back(x));
  }
}

TEST(bfloat16_rounds_to_even) {
  auto rounded = [](std::uint32_t bits) { return narrow_bfloat16(std::bit_cast<float>(bits)).bits; };
  CHECK_EQ(rounded(0x3f808000), 0x3f80);  // a tie: down to even
  CHECK_EQ(rounded(0x3f818000), 0x3f82);  // a tie: up to even
  CHECK_EQ(rounded(0x3f808001), 0x3f81);
  CHECK_EQ(rounded(0x7f7fffff), 0x7f80);  // to infinity
  CHECK_EQ(rounded(0x7f800001) & 0x7fc0, 0x7fc0);  // NaN stays NaN
  CHECK_EQ(rounded(0xff800000), 0xff80);
}

TEST(sums_of_narrow_floats_round_once) {
  // 256 + 1 + 1 in bfloat16: each 1 alone is lost, together they are 2.
  std::array<BFloat16, 20> large, small, to;
  large.fill(narrow_bfloat16(256));
  small.fill(narrow_bfloat16(1));
  std::array<const void*, 3> sources{large.data(), small.data(), small.data()};
  combine_all(to.data(), sources, to.size(), DataType::bfloat16, ReduceOp::sum);
  CHECK_EQ(widen(to[19]), 258.0f);
  // 3 x 60000 / 3 in float16, whose largest number is 65504.
  std::array<Float16, 20> big, mean;
  big.fill(narrow_float16(60000));
  std::array<const void*, 3> thrice{big.data(), big.data(), big.data()};
  combine_all(mean.data(), thrice, mean.size(), DataType::float16, ReduceOp::avg);
  CHECK_EQ(widen(mean[19]), 60000.0f);
}

TEST(a_sum_may_overwrite_any_source) {
  constexpr std::size_t n = 5000;
  for (std::size_t target = 0; target < 4; ++target) {
    std::vector<std::vector<std::int32_t>> data(4, std::vector<std::int32_t>(n));
    std::array<const void*, 4> sources;
    for (std::size_t k = 0; k < 4; ++k) {
      for (std::size_t i = 0; i < n; ++i) data[k][i] = static_cast<std::int32_t>((k + 1) * 1000003 * i);
      sources[k] = data[k].data();
    }
    combine_all(data[target].data(), sources, n, DataType::int32, ReduceOp::sum);
    for (std::size_t i = 0; i < n; ++i) CHECK_EQ(data[target][i], static_cast<std::int32_t>(10 * 1000003 * i));
  }
}

TEST(division_cuts_towards_zero) {
  std::array<std::int32_t, 3> x{-7, 7, 8};
  divide(x.data(), x.size(), 2, DataType::int32);
  CHECK(x == (std::array<std::int32_t, 3>{-3, 3, 4}));
  std::array<std::uint64_t, 1> y{~std::uint64_t{0}};
  divide(y.data(), 1, 2, DataType::uint64);
  CHECK_EQ(y[0], ~std::uint64_t{0} / 2);
}

TEST(copies_past_caches_are_copies) {
  std::vector<std::byte> from(1000), to(1000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7);
  for (std::size_t begin : {0, 1, 63, 64}) {
    for (std::size_t length : {0, 1, 63, 64, 65, 500, 900}) {
      std::fill(to.begin(), to.end(), std::byte{0xee});
      copy_past_caches(to.data() + begin, from.data() + 3, length);
      CHECK(std::memcmp(to.data() + begin, from.data() + 3, length) == 0);
      CHECK(to[begin + length] == std::byte{0xee});
    }
  }
}

TEST(operations_serve_types) {
  CHECK(!serves(ReduceOp::bxor, DataType::float16) && !serves(ReduceOp::avg, DataType::boolean));
  CHECK(serves(ReduceOp::bxor, DataType::boolean) && serves(ReduceOp::avg, DataType::int8));
  CHECK_EQ(item_size(DataType::boolean), 1u);
  CHECK_EQ(item_size(DataType::bfloat16), 2u);
}
