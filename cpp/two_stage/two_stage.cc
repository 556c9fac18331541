#include "two_stage/two_stage.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace coppice {

static constexpr double kLeast = -30;     // smaller exponents are as good as this one
static constexpr double kMost = 30;       // above the largest load at the start of a box, lengths rise no further
static constexpr double kSimilar = 1e-4;  // ways whose lengths differ by less stay
static constexpr int kNewtonSteps = 8;
static constexpr Amount kLargest = Amount{1} << 60;

TwoStage::TwoStage(BoxNetwork network, std::span<const Amount> demand, Amount scale)
    : network_(std::move(network)),
      scale_(scale),
      ranks_(network_.ranks()),
      ways_(network_.width + (network_.cross_start.empty() ? 1 : 2)),
      demand_(demand.begin(), demand.end()) {
  auto width = static_cast<std::size_t>(network_.width), boxes = static_cast<std::size_t>(network_.boxes);
  auto ranks = static_cast<std::size_t>(ranks_);
  bool sized = network_.width > 0 && network_.boxes > 0 && network_.near_start.size() == boxes * width * width + 1 &&
               network_.far_start.size() == boxes * boxes * width + 1 &&
               (network_.cross_start.empty() || network_.cross_start.size() == ranks * ranks + 1);
  if (!sized || demand_.size() != ranks * ranks) throw std::invalid_argument("two stages need the hops of all boxes and a demand per pair");
  auto closes = [&](const std::vector<std::int64_t>& start, const std::vector<Arc>& link) {
    if (!start.empty() && start.back() != static_cast<std::int64_t>(link.size())) return false;
    return std::all_of(link.begin(), link.end(), [&](Arc e) { return e >= 0 && static_cast<std::size_t>(e) < network_.capacity.size(); });
  };
  if (!closes(network_.near_start, network_.near) || !closes(network_.far_start, network_.far) || !closes(network_.cross_start, network_.cross))
    throw std::invalid_argument("two stages need hops along links of the network");
  if (std::any_of(network_.capacity.begin(), network_.capacity.end(), [](Amount c) { return c <= 0; }))
    throw std::invalid_argument("two stages need capacities above 0");
  if (scale <= 0) throw std::invalid_argument("two stages need a scale above 0");
  Amount total = 0;
  for (std::int32_t p = 0; p < ranks_; ++p) {
    demand_[static_cast<std::size_t>(p) * ranks + p] = 0;
    for (std::int32_t q = 0; q < ranks_; ++q) {
      Amount wanted = demand_[static_cast<std::size_t>(p) * ranks + q];
      if (wanted < 0) throw std::invalid_argument("two stages need demands of 0 or more");
      if (wanted > kLargest / scale - total) throw std::overflow_error("demands are too large for their scale");
      total += wanted;
    }
  }
  for (Amount& each : demand_) each *= scale;
  load_.assign(network_.capacity.size(), 0);
  length_.assign(network_.capacity.size(), 0);
  mark_.assign(network_.capacity.size(), 0);
}

TwoStage::Hops TwoStage::hops(std::int32_t p, std::int32_t q, std::int32_t way) const {
  std::int32_t width = network_.width, s = p / width, i = p % width, t = q / width, j = q % width;
  auto near = [&](std::int32_t box, std::int32_t a, std::int32_t b) -> std::span<const Arc> {
    if (a == b) return {};
    auto x = (static_cast<std::size_t>(box) * width + a) * width + b;
    return {network_.near.data() + network_.near_start[x], network_.near.data() + network_.near_start[x + 1]};
  };
  auto far = [&](std::int32_t from, std::int32_t to, std::int32_t rail) -> std::span<const Arc> {
    auto x = (static_cast<std::size_t>(from) * network_.boxes + to) * width + rail;
    return {network_.far.data() + network_.far_start[x], network_.far.data() + network_.far_start[x + 1]};
  };
  auto cross = [&](std::int32_t from, std::int32_t to) -> std::span<const Arc> {
    auto x = static_cast<std::size_t>(from) * ranks_ + to;
    return {network_.cross.data() + network_.cross_start[x], network_.cross.data() + network_.cross_start[x + 1]};
  };
  if (s == t) {
    std::int32_t other = (s + 1) % network_.boxes;
    if (way == width) return {{far(s, other, i), near(other, i, j), far(other, s, j)}};
    if (way > width) return {{far(s, other, i), cross(other * width + i, q), {}}};
    return way == i ? Hops{{near(s, i, j), {}, {}}} : Hops{{near(s, i, way), near(s, way, j), {}}};
  }
  if (way >= width) return {{cross(p, q), {}, {}}};
  return {{near(s, i, way), far(s, t, way), near(t, way, j)}};
}

void TwoStage::add(std::int32_t p, std::int32_t q, std::int32_t way, Amount amount) {
  if (!amount) return;
  amount_[cell(p, q) + way] += amount;
  for (auto part : hops(p, q, way).part)
    for (Arc e : part) load_[e] += amount;
}

