#include "numerics/network_order.h"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "numerics/saturating.h"
#include "testing/testing.h"

using namespace coppice::numerics;

TEST(payloads_meet_accumulators_in_network_order) {
  std::mt19937 random(5);
  for (std::size_t n : {0, 1, 63, 64, 65, 255, 256, 257, 2048}) {
    std::vector<std::int32_t> values(n), to(n + 1);
    for (auto& value : values) value = static_cast<std::int32_t>(random());
    for (auto& value : to) value = static_cast<std::int32_t>(random());
    // One byte off any alignment, and with a byte on either side that stays.
    std::vector<std::uint8_t> wire(4 * n + 2, 0xaa);
    store_payload(wire.data() + 1, values.data(), n);
    CHECK(wire[0] == 0xaa && wire[4 * n + 1] == 0xaa);
    for (std::size_t i = 0; i < n; ++i) {
      CHECK_EQ(static_cast<int>(wire[4 * i + 1]), static_cast<int>(static_cast<std::uint32_t>(values[i]) >> 24));
      CHECK_EQ(static_cast<int>(wire[4 * i + 4]), static_cast<int>(values[i] & 0xff));
    }
    auto loaded = to, wrapped = to, stuck = to, least = to, most = to, expected = to, expected_stuck = to;
    load_payload(loaded.data(), wire.data() + 1, n);
    CHECK(std::equal(values.begin(), values.end(), loaded.begin()) && loaded[n] == to[n]);
    add_payload(wrapped.data(), wire.data() + 1, n);
    add_wrapping(expected.data(), values.data(), n);
    CHECK(wrapped == expected);
    CHECK_EQ(add_payload_saturating(stuck.data(), wire.data() + 1, n), add_saturating(expected_stuck.data(), values.data(), n));
    CHECK(stuck == expected_stuck);
    min_payload(least.data(), wire.data() + 1, n);
    max_payload(most.data(), wire.data() + 1, n);
    for (std::size_t i = 0; i < n; ++i) {
      CHECK(least[i] == std::min(to[i], values[i]) && most[i] == std::max(to[i], values[i]));
    }
    CHECK(least[n] == to[n] && most[n] == to[n]);
  }
}
