#include "graph/distances.h"

#include <stdexcept>

#include "testing/testing.h"

using namespace coppice;

namespace {

/// 0 -> 1 -> 2 of lengths 2 and 3, 0 -> 2 of length `shortcut`; nothing leads to 3.
std::vector<Amount> from_all(Amount shortcut) {
  std::vector<Vertex> tail{0, 1, 0}, head{1, 2, 2}, sources{0, 2};
  std::vector<Amount> length{2, 3, shortcut};
  return shortest_distances(Digraph(4, tail, head), length, sources);
}

}  // namespace

TEST(distances_take_the_shorter_way) {
  CHECK((from_all(7) == std::vector<Amount>{0, 2, 5, kUnreached, kUnreached, kUnreached, 0, kUnreached}));
  CHECK((from_all(0) == std::vector<Amount>{0, 2, 0, kUnreached, kUnreached, kUnreached, 0, kUnreached}));
}

TEST(distances_refuse_lengths_that_have_no_sum) {
  CHECK_THROWS(std::overflow_error, from_all(kUnreached - 5));
  CHECK_THROWS(std::invalid_argument, from_all(-1));
}
