#include "core/wide.h"

#include <cstdint>
#include <limits>
#include <numeric>

#include "testing/testing.h"

using namespace coppice;

TEST(wide_integers_are_written_in_decimal) {
  for (std::int64_t value : {std::int64_t{0}, std::int64_t{7}, std::int64_t{-10}, std::int64_t{1} << 62,
                             std::numeric_limits<std::int64_t>::min()})
    CHECK_EQ(to_decimal(value), std::to_string(value));
  CHECK_EQ(to_decimal((Wide{1} << 100) + 1), "1267650600228229401496703205377");
  const Wide least = -(((Wide{1} << 126) - 1) * 2 + 1) - 1;
  CHECK_EQ(to_decimal(least), "-170141183460469231731687303715884105728");
}

TEST(wide_gcd_is_that_of_smaller_integers_scaled) {
  for (std::int64_t a = 0; a < 40; ++a)
    for (std::int64_t b = 0; b < 40; ++b) {
      CHECK(gcd(Wide{a}, Wide{b}) == std::gcd(a, b));
      CHECK(gcd(Wide{a} << 80, Wide{b} << 80) == Wide{std::gcd(a, b)} << 80);
    }
}

TEST(fractions_of_the_largest_terms_compare_exactly) {
  const Wide large = kSumLimit;
  CHECK(is_less(large - 1, large, large, large));
  CHECK(is_less(large - 2, large - 1, large - 1, large));
  CHECK(!is_less(large, large, large, large));
  CHECK(is_less(large, 1, 1, 0));
}

TEST(sums_at_the_limit_are_refused) {
  require_below_limit(kSumLimit - 1, "fits");
  CHECK_THROWS(std::overflow_error, require_below_limit(kSumLimit, "does not fit"));
}
