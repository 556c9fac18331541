#include "tacos/tacos.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "core/hash.h"
#include "core/wide.h"
#include "tacos/layout.h"

namespace coppice {

namespace {

using namespace tacos;

/// splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  /// A number below `n`, which is above 0.
  std::size_t below(std::size_t n) {
    const std::uint64_t drawn = mixed(state_);
    state_ += 0x9E3779B97F4A7C15u;
    return static_cast<std::size_t>((static_cast<Wide>(drawn) * static_cast<Wide>(n)) >> 64);
  }

 private:
  std::uint64_t state_;
};

class Attempt {
 public:
  Attempt(const Layout& layout, MatchingRule rule, std::uint64_t seed)
      : layout_(layout), net_(layout.network), demand_(layout.demand), rule_(rule), random_(seed),
        words_(layout.words), ranks_(layout.into.size()), has_(ranks_ * words_), coming_(ranks_ * words_),
        want_(ranks_ * words_), wanted_(ranks_), held_(ranks_), under_way_(ranks_), copies_(demand_.source.size(), 1),
        port_free_(static_cast<std::size_t>(net_.num_ports)), dirty_(ranks_), sends_(ranks_), candidates_(words_), faster_(words_),
        is_idle_(ranks_), is_settled_(ranks_), is_changed_(ranks_) {
    for (std::size_t k = 0; k < net_.src.size(); ++k) busy_port_.push_back(layout_.ports(static_cast<Channel>(k)).front());
    for (std::size_t c = 0; c < demand_.source.size(); ++c) {
      const auto chunk = static_cast<Chunk>(c);
      const std::size_t source = at(demand_.source[c]);
      set(has_, source, chunk);
      set(coming_, source, chunk);
      held_[source].push_back(chunk);
      if (demand_.target[c] >= 0) {
        want(at(demand_.target[c]), chunk);
      } else {
        for (std::size_t v = 0; v < ranks_; ++v)
          if (demand_.together(demand_.source[c], static_cast<Rank>(v))) want(v, chunk);
      }
    }
  }

  Matching run(Time limit, const StopFlag& stop) {
    everyone_.resize(ranks_);
    std::iota(everyone_.begin(), everyone_.end(), Rank{0});
    visit_ = everyone_;
    Time now = 0;
    while (true) {
      poll(stop);
      if (is_late(now, limit)) return {};
      match(now);
      const Time next = std::min(arrivals_.empty() ? kNever : arrivals_.top().first,
                                 port_times_.empty() ? kNever : port_times_.top().first);
      if (next == kNever) break;
      if (left_ > 0 && next > limit) return {};
      now = next;
      changed_.clear();
      std::fill(is_changed_.begin(), is_changed_.end(), 0);
      for (; !port_times_.empty() && port_times_.top().first == now; port_times_.pop()) freed(port_times_.top().second);
      visit_.clear();
      while (!arrivals_.empty() && arrivals_.top().first == now) {
        const std::int32_t flight = arrivals_.top().second;
        arrivals_.pop();
        arrive(flight, now);
      }
      if (left_ == 0) break;
      if (layout_.shared) {
        visit_ = everyone_;
      } else {
        std::sort(visit_.begin(), visit_.end());
      }
      for (Rank v : visit_) dirty_[at(v)] = 0;
    }
    found_.time = std::max<Time>(found_.time, 0);  // nothing may have had to move
    if (left_ > 0 || found_.time > limit) return {};
    return std::move(found_);
  }

 private:
  static constexpr Time kNever = std::numeric_limits<Time>::max();
  struct Flight {
    Channel channel;
    Chunk chunk;
    Time start;
    Time arrive;
    std::size_t prefix;  // how many chunks the sender held at the start
    bool doubled;        // the same chunk was sent again, to come sooner
  };

  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
  Time duration(Channel k) const { return net_.duration[at(k)]; }
  bool test(const std::vector<Word>& set, std::size_t rank, Chunk c) const {
    return set[rank * words_ + at(c >> 6)] >> (c & 63) & 1;
  }
  void set(std::vector<Word>& of, std::size_t rank, Chunk c) { of[rank * words_ + at(c >> 6)] |= Word{1} << (c & 63); }

