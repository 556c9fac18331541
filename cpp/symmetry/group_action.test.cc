#include "symmetry/group_action.h"

#include "testing/testing.h"
#include "testing/networks.h"

using namespace coppice;
using namespace coppice::testing;

TEST(trivial_action_is_one_class_per_arc) {
  std::vector<Vertex> tail{0, 0, 1}, head{1, 1, 2};
  GroupAction action = GroupAction::trivial(Digraph(3, tail, head));
  CHECK_EQ(action.order, 1);
  CHECK_EQ(action.num_orbits, 3);
  CHECK_EQ(action.num_classes(), 3);
  for (Arc e = 0; e < 3; ++e) CHECK(action.arc_class[e] == e && action.images_per_arc[e] == 1);
  CHECK_EQ(action.difference(0, 0), 0);
}

TEST(differences_are_digit_by_digit) {
  GroupAction action = GroupAction::of(std::vector<Amount>{4, 1, 6, 5}, {}, {}, {});
  CHECK_EQ(action.order, 120);
  auto digits = [](Amount a) { return std::vector<Amount>{a % 4, a / 4 % 6, a / 24}; };
  for (Amount a = 0; a < 120; ++a) {
    for (Amount b = 0; b < 120; ++b) {
      Amount x = action.difference(a, b);
      CHECK(0 <= x && x < 120);
      auto first = digits(x), second = digits(b), sum = digits(a);
      CHECK_EQ((first[0] + second[0]) % 4, sum[0]);
      CHECK_EQ((first[1] + second[1]) % 6, sum[1]);
      CHECK_EQ((first[2] + second[2]) % 5, sum[2]);
    }
  }
}

TEST(differences_in_large_groups_do_not_overflow) {
  Amount n = Amount{1} << 31;
  GroupAction action = GroupAction::of(std::vector<Amount>{n, n / 2}, {}, {}, {});
  CHECK_EQ(action.order, n * (n / 2));
  CHECK_EQ(action.difference(0, 1), n - 1);
  CHECK_EQ(action.difference(0, n), n * (n / 2 - 1));
  CHECK_EQ(action.difference(action.order - 1, action.order - 1), 0);
}

TEST(groups_too_large_to_count_are_refused) {
  Amount n = Amount{1} << 31;
  CHECK_THROWS(std::overflow_error, GroupAction::of(std::vector<Amount>{n, n}, {}, {}, {}));
  CHECK_THROWS(std::invalid_argument, GroupAction::of(std::vector<Amount>{2, 0}, {}, {}, {}));
}

TEST(uses_are_the_images_that_share_an_arc) {
  SymmetricNetwork boxes = turning_boxes(2, 3, 10, 1);
  CHECK_EQ(boxes.action.order, 6);
  CHECK_EQ(boxes.action.num_orbits, 4);  // plane, switches, GPUs, NICs
  CHECK_EQ(boxes.action.num_classes(), 6);
  for (Amount images : boxes.action.images_per_arc) CHECK_EQ(images, 1);
  SymmetricNetwork leaves = turning_leaves(2, 3, 10, 1);
  CHECK_EQ(leaves.action.num_orbits, 3);
  CHECK_EQ(leaves.action.num_classes(), 4);
  for (Arc e = 0; e < leaves.network.num_arcs(); ++e) {
    bool at_top = leaves.network.tail[e] == 0 || leaves.network.head[e] == 0;
    CHECK_EQ(leaves.action.images_per_arc[leaves.action.arc_class[e]], at_top ? 3 : 1);
  }
}

TEST(elements_of_tori_send_the_first_vertex_there) {
  SymmetricNetwork network = torus({3, 4}, {1, 2});
  const GroupAction& action = network.action;
  CHECK_EQ(action.order, 12);
  CHECK_EQ(action.num_orbits, 1);
  CHECK_EQ(action.num_classes(), 4);
  for (Vertex v = 0; v < 12; ++v) {
    CHECK_EQ(network.vertex_image[action.element[v]][0], v);
    for (Vertex u = 0; u < 12; ++u) {
      Amount x = action.difference(action.element[v], action.element[u]);
      CHECK_EQ(network.vertex_image[x][u], v);
    }
  }
}
