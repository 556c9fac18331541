#include "numerics/fpisa.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "numerics/clones.h"

namespace coppice::numerics {

namespace {

template <FloatFormat format>
struct Layout {
  static constexpr int kFraction = format == FloatFormat::float32 ? 23 : format == FloatFormat::float16 ? 10 : 7;
  static constexpr int kExponent = format == FloatFormat::float16 ? 5 : 8;
  static constexpr int kSignificant = kFraction + 1;
  static constexpr std::int32_t kSpecial = (1 << kExponent) - 1;
  using Bits = std::conditional_t<format == FloatFormat::float32, std::uint32_t, std::uint16_t>;
};

// A sum that is no number any more: its mantissa holds what it met.
constexpr std::int32_t kMarked = 1 << 16;  // above every exponent
constexpr std::int32_t kPositive = 1, kNegative = 2, kNothing = 4;
constexpr std::size_t kBlock = std::size_t{1} << 24;  // counts of a block fit int32, which vectors count in

struct BlockCounts {
  std::int32_t overflowed = 0, overwritten = 0, not_finite = 0;
};

inline std::int32_t between_0_and_31(std::int32_t x) {
  const std::int32_t least = x > 0 ? x : 0;
  return least < 31 ? least : 31;
}

template <FloatFormat format, bool full>
inline void add_one(std::int32_t& exponent, std::int32_t& mantissa, std::uint32_t bits, const FpisaForm& form, BlockCounts& counts) {
  using L = Layout<format>;
  // Without branches, and with bools as integers: what keeps this apart per lane of a vector.
  const std::int32_t field = static_cast<std::int32_t>(bits >> L::kFraction) & L::kSpecial;
  const std::int32_t fraction = static_cast<std::int32_t>(bits) & ((1 << L::kFraction) - 1);
  const std::int32_t sign = -static_cast<std::int32_t>(bits >> (L::kFraction + L::kExponent) & 1);  // 0 or -1
  const std::int32_t e = field == 0 ? 1 : field;
  const std::int32_t magnitude = (fraction | (field == 0 ? 0 : 1 << L::kFraction)) << form.guard;
  const std::int32_t m = (magnitude ^ sign) - sign;

  const std::int32_t was_exponent = exponent, was = mantissa;
  const std::int32_t ahead = e - was_exponent;
  const std::int32_t up = between_0_and_31(ahead), down = between_0_and_31(-ahead);
  std::int32_t kept, added, exponent_then, lost = 0;
  if constexpr (full) {
    kept = was >> up;
    added = m >> down;
    exponent_then = ahead > 0 ? e : was_exponent;
  } else {
    const std::int32_t least = was == 0 ? 0 : form.headroom;
    const std::int32_t replaces = ahead > least ? -1 : 0;
    lost = replaces & (was == 0 ? 0 : 1);
    kept = was & ~replaces;
    added = static_cast<std::int32_t>(static_cast<std::uint32_t>(m >> down) << (up & ~replaces));
    exponent_then = (e & replaces) | (was_exponent & ~replaces);
  }
  const std::int32_t sum = static_cast<std::int32_t>(static_cast<std::uint32_t>(kept) + static_cast<std::uint32_t>(added));
  const std::int32_t was_marked = was_exponent == kMarked ? -1 : 0, special = field == L::kSpecial ? -1 : 0;
  const std::int32_t left = ((~(kept ^ added) & (kept ^ sum)) >> 31) | (sum == std::numeric_limits<std::int32_t>::min() ? -1 : 0);
  const std::int32_t overflow = left & ~was_marked & ~special;
  const std::int32_t infinity = kPositive - sign;  // or kNegative
  const std::int32_t met = (special & (fraction == 0 ? infinity : kNothing)) | (overflow & kNothing);
  const std::int32_t marked = was_marked | special | overflow;
  mantissa = (marked & ((was_marked & was) | met)) | (~marked & sum);
  exponent = marked != 0 ? kMarked : exponent_then;
  counts.overflowed -= overflow;
  counts.overwritten += lost & ~marked;
  counts.not_finite -= special;
}

template <FloatFormat format, bool full>
inline FpisaCounts add_all(const FpisaForm& given, std::int32_t* __restrict exponents, std::int32_t* __restrict mantissas,
                           const typename Layout<format>::Bits* __restrict values, std::size_t n) {
  const FpisaForm form = given;
  FpisaCounts counts;
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    const std::size_t end = n - begin < kBlock ? n : begin + kBlock;
    BlockCounts in_block;
    for (std::size_t i = begin; i < end; ++i) add_one<format, full>(exponents[i], mantissas[i], values[i], form, in_block);
    counts.overflowed += in_block.overflowed;
    counts.overwritten += in_block.overwritten;
    counts.not_finite += in_block.not_finite;
  }
  return counts;
}

template <FloatFormat format>
inline FpisaCounts add_in_mode(const FpisaForm& form, std::int32_t* exponents, std::int32_t* mantissas, const void* values,
                               std::size_t n) {
  const auto* bits = static_cast<const typename Layout<format>::Bits*>(values);
  return form.full ? add_all<format, true>(form, exponents, mantissas, bits, n)
                   : add_all<format, false>(form, exponents, mantissas, bits, n);
}

// Normalises by the leading zeros, as the paper's look-up does, and packs.
template <FloatFormat format>
typename Layout<format>::Bits read_one(std::int32_t exponent, std::int32_t mantissa, int guard, bool nearest) {
  using L = Layout<format>;
  constexpr std::uint32_t kInfinity = static_cast<std::uint32_t>(L::kSpecial) << L::kFraction;
  constexpr std::uint32_t kSign = 1u << (L::kFraction + L::kExponent);
  using Bits = typename L::Bits;
  if (exponent == kMarked) {
    if (mantissa == kPositive) return static_cast<Bits>(kInfinity);
    if (mantissa == kNegative) return static_cast<Bits>(kInfinity | kSign);
    return static_cast<Bits>(kInfinity | 1u << (L::kFraction - 1));
  }
  if (mantissa == 0) return 0;
  const std::uint32_t magnitude = mantissa < 0 ? 0u - static_cast<std::uint32_t>(mantissa) : static_cast<std::uint32_t>(mantissa);
  const int leading = 31 - std::countl_zero(magnitude);
  // The last place of the result is that of its own leading bit, or that of subnormals (exponent 1) where it is smaller.
  const int cut = std::max(leading - L::kFraction, 1 - exponent + guard);
  std::uint64_t kept = cut <= 0 ? std::uint64_t{magnitude} << -cut : std::uint64_t{magnitude} >> cut;
  if (nearest && cut > 0) {
    const std::uint64_t half = std::uint64_t{1} << (cut - 1), rest = magnitude - (kept << cut);
    kept += rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0;
  }
  // `kept` has its leading 1, which adds one to the exponent field; a carry of rounding adds another.
  const std::int32_t field = exponent - guard + cut;
  std::uint64_t bits = (static_cast<std::uint64_t>(field - 1) << L::kFraction) + kept;
  if (bits >= kInfinity) bits = nearest ? kInfinity : kInfinity - 1;
  return static_cast<Bits>(bits | (mantissa < 0 ? kSign : 0));
}

template <FloatFormat format>
void read_all(const FpisaForm& form, const std::int32_t* exponents, const std::int32_t* mantissas, void* to, std::size_t n,
              bool nearest) {
  auto* bits = static_cast<typename Layout<format>::Bits*>(to);
  for (std::size_t i = 0; i < n; ++i) bits[i] = read_one<format>(exponents[i], mantissas[i], form.guard, nearest);
}

COPPICE_CLONES
FpisaCounts add_float32(const FpisaForm& form, std::int32_t* exponents, std::int32_t* mantissas, const void* values, std::size_t n) {
  return add_in_mode<FloatFormat::float32>(form, exponents, mantissas, values, n);
}

COPPICE_CLONES
FpisaCounts add_float16(const FpisaForm& form, std::int32_t* exponents, std::int32_t* mantissas, const void* values, std::size_t n) {
  return add_in_mode<FloatFormat::float16>(form, exponents, mantissas, values, n);
}

COPPICE_CLONES
FpisaCounts add_bfloat16(const FpisaForm& form, std::int32_t* exponents, std::int32_t* mantissas, const void* values, std::size_t n) {
  return add_in_mode<FloatFormat::bfloat16>(form, exponents, mantissas, values, n);
}

}  // namespace