  void want(std::size_t v, Chunk c) {
    if (test(has_, v, c)) return;
    set(want_, v, c);
    ++wanted_[v];
    ++left_;
  }
  bool serves(std::size_t v, Chunk c) const {
    const Rank target = demand_.target[at(c)];
    if (test(has_, v, c)) return false;
    return target < 0 ? demand_.together(demand_.source[at(c)], static_cast<Rank>(v)) : at(target) == v;
  }
  void expect(std::size_t v, Chunk c) {
    if (test(coming_, v, c)) return;
    set(coming_, v, c);
    want_[v * words_ + at(c >> 6)] &= ~(Word{1} << (c & 63));
    --wanted_[v];
    ++copies_[at(c)];
  }
  bool free(Channel k, Time now) {
    if (port_free_[at(busy_port_[at(k)])] > now) return false;
    for (std::int32_t port : layout_.ports(k))
      if (port_free_[at(port)] > now) {
        busy_port_[at(k)] = port;
        return false;
      }
    return true;
  }
  void touch(std::size_t v) {
    if (dirty_[v]) return;
    dirty_[v] = 1;
    visit_.push_back(static_cast<Rank>(v));
  }

  void arrive(std::int32_t id, Time now) {
    const Flight flight = flights_[at(id)];
    const std::size_t u = at(net_.src[at(flight.channel)]), v = at(net_.dst[at(flight.channel)]);
    std::erase(under_way_[v], id);
    if (!layout_.shared) touch(v);
    for (auto i = net_.port_start[at(flight.channel)]; i < net_.port_start[at(flight.channel) + 1]; ++i)
      if (net_.hold[at(i)] == flight.arrive - flight.start) freed(net_.port[at(i)]);
    Chunk chunk = flight.chunk;
    if (test(has_, v, chunk)) {
      replacements_.clear();
      for (std::size_t i = 0; i < flight.prefix; ++i)
        if (serves(v, held_[u][i])) replacements_.push_back(held_[u][i]);
      if (replacements_.empty()) return;
      chunk = replacements_[random_.below(replacements_.size())];
      expect(v, chunk);
    }
    set(has_, v, chunk);
    held_[v].push_back(chunk);
    change(v);
    --left_;
    found_.time = now;
    found_.start.push_back(flight.start);
    found_.channel.push_back(flight.channel);
    found_.chunk.push_back(chunk);
    if (!layout_.shared)
      for (Rank w : layout_.neighbours[v]) touch(at(w));
  }

  void start(Channel k, Chunk c, Time now) {
    const std::size_t u = at(net_.src[at(k)]), v = at(net_.dst[at(k)]);
    const auto id = static_cast<std::int32_t>(flights_.size());
    flights_.push_back({k, c, now, now + duration(k), held_[u].size(), false});
    under_way_[v].push_back(id);
    is_settled_[v] = 0;
    arrivals_.emplace(now + duration(k), id);
    expect(v, c);
    for (auto i = net_.port_start[at(k)]; i < net_.port_start[at(k) + 1]; ++i) {
      port_free_[at(net_.port[at(i)])] = now + net_.hold[at(i)];
      if (layout_.shared && net_.hold[at(i)] != duration(k)) port_times_.emplace(now + net_.hold[at(i)], net_.port[at(i)]);
    }
  }