// What each rail takes of a tile, in proportion to its slowest link between the two boxes.
void TwoStage::quotas(std::int32_t s, std::int32_t t, Amount total, std::vector<Amount>& room) const {
  std::int32_t width = network_.width;
  double all = 0, sofar = 0;
  std::vector<double> rate(width);
  for (std::int32_t k = 0; k < width; ++k) {
    auto x = (static_cast<std::size_t>(s) * network_.boxes + t) * width + k;
    Amount least = std::numeric_limits<Amount>::max();
    for (auto at = network_.far_start[x]; at < network_.far_start[x + 1]; ++at) least = std::min(least, network_.capacity[network_.far[at]]);
    all += rate[k] = static_cast<double>(least);
  }
  bool alike = std::all_of(rate.begin(), rate.end(), [&](double r) { return r == rate[0]; });
  Amount begin = 0;
  for (std::int32_t k = 0; k < width; ++k) {
    sofar += rate[k];
    // Equal rails get equal parts without a float: then a scale that the width divides makes them exactly equal.
    Amount end = k + 1 == width ? total : alike ? total / width * (k + 1) + total % width * (k + 1) / width
                                                : std::clamp(static_cast<Amount>(static_cast<double>(total) * (sofar / all)), begin, total);
    room[k] = end - begin;
    begin = end;
  }
}

void TwoStage::deal_tile(std::int32_t s, std::int32_t t, Deal deal, std::vector<Amount>& left) {
  std::int32_t width = network_.width;
  Amount total = 0;
  for (std::int32_t i = 0; i < width; ++i)
    for (std::int32_t j = 0; j < width; ++j) total += left[i * width + j] = demand_[(static_cast<std::size_t>(s) * width + i) * ranks_ + t * width + j];
  if (!total) return;
  std::vector<Amount> room(width);
  auto take = [&](std::int32_t i, std::int32_t j, std::int32_t k, Amount most) {
    Amount amount = std::min({most, left[i * width + j], room[k]});
    left[i * width + j] -= amount;
    room[k] -= amount;
    add(s * width + i, t * width + j, k, amount);
  };
  auto each = [&](auto&& act) {
    for (std::int32_t i = 0; i < width; ++i)
      for (std::int32_t j = 0; j < width; ++j)
        if (left[i * width + j]) act(i, j, left[i * width + j]);
  };
  switch (deal) {
    case Deal::kDirect:
    case Deal::kTarget:
      each([&](std::int32_t i, std::int32_t j, Amount all) {
        add(s * width + i, t * width + j, deal == Deal::kDirect && !network_.cross_start.empty() ? width : j, all);
      });
      return;
    case Deal::kEven:
      each([&](std::int32_t i, std::int32_t j, Amount all) {
        quotas(s, t, all, room);
        for (std::int32_t k = 0; k < width; ++k) take(i, j, k, all);
      });
      return;
    case Deal::kKept:
      quotas(s, t, total, room);
      each([&](std::int32_t i, std::int32_t j, Amount all) { take(i, j, i, all); });
      break;
    case Deal::kBalanced:
      quotas(s, t, total, room);
      for (std::int32_t i = 0; i < width; ++i) take(i, i, i, left[i * width + i]);
      each([&](std::int32_t i, std::int32_t j, Amount all) { take(i, j, i, all / 2), take(i, j, j, all - all / 2); });
      each([&](std::int32_t i, std::int32_t j, Amount all) { take(i, j, i, all), take(i, j, j, all); });
      break;
  }
  std::int32_t k = 0;
  each([&](std::int32_t i, std::int32_t j, Amount) {
    while (left[i * width + j]) {
      while (!room[k]) ++k;
      take(i, j, k, room[k]);
    }
  });
}

void TwoStage::fill(Deal deal) {
  std::int32_t width = network_.width;
  amount_.assign(static_cast<std::size_t>(ranks_) * ranks_ * ways_, 0);
  std::fill(load_.begin(), load_.end(), 0);
  std::vector<Amount> left(static_cast<std::size_t>(width) * width);
  for (std::int32_t s = 0; s < network_.boxes; ++s)
    for (std::int32_t t = 0; t < network_.boxes; ++t) {
      if (s != t) {
        deal_tile(s, t, deal, left);
        continue;
      }
      for (std::int32_t p = s * width; p < (s + 1) * width; ++p)
        for (std::int32_t q = s * width; q < (s + 1) * width; ++q)
          if (p != q) add(p, q, q % width, demand_[static_cast<std::size_t>(p) * ranks_ + q]);
    }
}

double TwoStage::worst() const {
  double result = 0;
  for (std::size_t e = 0; e < load_.size(); ++e) result = std::max(result, static_cast<double>(load_[e]) / static_cast<double>(network_.capacity[e]));
  return result;
}

std::vector<double> TwoStage::lengths(double steepness) const {
  std::vector<double> result(load_.size());
  double top = worst(), largest = 0;
  for (std::size_t e = 0; e < load_.size(); ++e) {
    auto capacity = static_cast<double>(network_.capacity[e]);
    double over = top > 0 ? steepness * (static_cast<double>(load_[e]) / capacity / top - 1) : 0;
    largest = std::max(largest, result[e] = std::exp(std::max(over, kLeast)) / capacity);
  }
  for (double& each : result) each /= largest;
  return result;
}