int significant_bits(FloatFormat format) {
  switch (format) {
    case FloatFormat::float16: return Layout<FloatFormat::float16>::kSignificant;
    case FloatFormat::bfloat16: return Layout<FloatFormat::bfloat16>::kSignificant;
    default: return Layout<FloatFormat::float32>::kSignificant;
  }
}

void fpisa_clear(std::int32_t* exponents, std::int32_t* mantissas, std::size_t n) {
  std::fill_n(exponents, n, 1);
  std::fill_n(mantissas, n, 0);
}

FpisaCounts fpisa_add(const FpisaForm& form, std::int32_t* exponents, std::int32_t* mantissas, const void* values, std::size_t n) {
  const int room = 31 - significant_bits(form.format);
  if (form.guard < 0 || form.guard > room) throw std::invalid_argument("guard bits beyond 0.." + std::to_string(room));
  if (form.headroom < 0 || form.headroom > room - form.guard) {
    throw std::invalid_argument("headroom beyond 0.." + std::to_string(room - form.guard));
  }
  switch (form.format) {
    case FloatFormat::float16: return add_float16(form, exponents, mantissas, values, n);
    case FloatFormat::bfloat16: return add_bfloat16(form, exponents, mantissas, values, n);
    default: return add_float32(form, exponents, mantissas, values, n);
  }
}

void fpisa_read(const FpisaForm& form, const std::int32_t* exponents, const std::int32_t* mantissas, void* to, std::size_t n,
                bool nearest) {
  switch (form.format) {
    case FloatFormat::float16: return read_all<FloatFormat::float16>(form, exponents, mantissas, to, n, nearest);
    case FloatFormat::bfloat16: return read_all<FloatFormat::bfloat16>(form, exponents, mantissas, to, n, nearest);
    default: return read_all<FloatFormat::float32>(form, exponents, mantissas, to, n, nearest);
  }
}

}  // namespace coppice::numerics