  void match(Time now) {
    if (layout_.shared)
      for (std::size_t i = visit_.size(); i > 1; --i) std::swap(visit_[i - 1], visit_[random_.below(i)]);
    // Nothing comes from ranks that have nothing, or whose way out is taken: they are told once for all receivers.
    senders_.clear();
    for (std::size_t u = 0; u < ranks_; ++u) {
      const std::int32_t port = layout_.way_out[u];
      sends_[u] = !held_[u].empty() && (port < 0 || port_free_[at(port)] <= now);
      if (sends_[u] != 0) senders_.push_back(static_cast<Rank>(u));
    }
    if (senders_.empty()) return;
    for (Rank rank : visit_) {
      const std::size_t v = at(rank);
      if (wanted_[v] == 0 && under_way_[v].empty()) continue;
      if (layout_.gate[v] >= 0 && port_free_[at(layout_.gate[v])] > now) continue;
      if (wanted_[v] > 0 && (!is_idle_[v] || wakes(v, now))) {
        open_channels(v, now, true);
        while (!open_.empty() && wanted_[v] > 0 && draw(v, now)) {
          std::erase_if(open_, [&](Channel k) { return !free(k, now); });
        }
        is_idle_[v] = layout_.shared;
      }
      if (!comes_late(v, now) || (is_settled_[v] && !may_overtake(v, now))) continue;
      open_channels(v, now, false);
      while (!open_.empty() && overtake(v, now)) {
        std::erase_if(open_, [&](Channel k) { return !free(k, now); });
      }
      is_settled_[v] = layout_.shared;
    }
  }

  /// Free channels into v, the shortest duration first; `useful`: only those at whose ends there is what v wants.
  void open_channels(std::size_t v, Time now, bool useful) {
    open_.clear();
    if (2 * senders_.size() >= layout_.into[v].size()) {
      for (Channel k : layout_.into[v])
        if (sends_[at(net_.src[at(k)])] != 0 && free(k, now) && (!useful || offers(net_.src[at(k)], v))) open_.push_back(k);
      return;
    }
    for (Rank u : senders_) {
      const auto [first, end] = layout_.between(u, static_cast<Rank>(v));
      if (first == end || (useful && !offers(u, v))) continue;
      for (auto k = first; k != end; ++k)
        if (free(*k, now)) open_.push_back(*k);
    }
    std::sort(open_.begin(), open_.end(), [&](Channel a, Channel b) {
      return std::pair(duration(a), a) < std::pair(duration(b), b);
    });
  }

  /// A port serves nothing any more: ranks that wait for it are looked at again.
  void freed(std::int32_t port) {
    if (!layout_.shared) return;
    const Rank sender = layout_.sender_at[at(port)];
    if (sender >= 0) return change(at(sender));
    for (Rank v : layout_.receivers_at[at(port)]) is_idle_[at(v)] = is_settled_[at(v)] = 0;
  }

  /// The rank has more to send than at the last event, or can send again.
  void change(std::size_t u) {
    if (is_changed_[u]) return;
    is_changed_[u] = 1;
    changed_.push_back(static_cast<Rank>(u));
  }

  /// A rank that found nothing to ask for when it was last looked at may do now: some other one has changed.
  bool wakes(std::size_t v, Time now) {
    return std::any_of(changed_.begin(), changed_.end(), [&](Rank u) {
      const auto [first, end] = layout_.between(u, static_cast<Rank>(v));
      return sends_[at(u)] != 0 && std::any_of(first, end, [&](Channel k) { return free(k, now); }) && offers(u, v);
    });
  }

  /// Some other rank that has changed has a chunk that is on its way to v, where nobody could bring one sooner before.
  bool may_overtake(std::size_t v, Time now) const {
    const Time soonest = now + duration(layout_.into[v].front());
    return std::any_of(changed_.begin(), changed_.end(), [&](Rank u) {
      const auto [first, end] = layout_.between(u, static_cast<Rank>(v));
      return sends_[at(u)] != 0 && first != end &&
             std::any_of(under_way_[v].begin(), under_way_[v].end(), [&](std::int32_t id) {
               const Flight& flight = flights_[at(id)];
               return !flight.doubled && flight.arrive > soonest && test(has_, at(u), flight.chunk);
             });
    });
  }

  bool offers(Rank u, std::size_t v) const {
    const Word *has = &has_[at(u) * words_], *wants = &want_[v * words_];
    for (std::size_t w = 0; w < words_; ++w)
      if ((has[w] & wants[w]) != 0) return true;
    return false;
  }

