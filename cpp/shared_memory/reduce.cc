#include "shared_memory/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// Without it GCC keeps branches around floating-point operations, because skipping one could hide a trap.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math")
#endif

#include "shared_memory/float16.h"

#if defined(__clang__)
#define COPPICE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define COPPICE_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace coppice::shm {

namespace {

struct Boolean { std::uint8_t value; };

template <class T>
inline constexpr bool kIsNarrow = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

template <ReduceOp op, class T>
inline T apply(T a, T b) {
  if constexpr (std::is_same_v<T, Boolean>) {
    bool x = a.value != 0, y = b.value != 0;
    if constexpr (op == ReduceOp::bxor) return {static_cast<std::uint8_t>(x != y)};
    else if constexpr (op == ReduceOp::sum || op == ReduceOp::max || op == ReduceOp::bor) return {static_cast<std::uint8_t>(x | y)};
    else return {static_cast<std::uint8_t>(x & y)};
  } else if constexpr (op == ReduceOp::min) {
    return (a < b) | (a != a) ? a : b;
  } else if constexpr (op == ReduceOp::max) {
    return (a > b) | (a != a) ? a : b;
  } else if constexpr (std::is_floating_point_v<T>) {
    if constexpr (op == ReduceOp::product) return a * b;
    else return a + b;
  } else {
    // Unsigned and at least as wide as int: wraps around without overflow.
    using Widened = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
    Widened x = static_cast<Widened>(a), y = static_cast<Widened>(b);
    if constexpr (op == ReduceOp::product) return static_cast<T>(x * y);
    else if constexpr (op == ReduceOp::band) return static_cast<T>(x & y);
    else if constexpr (op == ReduceOp::bor) return static_cast<T>(x | y);
    else if constexpr (op == ReduceOp::bxor) return static_cast<T>(x ^ y);
    else return static_cast<T>(x + y);
  }
}

template <ReduceOp op, class T>
void combine_typed(T* to, const T* a, const T* b, std::size_t n) {
  COPPICE_INDEPENDENT
  for (std::size_t i = 0; i < n; ++i) to[i] = apply<op>(a[i], b[i]);
}

constexpr std::size_t kBlockBytes = 8192;  // stays in the first-level cache

template <class T>
void divide_typed(T* data, std::size_t n, int by) {
  if constexpr (std::is_same_v<T, Boolean>) {
    (void)data, (void)n, (void)by;
  } else if constexpr (kIsNarrow<T>) {
    std::array<float, kBlockBytes / sizeof(float)> block;
    for (std::size_t begin = 0; begin < n; begin += block.size()) {
      std::size_t length = std::min(block.size(), n - begin);
      widen(block.data(), data + begin, length);
      for (std::size_t i = 0; i < length; ++i) block[i] /= static_cast<float>(by);
      narrow(data + begin, block.data(), length);
    }
  } else if constexpr (std::is_floating_point_v<T>) {
    for (std::size_t i = 0; i < n; ++i) data[i] /= static_cast<T>(by);
  } else {
    using Widened = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    for (std::size_t i = 0; i < n; ++i) data[i] = static_cast<T>(static_cast<Widened>(data[i]) / static_cast<Widened>(by));
  }
}

// Sums in a block of our own, so that the result may overwrite a source.
template <ReduceOp op, class T>
void combine_all_typed(T* to, std::span<const void* const> sources, std::size_t n) {
  constexpr std::size_t kBlock = kBlockBytes / sizeof(T);
  alignas(64) std::array<T, kBlock> sum;
  auto source = [&](std::size_t k) { return static_cast<const T*>(sources[k]); };
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    std::size_t length = std::min(kBlock, n - begin);
    const T* so_far = source(0) + begin;
    for (std::size_t k = 1; k + 1 < sources.size(); ++k) {
      combine_typed<op>(sum.data(), so_far, source(k) + begin, length);
      so_far = sum.data();
    }
    if (sources.size() > 1) {
      combine_typed<op>(to + begin, so_far, source(sources.size() - 1) + begin, length);
    } else if (to != source(0)) {
      std::memcpy(to + begin, so_far, length * sizeof(T));
    }
  }
  if constexpr (op == ReduceOp::avg) divide_typed(to, n, static_cast<int>(sources.size()));
}

// Divides by `by` before it rounds.
template <ReduceOp op, class T>
void combine_all_narrow(T* to, std::span<const void* const> sources, std::size_t n, int by) {
  constexpr std::size_t kBlock = kBlockBytes / sizeof(float);
  alignas(64) std::array<float, kBlock> sum, next;
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    std::size_t length = std::min(kBlock, n - begin);
    widen(sum.data(), static_cast<const T*>(sources[0]) + begin, length);
    for (std::size_t k = 1; k < sources.size(); ++k) {
      widen(next.data(), static_cast<const T*>(sources[k]) + begin, length);
      combine_typed<op>(sum.data(), sum.data(), next.data(), length);
    }
    if (by != 1) divide_typed(sum.data(), length, by);
    narrow(to + begin, sum.data(), length);
  }
}

