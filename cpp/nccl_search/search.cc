#include "nccl_search/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace coppice {
namespace {

constexpr int kSteps = 1 << 14, kStepsSame = 1 << 8, kStepsInFileOrder = 1 << 10;
constexpr std::int64_t kStepsInAll = 1 << 19;
constexpr int kMostChannels = 64, kMostHeads = 32, kMostDirect = 8, kMostPorts = 64;
constexpr int kIntel = 1, kAmd = 2, kIbm = 3;
enum Order : int { kAny, kFile, kReplay };

float rounded(float value) { return std::roundf(value * 1000) / 1000; }

struct PathRow {
  int kind;
  float rate;
  std::span<const std::int32_t> links;
};

class Search {
 public:
  Search(const NcclSystem& system, const NcclSearch& search, const StopFlag& stop)
      : s_(system), request_(search), stop_(stop), gpus_(static_cast<int>(system.gpu.size())),
        nets_(static_cast<int>(system.net.size())), rate_(system.rate.begin(), system.rate.end()),
        net_rate_(system.net_rate.begin(), system.net_rate.end()), used_(system.gpu.size()), of_rank_(system.gpu.size()) {
    for (int g = 0; g < gpus_; ++g) of_rank_[s_.rank[g]] = g;
  }

  NcclChannels found();

 private:
  // Paths by what they join
  PathRow row(int i) const {
    return {s_.path_kind[i], static_cast<float>(s_.path_rate[i]),
            s_.path_link.subspan(s_.path_first[i], s_.path_first[i + 1] - s_.path_first[i])};
  }
  PathRow gpu_to_gpu(int a, int b) const { return row(a * gpus_ + b); }
  PathRow gpu_to_net(int g, int n) const { return row(gpus_ * gpus_ + g * nets_ + n); }
  PathRow net_to_gpu(int n, int g) const { return row(gpus_ * gpus_ + gpus_ * nets_ + n * gpus_ + g); }
  PathRow gpu_to_switch(int g) const { return row(gpus_ * gpus_ + 2 * gpus_ * nets_ + g); }
  PathRow switch_to_gpu(int g) const { return row(gpus_ * gpus_ + 2 * gpus_ * nets_ + gpus_ + g); }

  bool trees() const {
    return trial_.pattern == kBalancedTree || trial_.pattern == kSplitTree || trial_.pattern == kPlainTree;
  }
  bool two_islands() const;
  void walk(int& time);
  void channel(int& time);
  void from_nets(int& time);
  const std::vector<int>& selected(int gpu);
  void try_gpu(int step, int to_net, int to_first, Order order, int& time, int from_gpu, int from_net, int gpu);
  void at_gpu(int gpu, int step, int to_net, int to_first, Order order, int& time);
  void complete(int& time);
  bool better() const;
  void back_out(int gpu, int step, int to_first, Order order, int& time);
  bool may_leave(int start, int n, int step) const;
  std::vector<int> next(int gpu, int nearness) const;
  int pcie_rate(int gpu) const;
  void try_nvls(int gpu, int& time);
  void try_direct(int gpu, int& time);
  bool follow(const PathRow& path, const PathRow& reverse, int start, bool inside, float times);
  int take(const PathRow& path, int start, int most, float rate);
  int speed_below(float limit) const;
  void double_channels();
  void simple_order();