  /// Something on its way to v could come sooner by the quickest channel.
  bool comes_late(std::size_t v, Time now) const {
    if (layout_.into[v].empty()) return false;
    const Time soonest = now + duration(layout_.into[v].front());
    return std::any_of(under_way_[v].begin(), under_way_[v].end(), [&](std::int32_t id) {
      return !flights_[at(id)].doubled && flights_[at(id)].arrive > soonest;
    });
  }

  /// Some rank cannot have all that it wants in time, as its gate serves one chunk after the other.
  bool is_late(Time now, Time limit) const {
    for (std::size_t v = 0; v < ranks_; ++v) {
      // What is on its way twice may come as something else.
      const std::int64_t more = wanted_[v] - static_cast<std::int64_t>(under_way_[v].size());
      if (layout_.gate[v] < 0 || more <= 0) continue;
      const Time begin = std::max(now, port_free_[at(layout_.gate[v])]);
      if ((more - 1) * layout_.least_hold[v] > limit - begin - duration(layout_.into[v].front())) return true;
    }
    return false;
  }

  /// Starts one wanted chunk over a free channel into v, if there is one.
  bool draw(std::size_t v, Time now) {
    std::fill(candidates_.begin(), candidates_.end(), 0);
    if (rule_ == MatchingRule::kLocal) {
      allowed_.assign(open_.size() * words_, 0);
      std::fill(faster_.begin(), faster_.end(), 0);
      const std::vector<Channel>& into = layout_.into[v];
      std::size_t merged = 0;  // channels of `into` whose ends are in faster_
      for (std::size_t i = 0; i < open_.size(); ++i) {
        for (; duration(into[merged]) < duration(open_[i]); ++merged) {
          const Word* row = &coming_[at(net_.src[at(into[merged])]) * words_];
          for (std::size_t w = 0; w < words_; ++w) faster_[w] |= row[w];
        }
        const Word* row = &has_[at(net_.src[at(open_[i])]) * words_];
        Word* own = &allowed_[i * words_];
        for (std::size_t w = 0; w < words_; ++w) {
          own[w] = row[w] & ~faster_[w];
          candidates_[w] |= own[w];
        }
      }
    } else {
      for (Channel k : open_) {
        const Word* row = &has_[at(net_.src[at(k)]) * words_];
        for (std::size_t w = 0; w < words_; ++w) candidates_[w] |= row[w];
      }
    }
    for (std::size_t w = 0; w < words_; ++w) candidates_[w] &= want_[v * words_ + w];
    const Chunk chunk = rule_ == MatchingRule::kRandom ? any_candidate() : rarest_candidate();
    if (chunk < 0) return false;
    Time soonest = kNever;
    fitting_.clear();
    for (std::size_t i = 0; i < open_.size(); ++i) {
      const Channel k = open_[i];
      const bool carries = rule_ == MatchingRule::kLocal ? allowed_[i * words_ + at(chunk >> 6)] >> (chunk & 63) & 1
                                                         : test(has_, at(net_.src[at(k)]), chunk);
      if (!carries || duration(k) > soonest) continue;
      if (duration(k) < soonest) fitting_.clear();
      soonest = duration(k);
      fitting_.push_back(k);
    }
    start(fitting_[fitting_.size() > 1 ? random_.below(fitting_.size()) : 0], chunk, now);
    return true;
  }

  Chunk any_candidate() {
    std::size_t count = 0;
    for (Word word : candidates_) count += static_cast<std::size_t>(std::popcount(word));
    if (count == 0) return -1;
    std::size_t skip = random_.below(count);
    for (std::size_t w = 0;; ++w) {
      const auto here = static_cast<std::size_t>(std::popcount(candidates_[w]));
      if (skip >= here) {
        skip -= here;
        continue;
      }
      Word word = candidates_[w];
      for (; skip > 0; --skip) word &= word - 1;
      return static_cast<Chunk>(w * 64 + static_cast<std::size_t>(std::countr_zero(word)));
    }
  }