void TwoStage::relength(Arc e, double scale) {
  auto capacity = static_cast<double>(network_.capacity[e]);
  length_[e] = std::exp(std::clamp(scale * (static_cast<double>(load_[e]) / capacity - top_), kLeast, kMost)) / capacity;
}

double TwoStage::length_of(const Hops& way) const {
  double sum = 0;
  for (auto part : way.part)
    for (Arc e : part) sum += length_[e];
  return sum;
}

void TwoStage::sweep(double steepness, const StopFlag& stop) {
  std::int32_t width = network_.width;
  std::vector<double> found(ways_);
  for (std::int32_t p = 0; p < ranks_; ++p) {
    if (p % width == 0) {
      poll(stop);
      top_ = worst();
      for (Arc e = 0; e < static_cast<Arc>(length_.size()); ++e) relength(e, top_ > 0 ? steepness / top_ : 0);
    }
    double scale = top_ > 0 ? steepness / top_ : 0;
    for (std::int32_t q = 0; q < ranks_; ++q) {
      if (!demand_[static_cast<std::size_t>(p) * ranks_ + q]) continue;
      bool inside = p / width == q / width;
      bool joined = !network_.cross_start.empty();  // rails are
      std::int32_t ways = inside ? width + (network_.boxes > 1 ? 1 + joined : 0) : width + joined;
      std::int32_t best = 0;
      for (std::int32_t k = 0; k < ways; ++k) {
        found[k] = length_of(hops(p, q, k));
        if (found[k] < found[best]) best = k;
      }
      for (std::int32_t k = 0; k < ways; ++k)
        if (k != best && amount_[cell(p, q) + k] && found[k] > found[best] * (1 + kSimilar)) shift(p, q, k, best, scale);
    }
  }
}

// Moves a block from one way to another until both are equally long: the derivative of the soft maximum along the move
// is their difference in length.
void TwoStage::shift(std::int32_t p, std::int32_t q, std::int32_t from, std::int32_t to, double scale) {
  Hops left = hops(p, q, from), right = hops(p, q, to);
  for (auto part : left.part)
    for (Arc e : part) --mark_[e];
  for (auto part : right.part)
    for (Arc e : part) ++mark_[e];
  auto slope = [&](double amount, double& curvature) {
    double sum = 0;
    curvature = 0;
    auto add_link = [&](Arc e, double sign) {
      auto capacity = static_cast<double>(network_.capacity[e]);
      double over = (static_cast<double>(load_[e]) + sign * amount) / capacity;
      double w = std::exp(std::clamp(scale * (over - top_), kLeast, kMost)) / capacity;
      sum += sign * w;
      curvature += w * scale / capacity;
    };
    for (auto part : right.part)
      for (Arc e : part)
        if (mark_[e] > 0) add_link(e, 1);
    for (auto part : left.part)
      for (Arc e : part)
        if (mark_[e] < 0) add_link(e, -1);
    return sum;
  };
  Amount most = amount_[cell(p, q) + from], moved = most;
  double curvature = 0;
  if (slope(static_cast<double>(most), curvature) > 0) {
    double low = 0, high = static_cast<double>(most), at = 0;
    for (int step = 0; step < kNewtonSteps; ++step) {
      double value = slope(at, curvature);
      (value < 0 ? low : high) = at;
      double wanted = curvature > 0 ? at - value / curvature : high;
      at = wanted > low && wanted < high ? wanted : (low + high) / 2;
      if (high - low <= 1e-3 * static_cast<double>(most)) break;
    }
    moved = std::min(most, static_cast<Amount>(low > 0 ? low : at));
  }
  amount_[cell(p, q) + from] -= moved;
  amount_[cell(p, q) + to] += moved;
  for (auto part : left.part)
    for (Arc e : part) mark_[e] = 0, load_[e] -= moved, relength(e, scale);
  for (auto part : right.part)
    for (Arc e : part) mark_[e] = 0, load_[e] += moved, relength(e, scale);
}

Parts TwoStage::parts() const {
  Parts result;
  for (std::int32_t p = 0; p < ranks_; ++p)
    for (std::int32_t q = 0; q < ranks_; ++q) {
      if (!demand_[static_cast<std::size_t>(p) * ranks_ + q]) continue;
      bool inside = p / network_.width == q / network_.width;
      Amount straight = 0;  // over either end of a hop inside a box: the hop itself
      for (std::int32_t k = 0; k < ways_; ++k) {
        Amount amount = amount_[cell(p, q) + k];
        if (inside && (k == p % network_.width || k == q % network_.width)) {
          straight += amount;
          continue;
        }
        if (!amount) continue;
        result.source.push_back(p), result.target.push_back(q), result.way.push_back(k), result.amount.push_back(amount);
      }
      if (straight) result.source.push_back(p), result.target.push_back(q), result.way.push_back(q % network_.width), result.amount.push_back(straight);
    }
  return result;
}

}  // namespace coppice
