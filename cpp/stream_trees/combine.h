// Operations on elements as they are kept (32 bits in the order of the machine) and as they arrive (big-endian).
//
// All of them are commutative. Sums of int32 wrap, and so are associative too, as minimum and maximum are; sums of
// float32 round in the order of arrival. Minimum and maximum of float32 are those of IEEE 754-2019: -0 lies below +0,
// and a NaN on either side gives the NaN 7fc00000, so that no order of arrival can be told from another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregation/node.h"

namespace coppice::aggregation {

enum class Operation : std::uint8_t { sum, minimum, maximum };
inline constexpr int kOperations = 3;

// kept[i] = kept[i] (operation) arrived[i].
void combine_arrived(Operation operation, Element element, std::uint32_t* kept, const std::uint8_t* arrived,
                     std::size_t count);
void combine_kept(Operation operation, Element element, std::uint32_t* kept, const std::uint32_t* other,
                  std::size_t count);

// Elements between their two forms.
void keep(std::uint32_t* kept, const std::uint8_t* arrived, std::size_t count);
void put(std::uint8_t* packet, const std::uint32_t* kept, std::size_t count);

}  // namespace coppice::aggregation