  Chunk rarest_candidate() {
    std::int32_t least = std::numeric_limits<std::int32_t>::max();
    rarest_.clear();
    for (std::size_t w = 0; w < words_; ++w) {
      for (Word word = candidates_[w]; word != 0; word &= word - 1) {
        const auto chunk = static_cast<Chunk>(w * 64 + static_cast<std::size_t>(std::countr_zero(word)));
        const std::int32_t copies = copies_[at(chunk)];
        if (copies > least) continue;
        if (copies < least) rarest_.clear();
        least = copies;
        rarest_.push_back(chunk);
      }
    }
    return rarest_.empty() ? -1 : rarest_[random_.below(rarest_.size())];
  }

  /// Asks once more for a chunk on its way to v that a free channel brings sooner, the one that would come last.
  bool overtake(std::size_t v, Time now) {
    // Most often nothing on its way comes later than by any channel.
    Time last = 0, quickest = kNever;
    for (std::int32_t id : under_way_[v])
      if (!flights_[at(id)].doubled) last = std::max(last, flights_[at(id)].arrive);
    for (Channel k : open_) quickest = std::min(quickest, duration(k));
    if (open_.empty() || last <= now + quickest) return false;
    std::int32_t latest = -1;
    Channel by = -1;
    for (Channel k : open_) {
      for (std::int32_t id : under_way_[v]) {
        const Flight& flight = flights_[at(id)];
        const bool sooner = !flight.doubled && flight.arrive > now + duration(k);
        if (!sooner || !test(has_, at(net_.src[at(k)]), flight.chunk) || test(has_, v, flight.chunk)) continue;
        if (latest >= 0 && flights_[at(latest)].arrive >= flight.arrive) continue;
        latest = id;
        by = k;
      }
    }
    if (latest < 0) return false;
    flights_[at(latest)].doubled = true;
    start(by, flights_[at(latest)].chunk, now);
    return true;
  }

  const Layout& layout_;
  const ChannelNetwork& net_;
  const ChunkDemand& demand_;
  const MatchingRule rule_;
  Random random_;
  const std::size_t words_, ranks_;
  std::vector<Word> has_, coming_, want_;  // per rank: chunks that it has; also those on their way; those still wanted
  std::vector<std::int64_t> wanted_;       // per rank, members of want_
  std::vector<std::vector<Chunk>> held_;   // per rank, in the order in which they came
  std::vector<std::vector<std::int32_t>> under_way_;  // flights into each rank
  std::vector<std::int32_t> copies_;
  std::vector<Time> port_free_;
  std::vector<std::int32_t> busy_port_;  // per channel, the port that was busy when it was last found so
  std::vector<std::uint8_t> dirty_, sends_;
  std::vector<Word> candidates_, faster_, allowed_;
  std::vector<Flight> flights_;
  using Arrival = std::pair<Time, std::int32_t>;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> port_times_;  // when each port is free again
  std::vector<std::uint8_t> is_idle_;     // per rank: nothing to ask for, unless a port or another rank changes
  std::vector<std::uint8_t> is_settled_;  // likewise: nothing that is on its way to it could come sooner
  std::vector<std::uint8_t> is_changed_;  // per rank: it is in changed_
  std::vector<Rank> changed_;
  std::vector<Rank> everyone_, visit_, senders_;
  std::vector<Channel> open_, fitting_;
  std::vector<Chunk> rarest_, replacements_;
  std::int64_t left_ = 0;  // chunks that have still to come, over all ranks
  Matching found_;
};

}  // namespace

