#include "numerics/network_order.h"

#include <algorithm>

#include "aggregation/bytes.h"
#include "numerics/clones.h"
#include "numerics/saturating.h"

namespace coppice::numerics {

namespace {
inline std::int32_t value_at(const std::uint8_t* payload, std::size_t i) {
  return static_cast<std::int32_t>(aggregation::load<std::uint32_t>(payload + 4 * i));
}
}  // namespace

COPPICE_CLONES
void load_payload(std::int32_t* __restrict to, const std::uint8_t* __restrict payload, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = value_at(payload, i);
}

COPPICE_CLONES
void store_payload(std::uint8_t* __restrict payload, const std::int32_t* __restrict from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) aggregation::store(payload + 4 * i, static_cast<std::uint32_t>(from[i]));
}

COPPICE_CLONES
void add_payload(std::int32_t* __restrict to, const std::uint8_t* __restrict payload, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    to[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(to[i]) + static_cast<std::uint32_t>(value_at(payload, i)));
  }
}

COPPICE_CLONES
std::size_t add_payload_saturating(std::int32_t* __restrict to, const std::uint8_t* __restrict payload, std::size_t n) {
  std::int32_t stuck = 0;  // a packet has far fewer values than int32 can count
  for (std::size_t i = 0; i < n; ++i) {
    const std::int32_t sum = saturated_sum(to[i], value_at(payload, i));
    stuck += (is_end(sum) ? 1 : 0) - (is_end(to[i]) ? 1 : 0);
    to[i] = sum;
  }
  return static_cast<std::size_t>(stuck);
}

COPPICE_CLONES
void min_payload(std::int32_t* __restrict to, const std::uint8_t* __restrict payload, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = std::min(to[i], value_at(payload, i));
}

COPPICE_CLONES
void max_payload(std::int32_t* __restrict to, const std::uint8_t* __restrict payload, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = std::max(to[i], value_at(payload, i));
}

}  // namespace coppice::numerics
