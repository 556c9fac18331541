#include "recreate/recreate.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "core/wide.h"
#include "recreate/calendar.h"

namespace coppice {

namespace {

using recreation::Calendar;
using recreation::Time;
using Rank = std::int32_t;
using Channel = std::int32_t;
using Chunk = std::int32_t;

constexpr Time kNever = std::numeric_limits<Time>::max();
constexpr Time kLongest = Time{1} << 40, kLatest = Time{1} << 61;
constexpr Time kSteps = 256;             // the target is the best time less a part of so many
constexpr std::size_t kMostOthers = 8;   // transfers nearby that a round takes out, at most
constexpr std::size_t kLongestWay = 64;  // how far back a round looks for what a late arrival waited for
constexpr std::size_t kWeights = 9;      // weights of full ports: halves from 0 on
constexpr double kSlack = 0.02;          // how much more lateness than the least so far is kept

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

class Search {
 public:
  Search(const SizedNetwork& network, const SizedChunks& chunks, std::uint64_t seed)
      : net_(network), demand_(chunks), ranks_(at(network.num_ranks)), chunks_(chunks.size.size()), seed_(seed),
        calendar_(at(network.num_ports)), out_(ranks_), into_(ranks_), cell_(ranks_ * chunks_),
        place_(ranks_ * chunks_), missing_(ranks_) {
    for (std::size_t k = 0; k < net_.src.size(); ++k) {
      out_[at(net_.src[k])].push_back(static_cast<Channel>(k));
      into_[at(net_.dst[k])].push_back(static_cast<Channel>(k));
    }
    for (std::size_t c = 0; c < chunks_; ++c) cell(chunks.source[c], static_cast<Chunk>(c)).arrive = 0;
  }

  void begin(const TransferOrder& first) {
    target_ = kNever;
    for (std::size_t i = 0; i < first.channel.size(); ++i) {
      const Channel k = first.channel[i];
      const Chunk c = first.chunk[i];
      const Time has = cell(net_.src[at(k)], c).arrive;
      if (has == kNever || cell(net_.dst[at(k)], c).arrive != kNever)
        throw std::invalid_argument("expected transfers of what their senders have to ranks that lack it");
      put(c, k, first_gap(c, k, std::max(has, first.start[i])));
    }
    for (std::size_t i = 0; i < cell_.size(); ++i)
      if (cell_[i].arrive == kNever && wants(static_cast<Rank>(i % ranks_), static_cast<Chunk>(i / ranks_)))
        throw std::invalid_argument("expected transfers to all ranks that want a chunk");
    keep();
    aim();
  }

  Recreated run(std::int64_t looks, Time enough, const StopFlag& stop) {
    looks_ = looks;
    while (looks_ > 0 && best_time_ > enough && !late_.empty()) {
      poll(stop);
      round();
      if (late_.empty()) aim();
    }
    return std::move(best_);
  }

 private:
  struct Cell {
    Channel channel = -1;  // by which the chunk comes to the rank; -1: it is from there, or is not there
    Time start = 0;
    Time arrive = kNever;
  };
  struct Change {
    Chunk chunk;
    Channel channel;
    Time start;
    bool put;
  };
  struct Offer {
    double cost;
    Time start;
    Channel channel;
    std::int64_t stamp;  // how many transfers had been put when it was made
    bool operator>(const Offer& other) const {
      return cost != other.cost ? cost > other.cost : channel > other.channel;
    }
  };

  /// A number below `n`, which is above 0 (splitmix64).
  std::size_t below(std::size_t n) {
    const std::uint64_t drawn = mixed(seed_);
    seed_ += 0x9E3779B97F4A7C15u;
    return static_cast<std::size_t>((static_cast<Wide>(drawn) * static_cast<Wide>(n)) >> 64);
  }
  std::size_t place(Rank v, Chunk c) const { return at(c) * ranks_ + at(v); }
  Cell& cell(Rank v, Chunk c) { return cell_[place(v, c)]; }
  bool wants(Rank v, Chunk c) const {
    const Rank target = demand_.target[at(c)];
    return target < 0 ? v != demand_.source[at(c)] : v == target;
  }

