// Element-wise reductions of arrays of every element type.
//
// Integers wrap around. Of bool, sum and max are "or", product and min are "and". A NaN stays NaN in min and max.
// float16 and bfloat16 are added as float32 and rounded to nearest, ties to even: by `combine` after each operation, by
// `combine_all` only once at the end.
//
// Cost: one pass over each source, in blocks that stay in the first-level cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace coppice::shm {

enum class DataType : std::uint8_t {
  float16, bfloat16, float32, float64, int8, uint8, int16, uint16, int32, uint32, int64, uint64, boolean
};
inline constexpr int kDataTypes = 13;

/// `avg` adds, and is divided by the number of ranks at the end.
enum class ReduceOp : std::uint8_t { sum, avg, min, max, product, band, bor, bxor };
inline constexpr int kReduceOps = 8;

std::size_t item_size(DataType type);

/// Whether the operation has a meaning for the type: bitwise operations not for floats, avg not for bool.
bool serves(ReduceOp op, DataType type);

/// to[i] = a[i] (op) b[i] for n elements, aligned to their size. `to` may be `a` or `b`.
void combine(void* to, const void* a, const void* b, std::size_t n, DataType type, ReduceOp op);

/// to[i] = the reduction of sources[.][i], from the first source to the last, avg divided by their number.
/// `to` may be one of the sources.
void combine_all(void* to, std::span<const void* const> sources, std::size_t n, DataType type, ReduceOp op);

/// data[i] = data[i] / by; integers are cut towards zero. bool has no quotients and stays.
void divide(void* data, std::size_t n, int by, DataType type);

/// Copies memory that is not read again soon: past the caches where the machine can.
void copy_past_caches(void* to, const void* from, std::size_t bytes);

}  // namespace coppice::shm
