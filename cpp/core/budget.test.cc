#include "core/budget.h"

#include <limits>

#include "testing/testing.h"

using namespace coppice;

TEST(budget_polls_the_stop_flag) {
  Budget budget(std::numeric_limits<std::int64_t>::max(), [] { return true; });
  CHECK_THROWS(Cancelled, (budget.spend(1), budget.spend(1 << 22)));
}

TEST(a_budget_is_exhausted_once_all_is_spent) {
  Budget budget(10, {});
  budget.spend(9);
  CHECK(!budget.exhausted());
  budget.spend(3);
  CHECK(budget.exhausted());
  CHECK_EQ(budget.left(), -2);
}