  Time duration(Chunk c, Channel k) const {
    return net_.duration[at(demand_.size[at(c)]) * net_.src.size() + at(k)];
  }

  /// Calls `use` with each port of a channel, and from when after the start it serves the chunk for how long.
  template <typename Use>
  void each_port(Chunk c, Channel k, Use use) const {
    const std::size_t own = at(demand_.size[at(c)]) * net_.port.size(), end = at(net_.port_start[at(k) + 1]);
    for (std::size_t i = at(net_.port_start[at(k)]); i < end; ++i)
      use(at(net_.port[i]), net_.offset[own + i], net_.hold[own + i]);
  }

  /// The first time from `from` on at which a channel can start.
  Time first_gap(Chunk c, Channel k, Time from) {
    for (bool moved = true; moved;) {
      moved = false;
      each_port(c, k, [&](std::size_t p, Time offset, Time hold) {
        --looks_;
        const Time then = calendar_[p].gap(from + offset, hold) - offset;
        moved = moved || then != from;
        from = then;
      });
    }
    return from;
  }

  void put(Chunk c, Channel k, Time start) {
    ++puts_;
    const std::size_t to = place(net_.dst[at(k)], c);
    cell_[to] = {k, start, start + duration(c, k)};
    each_port(c, k, [&](std::size_t p, Time offset, Time hold) { calendar_[p].add(start + offset, hold, to); });
    weigh(to, 1);
  }
  void take(std::size_t from) {
    const Cell was = cell_[from];
    each_port(static_cast<Chunk>(from / ranks_), was.channel,
              [&](std::size_t p, Time offset, Time hold) { calendar_[p].remove(was.start + offset, hold); });
    weigh(from, -1);
    cell_[from] = {};
  }

  /// Counts an arrival as late where it is, or no longer.
  void weigh(std::size_t here, int sign) {
    const Time over = cell_[here].arrive - target_;
    if (over <= 0) return;
    lateness_ += sign * (1 + static_cast<double>(over) / step_);
    if (sign > 0) {
      place_[here] = late_.size();
      late_.push_back(here);
    } else {
      late_[place_[here]] = late_.back();
      place_[late_.back()] = place_[here];
      late_.pop_back();
    }
  }

  /// Sets the target anew, a step below the best time.
  void aim() {
    const Time step = std::max<Time>(1, best_time_ / kSteps);
    target_ = best_time_ - step;
    step_ = static_cast<double>(step);
    late_.clear();
    lateness_ = 0;
    for (std::size_t i = 0; i < cell_.size(); ++i)
      if (cell_[i].channel >= 0) weigh(i, 1);
    least_ = lateness_;
  }

  /// Keeps what there is as the best so far.
  void keep() {
    best_ = {};
    std::vector<std::pair<Time, std::size_t>> order;
    for (std::size_t i = 0; i < cell_.size(); ++i)
      if (cell_[i].channel >= 0) order.emplace_back(cell_[i].start, i);
    std::sort(order.begin(), order.end());
    best_time_ = 0;
    for (const auto& [begun, i] : order) {
      best_time_ = std::max(best_time_, cell_[i].arrive);
      best_.start.push_back(begun);
      best_.arrive.push_back(cell_[i].arrive);
      best_.channel.push_back(cell_[i].channel);
      best_.chunk.push_back(static_cast<Chunk>(i / ranks_));
    }
    best_.time = best_time_;
  }

  /// Takes out an arrival and all that its rank passes on of the chunk.
  void ruin(std::size_t here) {
    const Cell was = cell_[here];
    if (was.channel < 0) return;
    const auto c = static_cast<Chunk>(here / ranks_);
    take(here);
    log_.push_back({c, was.channel, was.start, false});
    if (std::find(open_.begin(), open_.end(), c) == open_.end()) open_.push_back(c);
    for (Channel k : out_[here % ranks_]) {
      const std::size_t next = place(net_.dst[at(k)], c);
      if (cell_[next].channel == k) ruin(next);
    }
  }

