// Payloads of big-endian int32 against accumulators in the order of the machine.
//
// A payload need not be aligned. Cost: one pass of a loop that the compiler turns into vector code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coppice::numerics {

/// to[i] = payload[i].
void load_payload(std::int32_t* to, const std::uint8_t* payload, std::size_t n);
/// payload[i] = from[i].
void store_payload(std::uint8_t* payload, const std::int32_t* from, std::size_t n);

/// to[i] += payload[i], wrapping around.
void add_payload(std::int32_t* to, const std::uint8_t* payload, std::size_t n);
/// to[i] += payload[i], sticking at the ends (saturating.h). Returns: how many came to an end by it.
std::size_t add_payload_saturating(std::int32_t* to, const std::uint8_t* payload, std::size_t n);
/// to[i] = the smaller, or the larger, of to[i] and payload[i].
void min_payload(std::int32_t* to, const std::uint8_t* payload, std::size_t n);
void max_payload(std::int32_t* to, const std::uint8_t* payload, std::size_t n);

}  // namespace coppice::numerics
