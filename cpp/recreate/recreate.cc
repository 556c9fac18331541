#include "recreate/recreate.h"

#include <algorithm>
#include <array>
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
      : net_(network), demand_(chunks), ranks_(at(network.num_ranks)), chunks_(chunks.size.size()),
        trees_(chunks.summed ? 2 * chunks_ : chunks_), seed_(seed), calendar_(at(network.num_ports)),
        cell_(ranks_ * trees_), place_(ranks_ * trees_), missing_(ranks_) {
    for (auto& each : on_) each.resize(ranks_);
    for (std::size_t k = 0; k < net_.src.size(); ++k) {
      on_[kOut][at(net_.src[k])].push_back(static_cast<Channel>(k));
      on_[kIn][at(net_.dst[k])].push_back(static_cast<Channel>(k));
    }
    for (std::size_t c = 0; c < chunks_; ++c) turn(c, 0);
  }

  void begin(const TransferOrder& first) {
    const bool summed = demand_.summed;
    std::vector<Time> has(ranks_ * chunks_);  // when a rank has what it passes on of a chunk
    std::vector<std::size_t> terms(chunks_);
    for (std::size_t i = 0; i < first.channel.size(); ++i) {
      const Channel k = first.channel[i];
      const std::size_t c = at(first.chunk[i]), adds = first.adds.empty() || first.adds[i] == 0 ? 0 : 1;
      const std::size_t from = place(net_.src[at(k)], c), to = place(net_.dst[at(k)], c), sums = ranks_ * chunks_;
      const bool fits = adds == 0 ? there(from) && !there(to) && (!summed || terms[c] + 1 == ranks_)
                                  : summed && !there(from + sums) && cell_[to + sums].channel < 0;
      if (!fits) throw std::invalid_argument("expected transfers of what their senders have to ranks that lack it");
      const std::size_t tree = c + adds * chunks_;
      put(tree, k, first_gap(tree, k, std::max(has[from], first.start[i])));
      has[to] = std::max(has[to], cell_[place(far(tree, k), tree)].arrive);
      terms[c] += adds;
    }
    for (std::size_t i = 0; i < cell_.size(); ++i)
      if (!there(i) && wants(static_cast<Rank>(i % ranks_), i / ranks_))
        throw std::invalid_argument("expected transfers to all ranks that want a chunk");
    for (std::size_t c = 0; c < chunks_; ++c) turn(c, has[place(root(c), c)]);
    keep();
    aim();
  }

  Recreated run(std::int64_t looks, Time enough, const StopFlag& stop) {
    looks_ = looks;
    while (looks_ > 0 && best_time_ > enough && !late_.empty()) {
      poll(stop);
      round();
      if (late_.empty() || best_time_ <= end_ - begin_) aim();
    }
    return std::move(best_);
  }

 private:
  enum Way : std::uint8_t { kOut, kIn };  // of a tree: forwards in time from its root, or backwards
  struct Cell {
    Channel channel = -1;  // by which the chunk comes to the rank, or leaves it; -1: of a root, or of what is not there
    Time start = 0;
    Time arrive = kNever;
  };
  struct Change {
    std::size_t tree;
    Channel channel;  // -1: the chunk turned at another time
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

  // Trees 0 to C - 1 bring the chunks of these numbers from their roots, trees C to 2C - 1 the sums to them.
  std::size_t chunk(std::size_t tree) const { return tree < chunks_ ? tree : tree - chunks_; }
  Way way(std::size_t tree) const { return tree < chunks_ ? kOut : kIn; }
  std::size_t place(Rank v, std::size_t tree) const { return tree * ranks_ + at(v); }
  bool there(std::size_t here) const { return cell_[here].arrive != kNever; }
  /// The end of a channel that is nearer to the root, and the other one.
  Rank near(std::size_t tree, Channel k) const { return way(tree) == kOut ? net_.src[at(k)] : net_.dst[at(k)]; }
  Rank far(std::size_t tree, Channel k) const { return way(tree) == kOut ? net_.dst[at(k)] : net_.src[at(k)]; }
  /// Channels by which a tree goes on from a rank, and those by which it may have come there.
  const std::vector<Channel>& onward(std::size_t tree, std::size_t v) const { return on_[way(tree)][v]; }
  const std::vector<Channel>& hither(std::size_t tree, std::size_t v) const { return on_[1 - way(tree)][v]; }
  Rank root(std::size_t tree) const { return demand_.source[chunk(tree)]; }
  bool wants(Rank v, std::size_t tree) const {
    const Rank target = demand_.target[chunk(tree)];
    return target < 0 ? v != root(tree) : v == target;
  }
  /// Calls `use` with each transfer by which a tree goes on from a rank.
  template <typename Use>
  void each_next(Rank v, std::size_t tree, Use use) const {
    for (Channel k : onward(tree, at(v))) {
      const std::size_t next = place(far(tree, k), tree);
      if (cell_[next].channel == k) use(next);
    }
  }

  Time duration(std::size_t tree, Channel k) const {
    return net_.duration[at(demand_.size[chunk(tree)]) * net_.src.size() + at(k)];
  }

  /// Calls `use` with each port of a channel, and from when after the start it serves the chunk for how long.
  template <typename Use>
  void each_port(std::size_t tree, Channel k, Use use) const {
    const std::size_t own = at(demand_.size[chunk(tree)]) * net_.port.size(), end = at(net_.port_start[at(k) + 1]);
    for (std::size_t i = at(net_.port_start[at(k)]); i < end; ++i)
      use(at(net_.port[i]), net_.offset[own + i], net_.hold[own + i]);
  }

  /// The first time from `from` on at which a channel can start.
  Time first_gap(std::size_t tree, Channel k, Time from) {
    for (bool moved = true; moved;) {
      moved = false;
      each_port(tree, k, [&](std::size_t p, Time offset, Time hold) {
        --looks_;
        const Time then = calendar_[p].gap(from + offset, hold) - offset;
        moved = moved || then != from;
        from = then;
      });
    }
    return from;
  }
  /// The last start of a channel so that it arrives at a time or before.
  Time last_gap(std::size_t tree, Channel k, Time arrive) {
    Time from = arrive - duration(tree, k);
    for (bool moved = true; moved;) {
      moved = false;
      each_port(tree, k, [&](std::size_t p, Time offset, Time hold) {
        --looks_;
        const Time then = calendar_[p].last_gap(from + offset, hold) - offset;
        moved = moved || then != from;
        from = then;
      });
    }
    return from;
  }

  void put(std::size_t tree, Channel k, Time start) {
    ++puts_;
    const std::size_t to = place(far(tree, k), tree);
    cell_[to] = {k, start, start + duration(tree, k)};
    each_port(tree, k, [&](std::size_t p, Time offset, Time hold) { calendar_[p].add(start + offset, hold, to); });
    weigh(to, 1);
  }
  void take(std::size_t from) {
    const Cell was = cell_[from];
    each_port(from / ranks_, was.channel,
              [&](std::size_t p, Time offset, Time hold) { calendar_[p].remove(was.start + offset, hold); });
    weigh(from, -1);
    cell_[from] = {};
  }
  /// Sets when a chunk turns at its root: all terms have come by then, and no copy has gone.
  void turn(std::size_t c, Time time) {
    for (std::size_t tree = c; tree < trees_; tree += chunks_) cell_[place(root(c), tree)] = {-1, time, time};
  }

  /// Counts a transfer as late where it is, or no longer.
  void weigh(std::size_t here, int sign) {
    const Time over = way(here / ranks_) == kOut ? cell_[here].arrive - end_ : begin_ - cell_[here].start;
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

  /// Sets the target anew, a step below the best time: the end comes sooner, or what is summed begins later.
  void aim() {
    const Time step = std::max<Time>(1, best_time_ / kSteps);
    begin_ = first_;
    end_ = first_ + best_time_ - step;
    if (demand_.summed && below(2) == 0) {
      begin_ += step;
      end_ += step;
    }
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
    first_ = demand_.summed && !order.empty() ? order.front().first : 0;
    best_time_ = 0;
    for (const auto& [begun, i] : order) {
      best_time_ = std::max(best_time_, cell_[i].arrive - first_);
      best_.start.push_back(begun - first_);
      best_.arrive.push_back(cell_[i].arrive - first_);
      best_.channel.push_back(cell_[i].channel);
      best_.chunk.push_back(static_cast<Chunk>(chunk(i / ranks_)));
      best_.adds.push_back(way(i / ranks_) == kIn);
    }
    best_.time = best_time_;
  }

  /// Takes out a transfer and all that goes on from there.
  void ruin(std::size_t here) {
    const Cell was = cell_[here];
    if (was.channel < 0) return;
    const std::size_t tree = here / ranks_;
    take(here);
    log_.push_back({tree, was.channel, was.start, false});
    if (std::find(open_.begin(), open_.end(), chunk(tree)) == open_.end()) open_.push_back(chunk(tree));
    each_next(static_cast<Rank>(here % ranks_), tree, [&](std::size_t next) { ruin(next); });
  }

  /// A late transfer, one in whose way it stood, be it for what it brings or at a port, and some nearby that went before
  /// it, or after it where the late one goes too soon.
  void pick() {
    picked_.assign(1, late_[below(late_.size())]);
    const Way late = way(picked_.front() / ranks_);
    waited_.clear();
    for (std::size_t here = picked_.front(); waited_.size() < kLongestWay;) {
      waited_.push_back(here);
      find_met(here, late);
      if (met_.empty()) break;
      here = met_[below(met_.size())];
    }
    picked_.push_back(waited_[below(waited_.size())]);
    for (std::size_t others = below(kMostOthers + 1); others > 0; --others) {
      const std::size_t like = picked_[below(picked_.size())];
      const std::vector<Channel>& ways = hither(like / ranks_, like % ranks_);
      const Rank from = near(like / ranks_, ways[below(ways.size())]);
      const Rank rank = below(2) == 0 ? from : static_cast<Rank>(like % ranks_);
      const std::size_t other = place(rank, below(trees_));
      const Time later = cell_[other].start - cell_[like].start;
      if (cell_[other].channel >= 0 && (late == kOut ? later <= 0 : later >= 0)) picked_.push_back(other);
    }
  }
  /// What ends just when a transfer begins, and so was in its way; for one that goes too soon, what begins as it ends.
  void find_met(std::size_t here, Way late) {
    met_.clear();
    const Cell& own = cell_[here];
    const std::size_t tree = here / ranks_, copies = chunk(tree);
    const Rank from = net_.src[at(own.channel)], to = net_.dst[at(own.channel)];
    auto meet = [&](std::size_t other) {
      const Cell& its = cell_[other];
      if (its.channel >= 0 && (late == kOut ? its.arrive == own.start : its.start == own.arrive)) met_.push_back(other);
    };
    if (late == kOut) {
      if (way(tree) == kOut && from != root(tree)) {
        meet(place(from, tree));
      } else if (demand_.summed) {
        each_next(from, copies + chunks_, meet);
      }
    } else if (way(tree) == kIn && to != root(tree)) {
      meet(place(to, tree));
    } else {
      each_next(to, copies, meet);
    }
    each_port(tree, own.channel, [&](std::size_t p, Time offset, Time hold) {
      auto add = [&](std::size_t owner) { met_.push_back(owner); };
      if (late == kOut) {
        calendar_[p].until(own.start + offset, add);
      } else {
        calendar_[p].from(own.start + offset + hold, add);
      }
    });
  }

  void round() {
    const double before = lateness_;
    log_.clear();
    open_.clear();
    pick();
    for (std::size_t each : picked_) ruin(each);
    for (std::size_t i = open_.size(); i > 1; --i) std::swap(open_[i - 1], open_[below(i)]);
    weight_ = static_cast<double>(below(kWeights)) / 2;
    for (std::size_t c : open_) restore(c);
    if (lateness_ > std::max(before, least_ * (1 + kSlack))) {
      undo();
    } else if (lateness_ < least_) {
      least_ = lateness_;
      Time last = end_, first = begin_;
      for (std::size_t each : late_) {
        last = std::max(last, cell_[each].arrive);
        first = std::min(first, cell_[each].start);
      }
      if (last - first < best_time_) keep();
    }
  }
  void undo() {
    for (; !log_.empty(); log_.pop_back()) {
      const Change& was = log_.back();
      if (was.channel < 0) {
        turn(was.tree, was.start);
      } else if (was.put) {
        take(place(far(was.tree, was.channel), was.tree));
      } else {
        put(was.tree, was.channel, was.start);
      }
    }
  }

  /// Puts back what is missing of a chunk.
  void restore(std::size_t c) {
    if (demand_.summed) {
      const std::size_t sums = c + chunks_;
      const Time before = cell_[place(root(c), c)].start;
      Time came = -kNever, goes = kNever;
      auto see = [&](std::size_t term) { came = std::max(came, cell_[term].arrive); };
      each_next(root(c), sums, see);
      each_next(root(c), c, [&](std::size_t copy) { goes = std::min(goes, cell_[copy].start); });
      log_.push_back({c, -1, before, false});
      // Terms that come back have time until the first copy goes, or come no later than those that are there.
      turn(c, came != -kNever && below(2) == 0 ? came : goes != kNever ? goes : before);
      grow(sums);
      each_next(root(c), sums, see);
      turn(c, came);
    }
    grow(c);
  }

  /// Grows a tree to all that it lacks.
  void grow(std::size_t tree) {
    offers_.clear();
    std::size_t left = 0;
    for (std::size_t v = 0; v < ranks_; ++v) {
      const auto rank = static_cast<Rank>(v);
      missing_[v] = !there(place(rank, tree)) && wants(rank, tree);
      left += missing_[v];
    }
    for (std::size_t v = 0; v < ranks_; ++v) {
      if (!missing_[v]) continue;
      for (Channel k : hither(tree, v))
        if (there(place(near(tree, k), tree))) offers_.push_back(offer(tree, k));
    }
    std::make_heap(offers_.begin(), offers_.end(), std::greater<>());
    while (left > 0) {
      std::pop_heap(offers_.begin(), offers_.end(), std::greater<>());
      const Offer next = offers_.back();
      offers_.pop_back();
      const std::size_t v = at(far(tree, next.channel));
      if (!missing_[v]) continue;
      if (next.stamp != puts_) {  // its ports may have been taken since
        const Offer now = offer(tree, next.channel);
        if (now.start != next.start) {
          push(now);
          continue;
        }
      }
      put(tree, next.channel, next.start);
      log_.push_back({tree, next.channel, next.start, true});
      missing_[v] = 0;
      --left;
      for (Channel k : onward(tree, v))
        if (missing_[at(far(tree, k))]) push(offer(tree, k));
    }
  }

  Offer offer(std::size_t tree, Channel k) {
    const Cell& from = cell_[place(near(tree, k), tree)];
    const bool out = way(tree) == kOut;
    const Time start = out ? first_gap(tree, k, from.arrive) : last_gap(tree, k, from.start);
    double cost = 0;
    if (weight_ > 0) {
      each_port(tree, k, [&](std::size_t p, Time, Time hold) {
        const double full = static_cast<double>(calendar_[p].load()) / static_cast<double>(end_ - begin_);
        cost += static_cast<double>(hold) * full * full;
      });
    }
    return {static_cast<double>(out ? start + duration(tree, k) : -start) + weight_ * cost, start, k, puts_};
  }
  void push(const Offer& one) {
    offers_.push_back(one);
    std::push_heap(offers_.begin(), offers_.end(), std::greater<>());
  }

  const SizedNetwork& net_;
  const SizedChunks& demand_;
  const std::size_t ranks_, chunks_, trees_;
  std::uint64_t seed_;
  std::vector<Calendar> calendar_;
  std::array<std::vector<std::vector<Channel>>, 2> on_;  // channels out of each rank, and into it
  std::vector<Cell> cell_;                 // per tree and rank
  Recreated best_;
  std::vector<std::size_t> late_, place_;  // what is late, and where in late_ each of them is
  std::vector<std::uint8_t> missing_;
  std::vector<Change> log_;
  std::vector<std::size_t> open_;
  std::vector<std::size_t> picked_, waited_, met_;
  std::vector<Offer> offers_;
  std::int64_t puts_ = 0, looks_ = 0;
  Time begin_ = -kNever / 2, end_ = kNever, first_ = 0, best_time_ = 0;
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
  expect(!chunks.summed || in_range(chunks.target, -1, 0), "no targets of chunks that are summed: all want them");
  expect(in_range(chunks.size, 0, static_cast<std::int64_t>(sizes)), "known sizes");
  expect(first.start.size() == first.channel.size() &&
             std::all_of(first.start.begin(), first.start.end(), [](Time x) { return 0 <= x && x < kLatest; }),
         "a time for each transfer");
  expect(first.channel.size() == first.chunk.size() && in_range(first.channel, 0, static_cast<std::int64_t>(channels)) &&
             in_range(first.chunk, 0, static_cast<std::int64_t>(count)),
         "transfers of known chunks on known channels");
  expect(first.adds.empty() || first.adds.size() == first.channel.size(), "a mark for each transfer, or none");
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