void check_matching(const ChannelNetwork& network, const ChunkDemand& demand) {
  auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("a matching needs ") + what);
  };
  const std::size_t channels = network.src.size();
  auto in_range = [](std::span<const std::int32_t> values, std::int32_t least, std::int32_t end) {
    return std::all_of(values.begin(), values.end(), [&](std::int32_t x) { return least <= x && x < end; });
  };
  auto positive = [](std::span<const std::int64_t> values) {
    return std::all_of(values.begin(), values.end(), [](std::int64_t x) { return x > 0; });
  };
  expect(network.num_ranks >= 0 && network.num_ports >= 0, "a number of ranks and of ports");
  expect(network.dst.size() == channels && network.duration.size() == channels &&
             network.port_start.size() == channels + 1 && network.hold.size() == network.port.size(),
         "columns of one length");
  expect(demand.source.size() == demand.target.size(), "a target for each chunk");
  expect(in_range(network.src, 0, network.num_ranks) && in_range(network.dst, 0, network.num_ranks), "ranks as ends of channels");
  expect(in_range(demand.source, 0, network.num_ranks), "ranks as sources");
  expect(in_range(demand.target, -1, network.num_ranks), "ranks, or -1, as targets");
  expect(demand.group.empty() || demand.group.size() == static_cast<std::size_t>(network.num_ranks), "a group for each rank");
  expect(in_range(network.port, 0, network.num_ports), "known ports");
  expect(network.port_start.front() == 0 && network.port_start.back() == static_cast<std::int64_t>(network.port.size()),
         "port_start from 0 to the number of entries");
  for (std::size_t k = 0; k < channels; ++k)
    expect(network.port_start[k] < network.port_start[k + 1], "a port for each channel");
  expect(positive(network.duration) && positive(network.hold), "durations above 0");
  // No chunk waits longer than all transfers take one after the other.
  Time most = 1;
  for (Time each : network.duration) most = std::max(most, each);
  for (Time each : network.hold) most = std::max(most, each);
  const Wide steps = static_cast<Wide>(demand.source.size() + 1) * (network.num_ranks + 1);
  expect(steps * most < (Wide{1} << 62), "durations that add up to less than 2^62");
}

Matching match_chunks(const ChannelNetwork& network, const ChunkDemand& demand, MatchingRule rule, std::uint64_t seed,
                      std::int64_t limit, const StopFlag& stop) {
  check_matching(network, demand);
  const Layout layout(network, demand);
  return Attempt(layout, rule, seed).run(limit, stop);
}

Matching best_matching(const ChannelNetwork& network, const ChunkDemand& demand, std::span<const MatchingRule> rules,
                       std::uint64_t seed, std::int64_t first, std::int64_t count, std::int32_t threads,
                       std::int64_t limit, const StopFlag& stop) {
  check_matching(network, demand);
  if (rules.empty() || first < 0 || count < 1 || threads < 1)
    throw std::invalid_argument("a matching needs a rule, an attempt and a thread");
  const Layout layout(network, demand);
  std::atomic<std::int64_t> next{first}, least{limit};
  std::atomic<bool> stopped{false};
  std::atomic<std::int32_t> at_work{0};
  std::mutex door;
  Matching best;
  std::exception_ptr failure;
  auto work = [&](const StopFlag& flag) {
    try {
      for (std::int64_t i = next++; i < first + count; i = next++) {
        const MatchingRule rule = rules[static_cast<std::size_t>(i) % rules.size()];
        const std::uint64_t own = mixed(mixed(seed), static_cast<std::uint64_t>(i));
        Matching found = Attempt(layout, rule, own).run(least.load(), flag);
        if (found.time < 0) continue;
        found.attempt = i;
        const std::lock_guard lock(door);
        if (best.time >= 0 && std::pair(best.time, best.attempt) < std::pair(found.time, found.attempt)) continue;
        best = std::move(found);
        least = std::min(least.load(), best.time);
      }
    } catch (...) {
      const std::lock_guard lock(door);
      if (!failure) failure = std::current_exception();
      stopped = true;
    }
    --at_work;
  };
  std::vector<std::thread> helpers;
  const std::int64_t extra = std::min<std::int64_t>(threads, count) - 1;
  at_work = static_cast<std::int32_t>(extra) + 1;
  const StopFlag asked = [&] { return stopped.load(); };
  for (std::int64_t i = 0; i < extra; ++i) helpers.emplace_back([&] { work(asked); });
  // Only this thread may ask `stop`, which may be bound to it.
  work([&] { return stopped.load() || (stop && stop()); });
  while (at_work > 0) {
    if (stop && stop() && !stopped) {
      const std::lock_guard lock(door);
      if (!failure) failure = std::make_exception_ptr(Cancelled{});
      stopped = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
  return best;
}

}  // namespace coppice
