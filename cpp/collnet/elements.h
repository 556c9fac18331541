// Reductions of NCCL's data types: sum, product, maximum and minimum of two arrays, element by element.
//
// Types of fewer than 32 bits are computed in float and rounded to nearest, ties to even: float16 and bfloat16 overflow to
// infinity, the two float8 types to their largest number, as NCCL's kernels do. Integers wrap around. The maximum and the
// minimum of a number and a NaN is the number.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coppice::collnet {

enum DataType : int {
  kInt8, kUint8, kInt32, kUint32, kInt64, kUint64, kFloat16, kFloat32, kFloat64, kBfloat16, kFloat8e4m3, kFloat8e5m2,
  kDataTypes
};

enum Reduction : int { kSum, kProduct, kMaximum, kMinimum, kReductions };

/// Bytes of an element, 0 for a type that is not known.
std::size_t bytes_of(int type);

/// Whether a reduction of a type is offered.
bool reduces(int type, int reduction);

/// into[i] = into[i] (reduction) from[i] for `count` elements; the arrays do not overlap.
void reduce(void* into, const void* from, std::size_t count, int type, int reduction);

/// Small floating-point types as float and back.
float from_half(std::uint16_t bits);
std::uint16_t to_half(float value);
float from_bfloat(std::uint16_t bits);
std::uint16_t to_bfloat(float value);
float from_float8(std::uint8_t bits, int type);
std::uint8_t to_float8(float value, int type);

}  // namespace coppice::collnet
