#include "flow/circuits.h"

#include <stdexcept>
#include <vector>

#include "testing/testing.h"

using namespace coppice;

namespace {

const std::vector<CircuitRound> kRounds{{4, 4.0}, {8, 1.0}, {16, 0.25}};

Circuits on_ring(std::int32_t parts) {
  // Four nodes in a ring, links in both directions: link 2 v leads from v to v + 1, link 2 v + 1 back.
  const std::vector<std::int32_t> tail{0, 1, 1, 2, 2, 3, 3, 0}, head{1, 0, 2, 1, 3, 2, 0, 3}, nodes{0, 1, 2, 3};
  const std::vector<double> rate(8, 2.0), fixed(8, 1.0);
  return route_circuits({4, tail, head, rate, fixed}, nodes, parts, kRounds, 4.0, 1.001);
}

}  // namespace

TEST(circuits_load_a_ring_alike) {
  // 4 x 3 blocks of 16 hops over 8 links of rate 2: all are full at load 1, but for blocks across, which are whole.
  const Circuits found = on_ring(1);
  CHECK(found.start.size() == 13);
  CHECK(found.links.size() == 16);
  CHECK(found.load == 1.0);
}

TEST(circuits_of_parts_follow_each_other) {
  const Circuits found = on_ring(2);
  CHECK(found.start.size() == 25);
  for (std::size_t p = 0; p + 1 < found.start.size(); ++p) CHECK(found.start[p] < found.start[p + 1]);
  double sum = 0;
  for (double load : found.loads) sum += load;
  CHECK(sum == 8.0);
}

TEST(circuits_refuse_what_does_not_fit) {
  const std::vector<std::int32_t> tail{0}, head{1}, nodes{0, 1};
  const std::vector<double> rate{1.0}, none{0.0};
  CHECK_THROWS(std::invalid_argument, route_circuits({2, tail, head, rate, none}, nodes, 1, kRounds, 4.0, 1.001));
  CHECK_THROWS(std::invalid_argument, route_circuits({2, tail, head, none, rate}, nodes, 1, kRounds, 4.0, 1.001));
  CHECK_THROWS(std::invalid_argument, route_circuits({2, tail, head, rate, none}, nodes, 0, kRounds, 4.0, 1.001));
}
