#include "collnet/elements.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace coppice::collnet {

namespace {

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// A small float's bits (without its sign) for a magnitude that it can round to: nearest, ties to even.
std::uint32_t rounded(float magnitude, int mantissa, int bias) {
  int exponent;
  std::frexp(magnitude, &exponent);                            // magnitude = m * 2^exponent, m in [0.5, 1)
  int step = std::max(exponent - 1, 1 - bias) - mantissa;      // of the last bit, as a power of two
  auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, -step)));
  int field = step + mantissa + bias;                          // of a normal number; 1 for subnormal ones too
  return units + (static_cast<std::uint32_t>(field - 1) << mantissa);  // a carry moves on into the exponent
}

float widened(std::uint32_t bits, int mantissa, int bias) {
  std::uint32_t field = bits >> mantissa, fraction = bits & ((1u << mantissa) - 1);
  return field ? std::ldexp(static_cast<float>(fraction + (1u << mantissa)), static_cast<int>(field) - bias - mantissa)
               : std::ldexp(static_cast<float>(fraction), 1 - bias - mantissa);
}

struct Half {
  using Bits = std::uint16_t;
  static float read(Bits bits) { return from_half(bits); }
  static Bits write(float value) { return to_half(value); }
};

struct Bfloat {
  using Bits = std::uint16_t;
  static float read(Bits bits) { return from_bfloat(bits); }
  static Bits write(float value) { return to_bfloat(value); }
};

template <int Type>
struct Float8 {
  using Bits = std::uint8_t;
  static float read(Bits bits) {
    static const std::array<float, 256> table = [] {
      std::array<float, 256> made{};
      for (int code = 0; code < 256; code++) made[code] = from_float8(static_cast<Bits>(code), Type);
      return made;
    }();
    return table[bits];
  }
  static Bits write(float value) { return to_float8(value, Type); }
};

template <class Value>
struct Plain {
  using Bits = Value;
  static Value read(Bits bits) { return bits; }
  static Bits write(Value value) { return value; }
};

template <class Form, class Combine>
void apply(void* into, const void* from, std::size_t count, Combine combine) {
  using Bits = typename Form::Bits;
  auto* a = static_cast<Bits*>(into);
  const auto* b = static_cast<const Bits*>(from);
  for (std::size_t i = 0; i < count; i++) a[i] = Form::write(combine(Form::read(a[i]), Form::read(b[i])));
}

template <class Form>
void by_reduction(void* into, const void* from, std::size_t count, int reduction) {
  using Value = decltype(Form::read({}));
  switch (reduction) {
    case kSum:
      return apply<Form>(into, from, count, [](Value a, Value b) { return static_cast<Value>(a + b); });
    case kProduct:
      return apply<Form>(into, from, count, [](Value a, Value b) { return static_cast<Value>(a * b); });
    case kMaximum:
      return apply<Form>(into, from, count, [](Value a, Value b) { return a > b || b != b ? a : b; });
    default:
      return apply<Form>(into, from, count, [](Value a, Value b) { return a < b || b != b ? a : b; });
  }
}

}  // namespace

std::size_t bytes_of(int type) {
  static constexpr std::size_t kBytes[kDataTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < kDataTypes ? kBytes[type] : 0;
}

bool reduces(int type, int reduction) {
  return type >= 0 && type < kDataTypes && reduction >= 0 && reduction < kReductions;
}

void reduce(void* into, const void* from, std::size_t count, int type, int reduction) {
  switch (type) {  // integers as unsigned ones where only overflow would differ
    case kInt8:
      return by_reduction<Plain<std::int8_t>>(into, from, count, reduction);
    case kUint8:
      return by_reduction<Plain<std::uint8_t>>(into, from, count, reduction);
    case kInt32:
      return reduction <= kProduct ? by_reduction<Plain<std::uint32_t>>(into, from, count, reduction)
                                   : by_reduction<Plain<std::int32_t>>(into, from, count, reduction);
    case kUint32:
      return by_reduction<Plain<std::uint32_t>>(into, from, count, reduction);
    case kInt64:
      return reduction <= kProduct ? by_reduction<Plain<std::uint64_t>>(into, from, count, reduction)
                                   : by_reduction<Plain<std::int64_t>>(into, from, count, reduction);
    case kUint64:
      return by_reduction<Plain<std::uint64_t>>(into, from, count, reduction);
    case kFloat16:
      return by_reduction<Half>(into, from, count, reduction);
    case kFloat32:
      return by_reduction<Plain<float>>(into, from, count, reduction);
    case kFloat64:
      return by_reduction<Plain<double>>(into, from, count, reduction);
    case kBfloat16:
      return by_reduction<Bfloat>(into, from, count, reduction);
    case kFloat8e4m3:
      return by_reduction<Float8<kFloat8e4m3>>(into, from, count, reduction);
    default:
      return by_reduction<Float8<kFloat8e5m2>>(into, from, count, reduction);
  }
}

float from_bfloat(std::uint16_t bits) { return of_bits(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t to_bfloat(float value) {
  std::uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// Bit tricks in place of `widened` and `rounded`, which are several times slower.
float from_half(std::uint16_t bits) {
  std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16, rest = static_cast<std::uint32_t>(bits & 0x7fff) << 13;
  float scaled = of_bits(rest) * of_bits(0x77800000);  // 2^112: subnormal numbers come out right
  std::uint32_t found = bits_of(scaled);
  if ((bits & 0x7c00) == 0x7c00) found = rest | 0x7f800000u;
  return of_bits(found | sign);
}

std::uint16_t to_half(float value) {
  std::uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00);  // 65520 and more
  if (magnitude < 0x38800000u) {                                                    // subnormal: in units of 2^-24
    float shifted = of_bits(magnitude) + 0.5f;                                      // whose last bit is 2^-24
    return static_cast<std::uint16_t>(sign | (bits_of(shifted) - 0x3f000000u));
  }
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13));
}

float from_float8(std::uint8_t bits, int type) {
  bool wide = type == kFloat8e5m2;
  std::uint32_t rest = bits & 0x7fu;
  float found = widened(rest, wide ? 2 : 3, wide ? 15 : 7);
  if (wide && rest == 0x7c) found = std::numeric_limits<float>::infinity();
  if (wide ? rest > 0x7c : rest == 0x7f) found = std::numeric_limits<float>::quiet_NaN();
  return std::signbit(of_bits(static_cast<std::uint32_t>(bits) << 24)) ? -found : found;
}

std::uint8_t to_float8(float value, int type) {
  bool wide = type == kFloat8e5m2;
  std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  float magnitude = std::fabs(value), largest = wide ? 57344.0f : 448.0f;
  if (std::isnan(value)) return static_cast<std::uint8_t>(sign | 0x7f);
  if (magnitude >= largest) return static_cast<std::uint8_t>(sign | (wide ? 0x7b : 0x7e));
  if (magnitude == 0) return sign;
  return static_cast<std::uint8_t>(sign | rounded(magnitude, wide ? 2 : 3, wide ? 15 : 7));
}

}  // namespace coppice::collnet
