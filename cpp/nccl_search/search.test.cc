#include "nccl_search/search.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "testing/testing.h"

using namespace coppice;

namespace {

/// GPUs on one NVSwitch, each with a chip, and on one PCIe switch below a processor; no network.
struct Box {
  std::vector<std::int32_t> kind, capability, maker, to, link, back, gpu, rank, pcie, none, zero{0}, path_kind, path_first{0},
      path_link;
  std::vector<double> rate, no_rate, path_rate;
  int gpus, nvswitch;

  int node(int of) {
    kind.push_back(of), capability.push_back(of == kNcclDev ? 90 : 0), maker.push_back(0);
    return static_cast<int>(kind.size()) - 1;
  }
  /// Adds a link in both directions; returns the first.
  int join(int a, int b, int of, double gb_per_s) {
    const int first = static_cast<int>(to.size());
    to.insert(to.end(), {b, a}), link.insert(link.end(), {of, of});
    back.insert(back.end(), {first + 1, first}), rate.insert(rate.end(), {gb_per_s, gb_per_s});
    return first;
  }
  void path(int of, double gb_per_s, std::vector<std::int32_t> links) {
    path_kind.push_back(of), path_rate.push_back(gb_per_s);
    path_link.insert(path_link.end(), links.begin(), links.end());
    path_first.push_back(static_cast<int>(path_link.size()));
  }

  Box(int count, double nvlink) : gpus(count) {
    nvswitch = node(kNcclNvs);
    const int pci = node(kNcclPci);
    std::vector<int> on_chip, up;
    for (int g = 0; g < count; ++g) {
      const int chip = node(kNcclDev);
      pcie.push_back(join(chip, pci, kPathPix, 48));
      gpu.push_back(node(kNcclGpu)), rank.push_back(g);
      on_chip.push_back(join(gpu.back(), chip, kPathLoc, 5000));
      up.push_back(join(chip, nvswitch, kPathNvl, nvlink));
    }
    for (int a = 0; a < count; ++a)
      for (int b = 0; b < count; ++b) {
        if (a == b) path(kPathLoc, 5000, {});
        else path(kPathNvl, nvlink, {on_chip[a], up[a], up[b] + 1, on_chip[b] + 1});
      }
    for (int g = 0; g < count; ++g) path(kPathNvl, nvlink, {on_chip[g], up[g]});
    for (int g = 0; g < count; ++g) path(kPathNvl, nvlink, {up[g] + 1, on_chip[g] + 1});
    zero.assign(count + 1, 0);
  }

  NcclSystem system(double nvlink) const {
    NcclSystem made;
    made.kind = kind, made.capability = capability, made.maker = maker;
    made.to = to, made.link = link, made.back = back, made.rate = rate;
    made.gpu = gpu, made.rank = rank, made.pcie = pcie;
    made.net = none, made.net_rate = no_rate, made.net_latency = no_rate, made.rail = none, made.adds = none;
    made.local_gpu = none, made.preferred_first = zero, made.preferred = none;
    made.near_first = std::span(zero).first(1), made.near = none;
    made.path_kind = path_kind, made.path_first = path_first, made.path_link = path_link, made.path_rate = path_rate;
    made.nvswitch = nvswitch, made.chips = gpus, made.capability_least = 90, made.most = made.total = nvlink;
    return made;
  }
};

const std::vector<double> kSpeeds{60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3};

}  // namespace

TEST(eight_gpus_on_nvswitches_have_twelve_rings) {
  const Box box(8, 370.8);
  const NcclSystem system = box.system(370.8);
  NcclSearch asked;
  asked.speeds = kSpeeds;
  const NcclChannels ring = nccl_search(system, asked);
  CHECK(ring.count == 12);
  CHECK(ring.within == 30);
  CHECK(ring.same == 1);
  for (int c = 0; c < ring.count; ++c) {
    std::vector<std::int32_t> order(ring.orders.begin() + 8 * c, ring.orders.begin() + 8 * (c + 1));
    std::sort(order.begin(), order.end());
    for (int g = 0; g < 8; ++g) CHECK(order[g] == g);
  }
  asked.pattern = kNvls, asked.most = 64;
  const NcclChannels nvls = nccl_search(system, asked);
  CHECK(nvls.count == 8);
  CHECK(nvls.within == 40);
}

TEST(a_gpu_never_carries_more_than_its_nvlinks) {
  for (int gpus = 2; gpus <= 9; ++gpus)
    for (double nvlink : {12.0, 61.0, 100.0, 370.8}) {
      const Box box(gpus, nvlink);
      const NcclSystem system = box.system(nvlink);
      NcclSearch asked;
      asked.speeds = kSpeeds;
      const NcclChannels ring = nccl_search(system, asked);
      CHECK(ring.count >= 1);
      CHECK(ring.count * ring.within <= nvlink + 1e-3);
    }
}

TEST(where_no_link_carries_a_speed_the_simple_order_is_taken) {
  const Box box(4, 1.0);
  const NcclSystem system = box.system(1.0);
  NcclSearch asked;
  asked.speeds = kSpeeds;
  const NcclChannels ring = nccl_search(system, asked);
  CHECK(ring.count == 1);
  CHECK(std::abs(ring.within - 0.1f) < 1e-6f);
  CHECK(ring.within_type == kPathSys);
  CHECK(ring.across_type == kPathDis);
}

TEST(columns_that_do_not_fit_are_refused) {
  const Box box(2, 100);
  NcclSystem system = box.system(100);
  NcclSearch asked;
  asked.speeds = kSpeeds;
  const auto ranks = system.rank;
  system.rank = ranks.first(1);
  CHECK_THROWS(std::invalid_argument, nccl_search(system, asked));
  for (const std::vector<std::int32_t>& wrong : {std::vector<std::int32_t>{4, 5}, {0, 0}, {-1, 0}}) {
    system.rank = wrong;
    CHECK_THROWS(std::invalid_argument, nccl_search(system, asked));
  }
}