template <ReduceOp op, class T>
inline constexpr bool kServes =
    !((op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor) && (std::is_floating_point_v<T> || kIsNarrow<T>)) &&
    !(op == ReduceOp::avg && std::is_same_v<T, Boolean>);

/// Calls work.template operator()<T>() for the C++ type of an element type.
template <class Work>
auto with_type(DataType type, Work&& work) {
  switch (type) {
    case DataType::float16: return work.template operator()<Float16>();
    case DataType::bfloat16: return work.template operator()<BFloat16>();
    case DataType::float32: return work.template operator()<float>();
    case DataType::float64: return work.template operator()<double>();
    case DataType::int8: return work.template operator()<std::int8_t>();
    case DataType::uint8: return work.template operator()<std::uint8_t>();
    case DataType::int16: return work.template operator()<std::int16_t>();
    case DataType::uint16: return work.template operator()<std::uint16_t>();
    case DataType::int32: return work.template operator()<std::int32_t>();
    case DataType::uint32: return work.template operator()<std::uint32_t>();
    case DataType::int64: return work.template operator()<std::int64_t>();
    case DataType::uint64: return work.template operator()<std::uint64_t>();
    case DataType::boolean: break;
  }
  return work.template operator()<Boolean>();
}

/// Calls work.template operator()<op>() for an operation.
template <class Work>
auto with_op(ReduceOp op, Work&& work) {
  switch (op) {
    case ReduceOp::sum: return work.template operator()<ReduceOp::sum>();
    case ReduceOp::avg: return work.template operator()<ReduceOp::avg>();
    case ReduceOp::min: return work.template operator()<ReduceOp::min>();
    case ReduceOp::max: return work.template operator()<ReduceOp::max>();
    case ReduceOp::product: return work.template operator()<ReduceOp::product>();
    case ReduceOp::band: return work.template operator()<ReduceOp::band>();
    case ReduceOp::bor: return work.template operator()<ReduceOp::bor>();
    case ReduceOp::bxor: break;
  }
  return work.template operator()<ReduceOp::bxor>();
}

}  // namespace

std::size_t item_size(DataType type) {
  return with_type(type, []<class T>() { return sizeof(T); });
}

bool serves(ReduceOp op, DataType type) {
  return with_type(type, [&]<class T>() { return with_op(op, []<ReduceOp o>() { return kServes<o, T>; }); });
}

void combine(void* to, const void* a, const void* b, std::size_t n, DataType type, ReduceOp op) {
  with_type(type, [&]<class T>() {
    with_op(op, [&]<ReduceOp o>() {
      if constexpr (!kServes<o, T>) {
        return;
      } else if constexpr (kIsNarrow<T>) {
        combine_all_narrow<o>(static_cast<T*>(to), std::array{a, b}, n, 1);
      } else {
        combine_typed<o>(static_cast<T*>(to), static_cast<const T*>(a), static_cast<const T*>(b), n);
      }
    });
  });
}

void combine_all(void* to, std::span<const void* const> sources, std::size_t n, DataType type, ReduceOp op) {
  with_type(type, [&]<class T>() {
    with_op(op, [&]<ReduceOp o>() {
      if constexpr (!kServes<o, T>) {
        return;
      } else if constexpr (kIsNarrow<T>) {
        combine_all_narrow<o>(static_cast<T*>(to), sources, n, o == ReduceOp::avg ? static_cast<int>(sources.size()) : 1);
      } else {
        combine_all_typed<o>(static_cast<T*>(to), sources, n);
      }
    });
  });
}

void divide(void* data, std::size_t n, int by, DataType type) {
  with_type(type, [&]<class T>() { divide_typed(static_cast<T*>(data), n, by); });
}

void copy_past_caches(void* to, const void* from, std::size_t bytes) {
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  auto* out = static_cast<std::byte*>(to);
  auto* in = static_cast<const std::byte*>(from);
  std::size_t head = std::min(bytes, (64 - reinterpret_cast<std::uintptr_t>(out) % 64) % 64);
  std::memcpy(out, in, head);
  std::size_t lines = (bytes - head) / 64;
  auto* line = reinterpret_cast<__m128i*>(out + head);
  auto* data = reinterpret_cast<const __m128i*>(in + head);
  for (std::size_t i = 0; i < lines; ++i, line += 4, data += 4) {
    __m128i a = _mm_loadu_si128(data), b = _mm_loadu_si128(data + 1), c = _mm_loadu_si128(data + 2), d = _mm_loadu_si128(data + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  _mm_sfence();
  std::size_t done = head + lines * 64;
  std::memcpy(out + done, in + done, bytes - done);
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace coppice::shm
