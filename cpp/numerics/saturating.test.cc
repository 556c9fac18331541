#include "numerics/saturating.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "testing/testing.h"

using namespace coppice::numerics;

namespace {
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
}  // namespace

TEST(saturating_sums_stick_at_the_ends) {
  CHECK_EQ(saturated_sum(kMost, 1), kMost);
  CHECK_EQ(saturated_sum(kMost - 1, 1), kMost);
  CHECK_EQ(saturated_sum(kMost - 1, 2), kMost);
  CHECK_EQ(saturated_sum(kLeast + 1, -2), kLeast);
  CHECK_EQ(saturated_sum(kMost, -5), kMost);   // a register that clamps would forget
  CHECK_EQ(saturated_sum(-5, kMost), kMost);
  CHECK_EQ(saturated_sum(kLeast, 5), kLeast);
  CHECK_EQ(saturated_sum(kMost - 3, -4), kMost - 7);
  CHECK_EQ(saturated_sum(kLeast + 1, kMost - 1), -1);
}

TEST(a_saturating_sum_off_the_ends_is_exact_in_any_order) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::int32_t> values(6);
    for (auto& value : values) value = static_cast<std::int32_t>(random()) >> (random() % 8);
    std::int64_t exact = 0;
    for (auto value : values) exact += value;
    for (int order = 0; order < 10; ++order) {
      std::shuffle(values.begin(), values.end(), random);
      std::int32_t sum = 0;
      for (auto value : values) sum = saturated_sum(sum, value);
      CHECK(is_end(sum) || sum == exact);
      CHECK(is_end(sum) || (exact < kMost && exact > kLeast));
    }
  }
}

TEST(saturating_and_wrapping_adds_count_and_leave_the_rest) {
  for (std::size_t n : {0, 1, 7, 8, 63, 257}) {
    std::vector<std::int32_t> a(n + 1, kMost - 1), b(n + 1, 1), wrapped(n + 1, kMost);
    CHECK_EQ(add_saturating(a.data(), b.data(), n), n);
    CHECK_EQ(add_saturating(a.data(), b.data(), n), std::size_t{0});  // only those that come to the end
    add_wrapping(wrapped.data(), b.data(), n);
    CHECK_EQ(a[n], kMost - 1);
    CHECK_EQ(wrapped[n], kMost);
    for (std::size_t i = 0; i < n; ++i) CHECK(a[i] == kMost && wrapped[i] == kLeast);
  }
}

TEST(fixed_point_shows_its_overflow) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values{0, -0.0f, 1, -1.5f, 2147.4836f, 2147.5f, -2147.5f, 3e38f, infinity, -infinity, std::nanf(""), 5e-7f, 1.5e-6f};
  std::vector<std::int32_t> fixed(values.size());
  CHECK_EQ(to_fixed(values.data(), fixed.data(), values.size()), std::size_t{6});
  std::vector<std::int32_t> expected{0, 0, 1000000, -1500000, static_cast<std::int32_t>(std::lrint(2147.4836f * 1e6)), kMost, kLeast, kMost,
                                     kMost, kLeast, kMost, static_cast<std::int32_t>(std::lrint(5e-7f * 1e6)),
                                     static_cast<std::int32_t>(std::lrint(1.5e-6f * 1e6))};
  CHECK(fixed == expected);
  std::vector<float> back(values.size());
  CHECK_EQ(from_fixed(fixed.data(), back.data(), fixed.size()), std::size_t{6});
  CHECK_EQ(back[3], -1.5f);
  CHECK_EQ(back[5], infinity);
  CHECK_EQ(back[6], -infinity);
}