  /// A late arrival, one that it waited for, be it on the way or at a port, and some nearby that went before it.
  void pick() {
    picked_.assign(1, late_[below(late_.size())]);
    waited_.clear();
    for (std::size_t here = picked_.front(); waited_.size() < kLongestWay;) {
      waited_.push_back(here);
      const auto c = static_cast<Chunk>(here / ranks_);
      const Cell& own = cell_[here];
      before_.clear();
      const std::size_t from = place(net_.src[at(own.channel)], c);
      if (cell_[from].channel >= 0 && cell_[from].arrive == own.start) before_.push_back(from);
      each_port(c, own.channel, [&](std::size_t p, Time offset, Time) {
        calendar_[p].until(own.start + offset, [&](std::size_t owner) { before_.push_back(owner); });
      });
      if (before_.empty()) break;
      here = before_[below(before_.size())];
    }
    picked_.push_back(waited_[below(waited_.size())]);
    for (std::size_t others = below(kMostOthers + 1); others > 0; --others) {
      const std::size_t like = picked_[below(picked_.size())];
      const std::vector<Channel>& ways = into_[like % ranks_];
      const Rank from = net_.src[at(ways[below(ways.size())])];
      const Rank rank = below(2) == 0 ? from : static_cast<Rank>(like % ranks_);
      const std::size_t other = place(rank, static_cast<Chunk>(below(chunks_)));
      if (cell_[other].channel >= 0 && cell_[other].start <= cell_[like].start) picked_.push_back(other);
    }
  }

  void round() {
    const double before = lateness_;
    log_.clear();
    open_.clear();
    pick();
    for (std::size_t each : picked_) ruin(each);
    for (std::size_t i = open_.size(); i > 1; --i) std::swap(open_[i - 1], open_[below(i)]);
    weight_ = static_cast<double>(below(kWeights)) / 2;
    for (Chunk each : open_) grow(each);
    if (lateness_ > std::max(before, least_ * (1 + kSlack))) {
      for (std::size_t i = log_.size(); i > 0; --i) {
        const Change& was = log_[i - 1];
        if (was.put) {
          take(place(net_.dst[at(was.channel)], was.chunk));
        } else {
          put(was.chunk, was.channel, was.start);
        }
      }
    } else if (lateness_ < least_) {
      least_ = lateness_;
      Time last = late_.empty() ? target_ : 0;
      for (std::size_t each : late_) last = std::max(last, cell_[each].arrive);
      if (last < best_time_) keep();
    }
  }

  /// Brings a chunk to all that want it and do not have it.
  void grow(Chunk c) {
    offers_.clear();
    std::size_t left = 0;
    for (std::size_t v = 0; v < ranks_; ++v) {
      const auto rank = static_cast<Rank>(v);
      missing_[v] = cell(rank, c).arrive == kNever && wants(rank, c);
      left += missing_[v];
    }
    for (std::size_t v = 0; v < ranks_; ++v) {
      if (!missing_[v]) continue;
      for (Channel k : into_[v])
        if (cell(net_.src[at(k)], c).arrive != kNever) offers_.push_back(offer(c, k));
    }
    std::make_heap(offers_.begin(), offers_.end(), std::greater<>());
    while (left > 0) {
      std::pop_heap(offers_.begin(), offers_.end(), std::greater<>());
      const Offer next = offers_.back();
      offers_.pop_back();
      const std::size_t v = at(net_.dst[at(next.channel)]);
      if (!missing_[v]) continue;
      if (next.stamp != puts_) {  // its ports may have been taken since
        const Offer now = offer(c, next.channel);
        if (now.start != next.start) {
          push(now);
          continue;
        }
      }
      put(c, next.channel, next.start);
      log_.push_back({c, next.channel, next.start, true});
      missing_[v] = 0;
      --left;
      for (Channel k : out_[v])
        if (missing_[at(net_.dst[at(k)])]) push(offer(c, k));
    }
  }

  Offer offer(Chunk c, Channel k) {
    const Time start = first_gap(c, k, cell(net_.src[at(k)], c).arrive);
    double cost = 0;
    if (weight_ > 0) {
      each_port(c, k, [&](std::size_t p, Time, Time hold) {
        const double full = static_cast<double>(calendar_[p].load()) / static_cast<double>(target_);
        cost += static_cast<double>(hold) * full * full;
      });
    }
    return {static_cast<double>(start + duration(c, k)) + weight_ * cost, start, k, puts_};
  }
  void push(const Offer& one) {
    offers_.push_back(one);
    std::push_heap(offers_.begin(), offers_.end(), std::greater<>());
  }

