#include "collnet/elements.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "testing/testing.h"

using namespace coppice::collnet;

namespace {

/// The code whose value is nearest, of two equally near ones the even code: by looking at all.
template <class Decode>
int nearest(float value, int codes, float largest, Decode decode) {
  int best = -1;
  double least = 0;
  for (int code = 0; code < codes; code++) {  // magnitudes
    float other = decode(code);
    if (!std::isfinite(other) || other > largest) continue;
    double off = std::fabs(static_cast<double>(other) - std::fabs(value));
    if (best < 0 || off < least || (off == least && code % 2 == 0)) best = code, least = off;
  }
  return best;
}

template <class Value>
Value once(Value a, Value b, int type, int reduction) {
  reduce(&a, &b, 1, type, reduction);
  return a;
}

}  // namespace

TEST(elements_float8_goes_to_the_nearest) {
  for (int type : {kFloat8e4m3, kFloat8e5m2}) {
    float largest = type == kFloat8e4m3 ? 448.0f : 57344.0f;
    auto decode = [&](int code) { return from_float8(static_cast<std::uint8_t>(code), type); };
    for (int code = 0; code < 128; code++) {
      float value = decode(code);
      if (!std::isfinite(value)) continue;
      CHECK_EQ(static_cast<int>(to_float8(value, type)), code);
      CHECK_EQ(static_cast<int>(to_float8(-value, type)), code | 0x80);
      for (float part : {0.3f, 0.5f, 0.7f}) {
        float next = decode(code + 1);
        if (!std::isfinite(next)) continue;
        float between = value + part * (next - value);
        CHECK_EQ(static_cast<int>(to_float8(between, type)), nearest(between, 128, largest, decode));
      }
    }
    CHECK_EQ(from_float8(to_float8(1e9f, type), type), largest);
    CHECK(std::isnan(from_float8(to_float8(NAN, type), type)));
  }
}

TEST(elements_half_and_bfloat_round_trip) {
  for (int code = 0; code < 65536; code++) {
    auto bits = static_cast<std::uint16_t>(code);
    if (!std::isnan(from_half(bits))) CHECK_EQ(to_half(from_half(bits)), bits);
    if (!std::isnan(from_bfloat(bits))) CHECK_EQ(to_bfloat(from_bfloat(bits)), bits);
  }
  CHECK_EQ(from_half(0x3c00), 1.0f);
  CHECK_EQ(from_half(0x0001), std::ldexp(1.0f, -24));
  CHECK_EQ(to_half(65519.0f), 0x7bff);
  CHECK_EQ(to_half(65520.0f), 0x7c00);
  CHECK_EQ(to_half(1.0f + std::ldexp(1.0f, -11)), 0x3c00);      // a tie: to even
  CHECK_EQ(to_half(1.0f + 3 * std::ldexp(1.0f, -11)), 0x3c02);
  CHECK_EQ(to_half(std::ldexp(3.0f, -26)), 0x0001);
  CHECK(std::isnan(from_half(to_half(NAN))));
  CHECK_EQ(to_bfloat(1.0f + std::ldexp(1.0f, -8)), 0x3f80);
  CHECK(std::isnan(from_bfloat(to_bfloat(NAN))));
}

TEST(elements_reductions) {
  CHECK_EQ(once<std::int8_t>(100, 100, kInt8, kSum), static_cast<std::int8_t>(-56));
  CHECK_EQ(once<std::int32_t>(2147483647, 1, kInt32, kSum), std::numeric_limits<std::int32_t>::min());
  CHECK_EQ(once<std::int32_t>(-3, 2, kInt32, kProduct), -6);
  CHECK_EQ(once<std::int32_t>(-3, 2, kInt32, kMaximum), 2);
  CHECK_EQ(once<std::uint32_t>(4000000000u, 2, kUint32, kMinimum), 2u);
  CHECK_EQ(once<std::int64_t>(-5, 3, kInt64, kMinimum), std::int64_t{-5});
  CHECK_EQ(once<std::uint64_t>(1u, 3u, kUint64, kMaximum), std::uint64_t{3});
  CHECK_EQ(once<double>(1.5, 2.0, kFloat64, kProduct), 3.0);
  CHECK_EQ(once<float>(NAN, 2.0f, kFloat32, kMaximum), 2.0f);
  CHECK_EQ(once<float>(2.0f, NAN, kFloat32, kMinimum), 2.0f);
  CHECK_EQ(from_half(once<std::uint16_t>(to_half(1.5f), to_half(2), kFloat16, kSum)), 3.5f);
  CHECK_EQ(from_bfloat(once<std::uint16_t>(to_bfloat(1.5f), to_bfloat(2), kBfloat16, kProduct)), 3.0f);
  CHECK(reduces(kFloat8e5m2, kMinimum));
  CHECK(!reduces(kDataTypes, kSum));
  CHECK(!reduces(kInt8, kReductions));
  CHECK_EQ(bytes_of(kInt64), std::size_t{8});
  CHECK_EQ(bytes_of(-1), std::size_t{0});
}
