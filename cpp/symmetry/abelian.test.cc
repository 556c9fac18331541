#include "symmetry/abelian.h"

#include <numeric>
#include <random>

#include "testing/testing.h"

using namespace coppice;

static VertexMap rotation(Vertex n, Vertex step) {
  VertexMap map(n);
  for (Vertex v = 0; v < n; ++v) map[v] = (v + step) % n;
  return map;
}

TEST(power_is_repeated_composition) {
  VertexMap once = rotation(12, 5), many = power(once, 0);
  for (int exponent = 0; exponent < 12; ++exponent, many = composed(many, once)) CHECK(power(once, exponent) == many);
}

TEST(group_of_rotations_in_any_order_is_cyclic_up_to_factors) {
  // Subgroups of Z_360 by random steps: the order is 360 / gcd, whatever the steps came to be in between.
  std::mt19937 random(5);
  std::vector<std::uint8_t> compute(360, 1);
  for (int trial = 0; trial < 50; ++trial) {
    FreeAbelianGroup group(compute);
    Vertex common = 360;
    for (int i = 0; i < 5; ++i) {
      Vertex step = 1 + static_cast<Vertex>(random() % 359);
      CHECK_EQ(group.extend(rotation(360, step)), step % common != 0);
      common = std::gcd(common, step);
      CHECK_EQ(group.order(), 360 / common);
      std::int64_t product = 1;
      for (std::size_t j = 0; j < group.orders().size(); ++j) {
        product *= group.orders()[j];
        CHECK(power(group.generators()[j], group.orders()[j]) == rotation(360, 0));
      }
      CHECK_EQ(product, group.order());
      CHECK_EQ(group.num_orbits(), common);
    }
  }
}

TEST(elements_are_mixed_radix_with_the_first_generator_fastest) {
  std::vector<std::uint8_t> compute(6, 1);
  VertexMap across{3, 4, 5, 0, 1, 2}, around{1, 2, 0, 4, 5, 3};
  FreeAbelianGroup group(compute, {across, around}, {2, 3});
  CHECK_EQ(group.order(), 6);
  for (Vertex v = 0; v < 6; ++v) CHECK_EQ(group.element(v), v / 3 + 2 * (v % 3));
}

TEST(group_refuses_what_is_not_free_or_does_not_commute) {
  std::vector<std::uint8_t> compute{1, 1, 1, 1, 0};
  FreeAbelianGroup group(compute);
  CHECK(!group.extend({1, 0, 2, 3, 4}));  // fixes 2 and 3
  CHECK(!group.extend({1, 2, 0, 3, 4}));  // cycles of 3 and 1
  CHECK(!group.extend({0, 1, 2, 3, 4}));  // not larger
  CHECK(group.extend({1, 2, 3, 0, 4}));
  CHECK(!group.extend({1, 0, 3, 2, 4}));  // free, but does not commute with the rotation
  CHECK(!group.extend({2, 3, 0, 1, 4}));  // in the group
  CHECK_EQ(group.order(), 4);
}