  const SizedNetwork& net_;
  const SizedChunks& demand_;
  const std::size_t ranks_, chunks_;
  std::uint64_t seed_;
  std::vector<Calendar> calendar_;
  std::vector<std::vector<Channel>> out_, into_;
  std::vector<Cell> cell_;                 // per chunk and rank: how the chunk comes there
  Recreated best_;
  std::vector<std::size_t> late_, place_;  // what arrives after target_, and where in late_ each of them is
  std::vector<std::uint8_t> missing_;
  std::vector<Change> log_;
  std::vector<Chunk> open_;
  std::vector<std::size_t> picked_, waited_, before_;
  std::vector<Offer> offers_;
  std::int64_t puts_ = 0, looks_ = 0;
  Time target_ = 0, best_time_ = 0;
  double step_ = 1, lateness_ = 0, least_ = 0, weight_ = 0;
};

void check(const SizedNetwork& network, const SizedChunks& chunks, const TransferOrder& first) {
  auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("expected ") + what);
  };
  auto in_range = [](std::span<const std::int32_t> values, std::int64_t least, std::int64_t end) {
    return std::all_of(values.begin(), values.end(), [&](std::int32_t x) { return least <= x && x < end; });
  };
  auto within = [](std::span<const std::int64_t> values, Time least) {
    return std::all_of(values.begin(), values.end(), [&](Time x) { return least <= x && x < kLongest; });
  };
  const std::size_t channels = network.src.size(), entries = network.port.size(), count = chunks.source.size();
  const std::size_t sizes = entries == 0 ? 0 : network.hold.size() / entries;
  expect(network.num_ranks >= 0 && network.num_ports >= 0, "a number of ranks and of ports");
  expect(network.dst.size() == channels && network.port_start.size() == channels + 1, "columns of one length");
  expect(in_range(network.src, 0, network.num_ranks) && in_range(network.dst, 0, network.num_ranks), "ranks as ends of channels");
  expect(in_range(network.port, 0, network.num_ports), "known ports");
  expect(network.port_start.front() == 0 && network.port_start.back() == static_cast<std::int64_t>(entries),
         "port_start from 0 to the number of entries");
  for (std::size_t k = 0; k < channels; ++k) expect(network.port_start[k] < network.port_start[k + 1], "a port for each channel");
  expect(network.duration.size() == sizes * channels && network.offset.size() == sizes * entries &&
             network.hold.size() == sizes * entries,
         "costs of each channel and port for every size");
  expect(within(network.duration, 1) && within(network.offset, 0) && within(network.hold, 1),
         "times below 2^40, above 0 where something lasts");
  expect(chunks.target.size() == count && chunks.size.size() == count, "a source, a target and a size for each chunk");
  expect(in_range(chunks.source, 0, network.num_ranks) && in_range(chunks.target, -1, network.num_ranks),
         "ranks as ends of chunks");
  expect(in_range(chunks.size, 0, static_cast<std::int64_t>(sizes)), "known sizes");
  expect(first.start.size() == first.channel.size() &&
             std::all_of(first.start.begin(), first.start.end(), [](Time x) { return 0 <= x && x < kLatest; }),
         "a time for each transfer");
  expect(first.channel.size() == first.chunk.size() && in_range(first.channel, 0, static_cast<std::int64_t>(channels)) &&
             in_range(first.chunk, 0, static_cast<std::int64_t>(count)),
         "transfers of known chunks on known channels");
  expect(first.channel.size() < (std::size_t{1} << 20), "fewer than 2^20 transfers");  // so that no time leaves 64 bits
}

}  // namespace

Recreated recreate(const SizedNetwork& network, const SizedChunks& chunks, const TransferOrder& first,
                   std::uint64_t seed, std::int64_t looks, std::int64_t enough, const StopFlag& stop) {
  check(network, chunks, first);
  Search search(network, chunks, seed);
  search.begin(first);
  return search.run(looks, enough, stop);
}

}  // namespace coppice
