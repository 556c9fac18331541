#include "simulator/fair_share.h"

#include <random>

#include "testing/testing.h"

using namespace coppice;

namespace {

using Flows = std::vector<std::vector<std::int32_t>>;

std::vector<double> rates(const std::vector<double>& capacity, const Flows& flows) {
  FairShare share(capacity);
  std::vector<std::span<const std::int32_t>> spans(flows.begin(), flows.end());
  share.solve(spans);
  std::vector<double> found;
  for (std::size_t flow = 0; flow < flows.size(); ++flow) found.push_back(share.rate(flow));
  return found;
}

}  // namespace

TEST(fair_share_worked_examples) {
  CHECK((rates({10, 4}, {{0}, {0, 1}, {1}}) == std::vector<double>{8, 2, 2}));
  CHECK((rates({2, 2, 2}, {{0, 1, 2}, {0}, {1}, {2}}) == std::vector<double>{1, 1, 1, 1}));
  // Bertsekas and Gallager's kind of network: three settle at 1/3 of the first link, one at 2/3 of the second.
  CHECK((rates({3, 3}, {{0}, {0}, {0, 1}, {1}}) == std::vector<double>{1, 1, 1, 2}));
  CHECK((rates({5}, {{0}}) == std::vector<double>{5}));
  CHECK(rates({5}, {}).empty());
}

TEST(fair_share_names_the_link_that_is_full) {
  std::vector<double> capacity{10, 4};
  FairShare share(capacity);
  std::vector<std::int32_t> a{0}, b{0, 1};
  std::vector<std::span<const std::int32_t>> flows{a, b};
  share.solve(flows);
  CHECK_EQ(share.limit(0), 0);
  CHECK_EQ(share.limit(1), 1);
  share.solve(std::span(flows).first(1));  // nothing is left over from the last time
  CHECK_EQ(share.rate(0), 10.0);
}

// Max-min fair: every flow has a link that is full and on which no other flow is faster.
TEST(fair_share_of_random_flows) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<double> capacity(1 + random() % 6);
    for (double& c : capacity) c = 1 + random() % 9;
    Flows flows(random() % 8);
    for (auto& flow : flows) {
      for (std::size_t link = 0; link < capacity.size(); ++link)
        if (random() % 2) flow.push_back(static_cast<std::int32_t>(link));
      if (flow.empty()) flow.push_back(0);
    }
    auto rate = rates(capacity, flows);
    std::vector<double> load(capacity.size(), 0), fastest(capacity.size(), 0);
    for (std::size_t i = 0; i < flows.size(); ++i)
      for (std::int32_t link : flows[i]) load[link] += rate[i], fastest[link] = std::max(fastest[link], rate[i]);
    for (std::size_t link = 0; link < capacity.size(); ++link) CHECK(load[link] <= capacity[link] * (1 + 1e-12));
    for (std::size_t i = 0; i < flows.size(); ++i) {
      bool limited = false;
      for (std::int32_t link : flows[i])
        limited |= load[link] >= capacity[link] * (1 - 1e-12) && rate[i] >= fastest[link] * (1 - 1e-12);
      CHECK(limited);
    }
  }
}