  const NcclSystem& s_;
  const NcclSearch& request_;
  const StopFlag& stop_;
  int gpus_, nets_;
  std::vector<float> rate_, net_rate_;  // What is left
  std::vector<std::uint64_t> used_;     // Per GPU, the channels that have it
  std::vector<int> of_rank_;
  std::vector<std::vector<int>> selected_;  // Per GPU, and of all, for a class of paths to the network
  int selected_type_ = -1;
  NcclChannels trial_, best_;
  int to_net_ = -1, to_first_ = -1;
};

/// Whether NVLinks join the GPUs to two groups of several.
bool Search::two_islands() const {
  std::vector<int> island(gpus_), size(gpus_);
  for (int g = 0; g < gpus_; ++g) island[g] = g;
  for (int g = 0; g < gpus_; ++g)
    for (int p = g + 1; p < gpus_; ++p)
      if (gpu_to_gpu(g, p).kind == kPathNvl) island[p] = island[g];
  for (int each : island) ++size[each];
  return std::count_if(size.begin(), size.end(), [](int n) { return n > 1; }) == 2;
}

NcclChannels Search::found() {
  const bool inter = s_.several, amd = s_.processor == kAmd;
  const int capability = s_.capability_least;
  const auto speeds = request_.speeds;
  const int last = static_cast<int>(speeds.size()) - 1;
  auto speed = [&](int i) { return static_cast<float>(speeds[i]); };
  const bool crossing = request_.pattern == kRing || request_.pattern == kBalancedTree || request_.pattern == kSplitTree;
  const int crosses = nets_ > 1 && crossing ? request_.cross_nic : 0;
  best_ = {};
  best_.pattern = request_.pattern, best_.least = request_.least, best_.most = request_.most;
  best_.cross_nic = crosses == 1;
  int least_within = kPathLoc, least_across = kPathPix, most_within = kPathSys, most_across = kPathSys;
  if (gpus_ > 1) {
    least_within = kPathSys, most_within = kPathLoc;
    for (int g = 0; g < gpus_; ++g)
      for (int p = 0; p < gpus_; ++p)
        if (g != p) {
          least_within = std::min(least_within, gpu_to_gpu(g, p).kind);
          most_within = std::max(most_within, gpu_to_gpu(g, p).kind);
        }
  }
  if (inter) {
    least_across = kPathSys, most_across = kPathLoc;
    for (int g = 0; g < gpus_; ++g)
      for (int n = 0; n < nets_; ++n) {
        least_across = std::min(least_across, gpu_to_net(g, n).kind);
        most_across = std::max(most_across, gpu_to_net(g, n).kind);
      }
    most_within = most_across;
  }
  // Trees of Ampere come back through processors at times.
  if (capability < 90) most_across = kPathSys;
  best_.within_type = least_within, best_.across_type = least_across;
  const int try_same = request_.pattern == kNvls ? 0 : 1;
  best_.same = try_same;
  if (best_.pattern == kNvls && (s_.nvswitch < 0 || capability < 90)) return best_;
  if (best_.pattern == kNvls) best_.most = std::min(kMostHeads, gpus_);
  if (best_.pattern == kCollnetDirect) best_.most = std::min(kMostDirect, gpus_);
  if (gpus_ == 1 && best_.pattern != kRing) best_.pattern = kPlainTree;
  if (!inter && best_.pattern == kNvls) best_.least = best_.most;
  // A tree over two islands needs two channels, and rings must be as many.
  if (best_.pattern == kRing && two_islands() && best_.most >= 2 && best_.least == 1) best_.least = 2;
  const int room = std::max({best_.most, best_.least, 1});
  best_.orders.assign(static_cast<std::size_t>(room + 1) * gpus_, 0);
  best_.ports.assign(2 * (room + 1), -1);
  trial_ = best_;

  float total = static_cast<float>(s_.total);
  const float most = static_cast<float>(s_.most), all = total;
  if (s_.chips > 1 && best_.pattern != kRing) total = static_cast<float>(total * (s_.chips * 1.0 / (s_.chips - 1)));
  int at = 0;
  while ((speed(at) > most || speed(at) * best_.least > total) && at < last) ++at;
  trial_.within = trial_.across = speed(at);
  std::int64_t budget = kStepsInAll;
  bool first = true;
  for (;;) {
    poll(stop_);
    int time = trial_.same ? kStepsSame : kSteps;
    trial_.count = 0;
    budget -= time;
    walk(time);
    const bool done = time == -1 || best_.count * best_.across >= all;
    if (first && !done) {
      if (trial_.same && !(amd && trial_.within_type == kPathSys)) {
        trial_.same = 0;
        continue;
      }
      trial_.same = try_same;
      budget = time != -1 ? budget + time : kStepsInAll;
      if (!(budget < 0 && best_.count)) {
        if (capability >= 90 && trial_.pattern == kBalancedTree) {
          trial_.pattern = kPlainTree;
          continue;
        }
        trial_.pattern = best_.pattern;
        const int limit = inter ? trial_.across_type : most_within;
        if (trial_.within_type < limit && (best_.count == 0 || trial_.within_type < best_.within_type)) {
          if (++trial_.within_type < kPathDis) continue;
        }
        trial_.within_type = least_within;
        if (inter && trial_.across_type < most_across &&
            (best_.count == 0 || trial_.across_type < best_.across_type || trial_.across_type < kPathPxn)) {
          if (++trial_.across_type < kPathDis) continue;
        }
        trial_.across_type = least_across;
        if (crosses == 2 && trial_.cross_nic == 0 && (best_.pattern == kRing || best_.pattern == kBalancedTree)) {
          trial_.cross_nic = 2;
          continue;
        }
        trial_.cross_nic = crosses == 1;
        if (at < last && (best_.count == 0 || speed(at + 1) / best_.across > .49)) {
          trial_.across = trial_.within = speed(++at);
          continue;
        }
        at = speed_below(most);
        trial_.within = trial_.across = speed(at);
      }
    }
    if (first) {
      time = -1;
      double_channels();
      trial_ = best_;
      at = speed_below(best_.across);
      trial_.within = trial_.across = speed(at);
      trial_.least = best_.count;
      first = false;
    }
    if (time == 0 || at == 0) break;
    if (best_.pattern == kRing) {
      trial_.within = trial_.across = speed(--at);
    } else if (best_.pattern == kNvls && trial_.across == best_.across && trial_.across < trial_.within * 2) {
      trial_.least = trial_.most = best_.count;
      trial_.across = speed(--at);
    } else if (trial_.within == best_.within && trial_.within < trial_.across * 2) {
      trial_.within = speed(--at);
    } else {
      break;
    }
  }
  if (best_.count == 0 && !request_.adds && best_.pattern != kNvls) simple_order();
  best_.orders.resize(static_cast<std::size_t>(best_.count) * gpus_);
  best_.ports.resize(2 * static_cast<std::size_t>(best_.count));
  return best_;
}

int Search::speed_below(float limit) const {
  int at = 0;
  while (static_cast<float>(request_.speeds[at]) > limit && at + 1 < static_cast<int>(request_.speeds.size())) ++at;
  return at;
}

/// Fast channels are split in two.
void Search::double_channels() {
  if (best_.count == 0 || best_.pattern == kNvls || best_.within < 25) return;
  if (s_.capability_least > 80 && best_.within < 50 && best_.count > 4) return;
  const int doubled = std::min(2 * best_.count, best_.most);
  for (int c = best_.count; c < doubled; ++c) {
    std::copy_n(best_.orders.begin() + (c - best_.count) * gpus_, gpus_, best_.orders.begin() + c * gpus_);
    std::copy_n(best_.ports.begin() + (c - best_.count) * 2, 2, best_.ports.begin() + c * 2);
  }
  const int parts = (doubled + best_.count - 1) / best_.count;
  best_.within /= parts;
  best_.across /= parts;
  best_.count = doubled;
}

/// What NCCL takes where it finds no path at all.
void Search::simple_order() {
  for (int g = 0; g < gpus_; ++g) best_.orders[g] = s_.rank[g];
  best_.within = .1f, best_.within_type = kPathSys;
  auto port = [&](int g) { return s_.preferred_first[g] < s_.preferred_first[g + 1] ? s_.preferred[s_.preferred_first[g]] : -1; };
  best_.ports[0] = port(0), best_.ports[1] = port(gpus_ - 1);
  if (best_.ports[0] >= 0 && best_.ports[1] >= 0) {
    best_.across = .1f, best_.across_type = kPathSys;
  } else {
    best_.ports[0] = best_.ports[1] = -1;
    best_.across = 0, best_.across_type = kPathDis;
  }
  best_.count = 1;
}

void Search::walk(int& time) {
  to_net_ = to_first_ = -1;
  if (s_.several) {
    to_net_ = trial_.pattern == kRing ? gpus_ - 1 : trial_.pattern == kSplitTree ? 1 : 0;
  } else if (trial_.pattern == kRing) {
    to_first_ = gpus_ - 1;
  }
  channel(time);
}

void Search::channel(int& time) {
  if (s_.several) return from_nets(time);
  if (trial_.pattern == kNvls) return try_gpu(0, to_net_, to_first_, kAny, time, -1, -1, trial_.count);
  if (trial_.count == 0) {
    try_gpu(0, to_net_, to_first_, kFile, time, -1, -1, 0);
  } else {
    try_gpu(0, to_net_, to_first_, kReplay, time, -1, -1, of_rank_[trial_.orders[(trial_.count - 1) * gpus_]]);
  }
  if (!trial_.same || trial_.count == 0)
    for (int g = 0; g < gpus_; ++g) try_gpu(0, to_net_, to_first_, kAny, time, -1, -1, g);
}

/// Ports to try: those that GPUs prefer, then others by class of path; gpu -1 is for all.
const std::vector<int>& Search::selected(int gpu) {
  if (selected_type_ != trial_.across_type) {
    selected_.assign(gpus_ + 1, {});
    selected_type_ = trial_.across_type;
  }
  std::vector<int>& found = selected_[gpu + 1];
  if (!found.empty()) return found;
  const int begin = gpu < 0 ? 0 : gpu, end = gpu < 0 ? gpus_ : gpu + 1;
  std::vector<char> in(nets_);
  auto add = [&](int n) {
    if (!in[n]) in[n] = 1, found.push_back(n);
  };
  for (int g = begin; g < end; ++g)
    for (int i = s_.preferred_first[g]; i < s_.preferred_first[g + 1]; ++i) add(s_.preferred[i]);
  for (int kind = 0; kind <= trial_.across_type; ++kind)
    for (int g = begin; g < end; ++g)
      for (int n = 0; n < std::min(nets_, kMostPorts); ++n)
        if (gpu_to_net(g, n).kind == kind) add(n);
  return found;
}

void Search::from_nets(int& time) {
  const int rate = static_cast<int>(trial_.across);
  const std::vector<int>& nets = selected(-1);
  const int count = static_cast<int>(nets.size());
  const bool heads = trial_.pattern == kNvls || trial_.pattern == kCollnetDirect;
  bool found = false;
  for (int i = 0; i < count && !(heads && found); ++i) {
    const int c = trial_.count, n = nets[(c + i) % count];
    if (request_.adds && !s_.adds[n]) continue;
    if (net_rate_[n] < rate) continue;
    if (trial_.pattern == kRing && trial_.cross_nic == 2 && (c & 1) && n != trial_.ports[2 * (c - 1) + 1]) continue;
    trial_.ports[2 * c] = n;
    trial_.latency = static_cast<float>(s_.net_latency[n]);
    for (int m = 0; m < nets_; ++m)
      if (s_.rail[m] == s_.rail[n]) net_rate_[m] -= rate;
    if (heads) {
      const int gpu = s_.local_gpu[n];
      if (c < count && gpu >= 0) {
        bool taken = false;
        for (int b = 0; b < c; ++b) taken |= trial_.orders[b * gpus_] == s_.rank[gpu];
        if (!taken) {
          try_gpu(0, to_net_, to_first_, kAny, time, -1, n, gpu);
          found = true;
        }
      }
    } else if (c > 0 && trial_.same) {
      try_gpu(0, to_net_, to_first_, kReplay, time, -1, n, of_rank_[trial_.orders[(c - 1) * gpus_]]);
    } else {
      if (c == 0 && s_.nvswitch < 0) {
        // The order of the file sets a reference, at a budget of its own.
        int short_time = kStepsInFileOrder;
        try_gpu(0, to_net_, to_first_, kFile, short_time, -1, n, 0);
        if (short_time == -1) time = -1;
      }
      const int local = s_.local_gpu[n];
      if (local >= 0) try_gpu(0, to_net_, to_first_, kAny, time, -1, n, local);
      if (s_.near_first[n] == s_.near_first[n + 1]) continue;  // NCCL keeps the port's rate taken then
      for (int k = s_.near_first[n]; k < s_.near_first[n + 1]; ++k)
        if (s_.near[k] != local) try_gpu(0, to_net_, to_first_, kAny, time, -1, n, s_.near[k]);
    }
    for (int m = 0; m < nets_; ++m)
      if (s_.rail[m] == s_.rail[n]) net_rate_[m] += rate;
  }
}

void Search::try_gpu(int step, int to_net, int to_first, Order order, int& time, int from_gpu, int from_net, int gpu) {
  const std::uint64_t flag = std::uint64_t{1} << trial_.count;
  auto go = [&](float times) {
    if (from_gpu >= 0)
      return follow(gpu_to_gpu(from_gpu, gpu), gpu_to_gpu(gpu, from_gpu), s_.gpu[from_gpu], true, times);
    if (from_net >= 0) return follow(net_to_gpu(from_net, gpu), gpu_to_net(gpu, from_net), s_.net[from_net], false, times);
    return true;
  };
  if (!go(1)) return;
  used_[gpu] ^= flag;
  at_gpu(gpu, step, to_net, to_first, order, time);
  used_[gpu] ^= flag;
  go(-1);
}

void Search::at_gpu(int gpu, int step, int to_net, int to_first, Order order, int& time) {
  if (time <= 0) return;
  --time;
  if (step == gpus_) return complete(time);
  trial_.orders[trial_.count * gpus_ + step] = s_.rank[gpu];
  if (step == to_net) {
    if (s_.several) back_out(gpu, step, to_first, order, time);
  } else if (trial_.pattern == kNvls) {
    try_nvls(gpu, time);
  } else if (trial_.pattern == kCollnetDirect) {
    try_direct(gpu, time);
  } else if (step < gpus_ - 1) {
    if (order == kFile) {
      try_gpu(step + 1, to_net, to_first, order, time, gpu, -1, step + 1);
    } else if (order == kReplay) {
      const int g = of_rank_[trial_.orders[(trial_.count - 1) * gpus_ + step + 1]];
      try_gpu(step + 1, to_net, to_first, order, time, gpu, -1, g);
    } else {
      for (int g : next(gpu, to_net == -1 ? 0 : to_net == step + 1 ? 1 : -1))
        try_gpu(step + 1, to_net, to_first, order, time, gpu, -1, g);
    }
  } else if (step == to_first) {
    const int home = of_rank_[trial_.orders[trial_.count * gpus_]];
    auto go = [&](float times) {
      return follow(gpu_to_gpu(gpu, home), gpu_to_gpu(home, gpu), s_.gpu[gpu], true, times);
    };
    if (go(1)) {
      at_gpu(home, step + 1, to_net, -1, order, time);
      go(-1);
    }
  } else {
    at_gpu(gpu, gpus_, -1, -1, order, time);
  }
}

void Search::complete(int& time) {
  ++trial_.count;
  if (better()) {
    best_ = trial_;
    if (trial_.count == trial_.most) time = -1;
  }
  if (trial_.count < trial_.most) channel(time);
  --trial_.count;
}

bool Search::better() const {
  if (trial_.count < trial_.least) return false;
  if (trial_.pattern == kNvls)
    return (trial_.count > best_.count && trial_.count <= gpus_) ||
           trial_.count * trial_.across > best_.count * best_.across;
  const float mine = trial_.count * trial_.within, theirs = best_.count * best_.within;
  if (mine != theirs) return mine > theirs;
  return trial_.pattern == best_.pattern && trial_.cross_nic == best_.cross_nic && trial_.hops < best_.hops;
}

void Search::back_out(int gpu, int step, int to_first, Order order, int& time) {
  const int start = trial_.ports[2 * trial_.count];
  const bool balanced = trial_.pattern == kBalancedTree;
  for (int n : selected(gpu)) {  // a walk keeps its class, so that this list stays
    if (!may_leave(start, n, step)) continue;
    const float whole = trial_.across;
    // A balanced tree has half of the traffic on each of the first two GPUs.
    auto go = [&](float times) {
      if (balanced) trial_.across /= 2;
      const bool reached = follow(gpu_to_net(gpu, n), net_to_gpu(n, gpu), s_.gpu[gpu], false, times);
      trial_.across = whole;
      return reached;
    };
    if (!go(1)) continue;
    trial_.ports[2 * trial_.count + 1] = n;
    at_gpu(gpu, step, balanced && step == 0 ? 1 : -1, to_first, order, time);
    go(-1);
  }
}

bool Search::may_leave(int start, int n, int step) const {
  const int c = trial_.count;
  if (trial_.pattern == kPlainTree && n != start) return false;
  if (trial_.pattern == kRing && trial_.cross_nic == 2) {
    if ((c & 1) && n != trial_.ports[2 * (c - 1)]) return false;
  } else if (trial_.cross_nic == 0 && s_.rail[n] != s_.rail[start]) {
    return false;
  }
  return !(trial_.pattern == kBalancedTree && step != 0 && n != trial_.ports[2 * c + 1]);
}

/// GPUs to go on to: nearest to the port first (1), last (-1), or by paths inside alone (0).
std::vector<int> Search::next(int gpu, int nearness) const {
  using Score = std::array<int, 7>;
  const std::uint64_t flag = std::uint64_t{1} << trial_.count;
  if (s_.nvswitch >= 0) {
    // NVSwitches carry most where each GPU has few peers: neighbours only.
    const int before = (gpu - 1 + gpus_) % gpus_, after = (gpu + 1) % gpus_;
    const bool tree = trial_.pattern == kSplitTree || trial_.pattern == kBalancedTree;
    std::vector<int> near;
    // NCCL moves each of them to the front in turn, so that the second one is tried first.
    for (int g : trial_.pattern == kRing ? std::array{before, after} : std::array{after, tree ? before : after}) {
      const bool free = g != gpu && !gpu_to_gpu(gpu, g).links.empty() && !(used_[g] & flag);
      if (free && (near.empty() || near[0] != g)) near.push_back(g);
    }
    return near;
  }
  std::vector<Score> scores;
  for (int i = 1; i < gpus_; ++i) {
    const int g = (gpu + i) % gpus_;
    const PathRow path = gpu_to_gpu(gpu, g);
    if (path.links.empty() || (used_[g] & flag)) continue;
    Score score{0, 0, 0, -static_cast<int>(path.rate), static_cast<int>(path.links.size()), i, g};
    if (nearness) {
      const PathRow far = net_to_gpu(trial_.ports[2 * trial_.count], g);
      score[0] = -static_cast<int>(far.rate), score[1] = -pcie_rate(g), score[2] = static_cast<int>(far.links.size());
    }
    scores.push_back(score);
  }
  std::sort(scores.begin(), scores.end());
  const bool alike = std::all_of(scores.begin(), scores.end(), [&](const Score& each) {
    return each[3] == scores[0][3] && each[4] == scores[0][4];
  });
  std::vector<int> found;
  for (const Score& each : scores) found.push_back(each[6]);
  if (nearness == -1 && alike) std::reverse(found.begin(), found.end());
  return found;
}

int Search::pcie_rate(int gpu) const {
  const int up = s_.pcie[gpu];
  if (up < 0 || s_.back[up] < 0) return -1;
  return static_cast<int>(std::min(rate_[up], rate_[s_.back[up]]));
}

/// A head of NVLS pulls from and pushes to the NVSwitch twice what the other GPUs do.
void Search::try_nvls(int gpu, int& time) {
  auto go = [&](int i, float sign) {
    const int g = i % gpus_;
    const float times = sign * (g == gpu ? 2 : 1);
    if (i < gpus_) return follow(switch_to_gpu(g), gpu_to_switch(g), s_.nvswitch, true, times);
    return follow(gpu_to_switch(g), switch_to_gpu(g), s_.gpu[g], true, times);
  };
  int taken = 0;
  while (taken < 2 * gpus_ && go(taken, 1)) ++taken;
  if (taken == 2 * gpus_) at_gpu(-1, gpus_, -1, -1, kAny, time);
  while (taken > 0) go(--taken, -1);
}

void Search::try_direct(int gpu, int& time) {
  const float share = 1.0f / static_cast<float>(gpus_ - 1);
  auto go = [&](int i, float times) {
    const int g = i % gpus_;
    if (i < gpus_) return follow(gpu_to_gpu(gpu, g), gpu_to_gpu(g, gpu), s_.gpu[gpu], true, times);
    return follow(gpu_to_gpu(g, gpu), gpu_to_gpu(gpu, g), s_.gpu[g], true, times);
  };
  int taken = 0;
  while (taken < 2 * gpus_ && go(taken, share)) ++taken;
  if (taken == 2 * gpus_) {
    int step = 1;
    for (int g = 0; g < gpus_; ++g)
      if (g != gpu) trial_.orders[trial_.count * gpus_ + step++] = s_.rank[g];
    at_gpu(-1, gpus_, -1, -1, kAny, time);
  }
  while (taken > 0) go(--taken, -share);
}

/// Takes the rate of a channel along a path, or gives it back (times < 0). False where the path cannot carry it.
bool Search::follow(const PathRow& path, const PathRow& reverse, int start, bool inside, float times) {
  float rate = inside ? trial_.within : trial_.across;
  const int kind = inside ? trial_.within_type : trial_.across_type;
  if (path.kind >= kPathDis) return false;
  if (times == 1 && path.kind > kind) return false;
  if (times == 1 && trees() && reverse.kind > kind) return false;
  rate *= times;
  const int length = static_cast<int>(path.links.size());
  const int steps = take(path, start, length, rate);
  if (steps < length) {
    take(path, start, steps, -rate);
    return false;
  }
  trial_.hops = static_cast<int>(static_cast<float>(trial_.hops) + times * static_cast<float>(length));
  return true;
}

int Search::take(const PathRow& path, int start, int most, float rate) {
  float pcie = rate;
  for (int link : path.links) {
    const int to = s_.to[link];
    // Intel's processors cut what GPUs send to each other into small packets.
    if (s_.kind[to] == kNcclCpu && path.kind == kPathPhb && s_.kind[start] == kNcclGpu && s_.maker[to] == kIntel)
      pcie = rate * 6 / 5;
  }
  for (int step = 0; step < most; ++step) {
    const int link = path.links[step], to = s_.to[link];
    const float forward = s_.link[link] == kPathPix ? pcie : rate;
    float backward = 0;
    if (s_.kind[to] == kNcclDev && s_.capability[to] < 80 && s_.kind[start] != kNcclGpu) backward += forward / 8;
    if (s_.kind[to] == kNcclCpu && s_.maker[to] == kIbm && s_.link[link] == kPathNvl) backward += forward;
    const int back = s_.back[link];
    if (rate_[link] < forward || (backward != 0 && back >= 0 && rate_[back] < backward)) return step;
    rate_[link] = rounded(rate_[link] - forward);
    if (backward != 0 && back >= 0) rate_[back] = rounded(rate_[back] - backward);
  }
  return most;
}

void check(const char* name, std::size_t found, std::size_t expected) {
  if (found != expected)
    throw std::invalid_argument(std::string(name) + " must have " + std::to_string(expected) + " entries, found " +
                                std::to_string(found));
}

}  // namespace

NcclChannels nccl_search(const NcclSystem& system, const NcclSearch& search, const StopFlag& stop) {
  const std::size_t gpus = system.gpu.size(), nets = system.net.size();
  if (gpus == 0 || search.speeds.empty()) throw std::invalid_argument("expected a GPU and a speed, found none");
  if (search.most < 0 || search.most > kMostChannels)
    throw std::invalid_argument("expected 0 .. 64 channels, found " + std::to_string(search.most));
  check("back", system.back.size(), system.to.size());
  check("rate", system.rate.size(), system.to.size());
  check("rank", system.rank.size(), gpus);
  std::vector<char> seen(gpus);
  for (const std::int32_t rank : system.rank)
    if (rank < 0 || static_cast<std::size_t>(rank) >= gpus || std::exchange(seen[rank], 1))
      throw std::invalid_argument("expected each rank of 0 .. " + std::to_string(gpus - 1) + " once, found " +
                                  std::to_string(rank));
  check("pcie", system.pcie.size(), gpus);
  check("net_rate", system.net_rate.size(), nets);
  check("rail", system.rail.size(), nets);
  check("local_gpu", system.local_gpu.size(), nets);
  check("preferred_first", system.preferred_first.size(), gpus + 1);
  check("near_first", system.near_first.size(), nets + 1);
  const std::size_t paths = gpus * gpus + 2 * gpus * nets + (system.nvswitch < 0 ? 0 : 2 * gpus);
  check("path_kind", system.path_kind.size(), paths);
  check("path_rate", system.path_rate.size(), paths);
  check("path_first", system.path_first.size(), paths + 1);
  return Search(system, search, stop).found();
}

}  // namespace coppice
