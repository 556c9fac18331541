#include "shared_memory/direct.h"

#include <algorithm>
#include <cstring>

namespace coppice::shm {

namespace {

constexpr std::int64_t kAtOnceBytes = 32 << 10;     // an all-reduce of ranks x bytes up to here needs one wait only
constexpr std::int64_t kSmallestRound = 64 << 10;   // bytes; shorter rounds cost more in waits than they overlap
constexpr std::int64_t kRoundsToOverlap = 4;
constexpr std::int64_t kPastCaches = 8 << 20;       // outputs from here on do not stay in the caches anyway

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr auto kLineBytes = static_cast<std::int64_t>(kCacheLine);

std::int64_t whole_lines(std::int64_t bytes) { return divide_up(bytes, kLineBytes) * kLineBytes; }

/// One collective of one rank, cut into rounds.
class Rounds {
 public:
  Rounds(Segment& segment, int rank, const DirectCall& call, std::uint64_t first, Watch& watch,
         std::vector<const void*>& sources)
      : segment_(segment),
        call_(call),
        rank_(rank),
        ranks_(segment.ranks()),
        item_(static_cast<std::int64_t>(item_size(call.type))),
        first_(first),
        slots_(segment.header().slots),
        watch_(watch),
        sources_(sources),
        own_(segment.record(rank)) {
    plan();
  }

  std::int64_t count() const { return count_; }

  void run() {
    copy_own();
    for (std::int64_t at = 0; at < count_ + 2; ++at) {
      if (at < count_) stage(at);
      if (0 < at && at <= count_) reduce(at - 1);
      if (1 < at) take(at - 2);
    }
  }

 private:
  enum class SlotContent { own_block, block_per_rank, partial_sums, whole_input };

  bool is(Collective what) const { return call_.collective == what; }
  std::int64_t block(int rank) const { return call_.bounds[rank + 1] - call_.bounds[rank]; }

  void plan() {
    std::int64_t slot = static_cast<std::int64_t>(segment_.header().slot_bytes);
    std::int64_t total = call_.bounds.back(), longest = 0;
    for (int rank = 0; rank < ranks_; ++rank) longest = std::max(longest, block(rank));
    switch (call_.collective) {
      case Collective::all_reduce:
      case Collective::reduce: {
        bool is_small = is(Collective::all_reduce) && total * item_ * ranks_ <= kAtOnceBytes;
        content_ = is_small ? SlotContent::whole_input : SlotContent::partial_sums;
        cut(total, slot);
        // Shares are whole lines, so that no two ranks write to one.
        share_ = std::max<std::int64_t>(1, whole_lines(divide_up(length_ * item_, ranks_)) / item_);
        break;
      }
      case Collective::broadcast:
        content_ = SlotContent::own_block;
        cut(total, slot);
        break;
      case Collective::all_gather:
      case Collective::gather:
        content_ = SlotContent::own_block;
        cut(longest, slot);
        break;
      case Collective::reduce_scatter:
      case Collective::all_to_all:
      case Collective::scatter:
        content_ = SlotContent::block_per_rank;
        cut(longest, slot / ranks_ / kLineBytes * kLineBytes);
        share_ = whole_lines(length_ * item_) / item_;
        break;
      case Collective::barrier:
        content_ = SlotContent::own_block;
        count_ = 1;
    }
    outlasts_caches_ = (is(Collective::all_to_all) ? longest * ranks_ : total) * item_ >= kPastCaches;
    signature_ = 1 + static_cast<std::uint64_t>(call_.collective);
    add_to_signature(static_cast<std::uint64_t>(call_.type));
    add_to_signature(static_cast<std::uint64_t>(call_.op));
    add_to_signature(static_cast<std::uint64_t>(call_.root));
    for (std::int64_t bound : call_.bounds) add_to_signature(static_cast<std::uint64_t>(bound));
  }

  void add_to_signature(std::uint64_t part) {
    signature_ = (signature_ ^ part) * 0x9e3779b97f4a7c15ULL;
    signature_ ^= signature_ >> 29;
  }

  /// Rounds of equal length, as long as `most` bytes, but several where that lets them overlap.
  void cut(std::int64_t elements, std::int64_t most) {
    std::int64_t bytes = elements * item_;
    std::int64_t least = std::min(most, kSmallestRound);
    std::int64_t wanted = std::clamp(divide_up(bytes, kRoundsToOverlap), least, most);
    if (content_ == SlotContent::whole_input) wanted = most;
    length_ = std::max<std::int64_t>(1, wanted / kLineBytes * kLineBytes / item_);
    count_ = std::max<std::int64_t>(1, divide_up(elements, length_));  // ranks compare what they do even if it is nothing
  }

  // Part of a range of `total` elements that belongs to a round: first element and length.
  struct Part {
    std::int64_t begin, length;
  };
  Part part(std::int64_t round, std::int64_t total) const {
    std::int64_t begin = std::min(total, round * length_);
    return {begin, std::min(length_, total - begin)};
  }
  /// A rank's share of the sum of a round: first element within the round, and length.
  Part share(std::int64_t round, int rank) const {
    std::int64_t length = part(round, call_.bounds.back()).length;
    std::int64_t begin = std::min(length, rank * share_);
    return {begin, std::min(share_, length - begin)};
  }

  std::byte* slot(std::int64_t round, int rank) const {
    return segment_.slot(rank, (first_ + static_cast<std::uint64_t>(round)) % slots_);
  }

  void copy(std::byte* to, const std::byte* from, std::int64_t elements) const {
    if (to != from && elements > 0) std::memcpy(to, from, static_cast<std::size_t>(elements * item_));
  }
  /// To an output, which nobody reads soon where it is long.
  void copy_out(std::byte* to, const std::byte* from, std::int64_t elements) const {
    if (elements <= 0) return;
    auto bytes = static_cast<std::size_t>(elements * item_);
    if (outlasts_caches_) copy_past_caches(to, from, bytes);
    else std::memcpy(to, from, bytes);
  }

  void await(std::atomic<std::uint64_t> RankRecord::* counter, int peer, std::int64_t round) {
    std::uint64_t wanted = first_ + static_cast<std::uint64_t>(round) + 1;
    const std::atomic<std::uint64_t>& word = segment_.record(peer).*counter;
    if (word.load(std::memory_order_acquire) < wanted) {
      watch_.until(peer, [&] { return word.load(std::memory_order_acquire) >= wanted; });
    }
  }
  /// Waits for a peer's slot, and compares in a call's first round what it is for.
  void await_staged(int peer, std::int64_t round) {
    await(&RankRecord::staged, peer, round);
    if (round > 0) return;
    const auto& theirs = segment_.record(peer).signature[first_ % slots_];
    if (theirs.load(std::memory_order_relaxed) == signature_) return;
    throw Failed(segment_.announce({FaultKind::mismatch, peer, rank_}));
  }
  void finish(std::atomic<std::uint64_t>& counter, std::int64_t round) {
    counter.store(first_ + static_cast<std::uint64_t>(round) + 1, std::memory_order_release);
  }

  /// What needs no other rank.
  void copy_own() {
    std::int64_t at = call_.bounds[rank_];
    if (is(Collective::all_gather) || (is(Collective::gather) && rank_ == call_.root)) {
      copy(call_.output + at * item_, call_.input, block(rank_));
    } else if (is(Collective::all_to_all)) {
      copy(call_.output + rank_ * block(rank_) * item_, call_.input + at * item_, block(rank_));
    } else if (is(Collective::scatter) && rank_ == call_.root) {
      copy(call_.output, call_.input + at * item_, block(rank_));
    } else if (is(Collective::broadcast) && rank_ == call_.root) {
      copy(call_.output, call_.input, call_.bounds.back());
    }
  }

  void stage(std::int64_t round) {
    // The slot was last used `slots_` rounds ago.
    std::uint64_t now = first_ + static_cast<std::uint64_t>(round);
    if (now >= slots_) {
      for (int peer = 0; peer < ranks_; ++peer) {
        if (peer != rank_) await(&RankRecord::taken, peer, round - static_cast<std::int64_t>(slots_));
      }
    }
    std::byte* to = slot(round, rank_);
    if (content_ == SlotContent::own_block) {
      bool is_source = is(Collective::broadcast) ? rank_ == call_.root : !(is(Collective::gather) && rank_ == call_.root);
      if (is_source) {
        Part own = part(round, is(Collective::broadcast) ? call_.bounds.back() : block(rank_));
        copy(to, call_.input + own.begin * item_, own.length);
      }
    } else if (content_ == SlotContent::block_per_rank) {
      bool is_source = !is(Collective::scatter) || rank_ == call_.root;
      for (int peer = 0; is_source && peer < ranks_; ++peer) {
        Part theirs = part(round, block(peer));
        if (peer != rank_) copy(to + peer * share_ * item_, call_.input + (call_.bounds[peer] + theirs.begin) * item_, theirs.length);
      }
    } else {
      Part all = part(round, call_.bounds.back());
      const std::byte* from = call_.input + all.begin * item_;
      if (content_ == SlotContent::whole_input) {
        copy(to, from, all.length);
      } else {  // without its own share, which it reads from the input
        Part own = share(round, rank_);
        copy(to, from, own.begin);
        std::int64_t after = own.begin + own.length;
        copy(to + after * item_, from + after * item_, all.length - after);
      }
    }
    if (round == 0) own_.signature[first_ % slots_].store(signature_, std::memory_order_relaxed);
    finish(own_.staged, round);
  }

  void reduce(std::int64_t round) {
    if (content_ != SlotContent::partial_sums) return;
    Part own = share(round, rank_);
    const std::byte* input = call_.input + (part(round, call_.bounds.back()).begin + own.begin) * item_;
    collect(round, own.begin, input);
    combine_all(slot(round, rank_) + own.begin * item_, sources_, static_cast<std::size_t>(own.length), call_.type, call_.op);
    finish(own_.reduced, round);
  }

  /// The sources of a sum: the same place in all slots, and memory of this rank's own.
  void collect(std::int64_t round, std::int64_t at, const std::byte* own) {
    sources_.clear();
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer != rank_) await_staged(peer, round);
      sources_.push_back(peer == rank_ ? own : slot(round, peer) + at * item_);
    }
  }

  void take(std::int64_t round) {
    switch (call_.collective) {
      case Collective::all_reduce:
      case Collective::reduce:
        take_sum(round);
        break;
      case Collective::reduce_scatter: {
        Part own = part(round, block(rank_));
        collect(round, rank_ * share_, call_.input + (call_.bounds[rank_] + own.begin) * item_);
        combine_all(call_.output + own.begin * item_, sources_, static_cast<std::size_t>(own.length), call_.type, call_.op);
        break;
      }
      default:
        for (int step = 1; step < ranks_; ++step) take_from((rank_ + step) % ranks_, round);
    }
    finish(own_.taken, round);
  }

  void take_sum(std::int64_t round) {
    Part all = part(round, call_.bounds.back());
    std::byte* to = call_.output + all.begin * item_;
    if (content_ == SlotContent::whole_input) {
      collect(round, 0, call_.input + all.begin * item_);
      combine_all(to, sources_, static_cast<std::size_t>(all.length), call_.type, call_.op);
      return;
    }
    if (is(Collective::reduce) && rank_ != call_.root) return;
    for (int step = 0; step < ranks_; ++step) {
      int peer = (rank_ + step) % ranks_;
      Part theirs = share(round, peer);
      if (peer != rank_) await(&RankRecord::reduced, peer, round);
      copy_out(to + theirs.begin * item_, slot(round, peer) + theirs.begin * item_, theirs.length);
    }
  }

  void take_from(int peer, std::int64_t round) {
    if (is(Collective::broadcast) || is(Collective::scatter)) {
      if (peer != call_.root) return;
    } else if (is(Collective::gather) && rank_ != call_.root) {
      return;
    }
    await_staged(peer, round);
    const std::byte* from = slot(round, peer);
    if (is(Collective::broadcast)) {
      Part all = part(round, call_.bounds.back());
      copy_out(call_.output + all.begin * item_, from, all.length);
    } else if (content_ == SlotContent::own_block) {
      Part theirs = part(round, block(peer));
      copy_out(call_.output + (call_.bounds[peer] + theirs.begin) * item_, from, theirs.length);
    } else {
      Part own = part(round, block(rank_));
      std::int64_t at = is(Collective::all_to_all) ? peer * block(rank_) : 0;
      copy_out(call_.output + (at + own.begin) * item_, from + rank_ * share_ * item_, own.length);
    }
  }

  Segment& segment_;
  const DirectCall& call_;
  const int rank_, ranks_;
  const std::int64_t item_;
  const std::uint64_t first_, slots_;
  Watch& watch_;
  std::vector<const void*>& sources_;
  RankRecord& own_;
  SlotContent content_ = SlotContent::own_block;
  std::int64_t length_ = 1;  // elements of a round: of the buffer, or of each block
  std::int64_t share_ = 1;   // elements from one rank's place in a slot to the next one's
  std::int64_t count_ = 0;
  bool outlasts_caches_ = false;
  std::uint64_t signature_ = 0;
};

}  // namespace

Direct::Direct(Segment& segment, int rank) : segment_(segment), rank_(rank) {
  sources_.reserve(static_cast<std::size_t>(segment.ranks()));
}

void Direct::run(const DirectCall& call, double timeout_s, const StopFlag& stop) {
  Watch watch(segment_, rank_, timeout_s, stop);
  if (!is_reserved_) {
    segment_.reserve(segment_.slot(rank_, 0), segment_.header().slots * segment_.header().slot_bytes, rank_);
    is_reserved_ = true;
  }
  DirectCall used = call;
  if (call.collective == Collective::all_to_all && call.input == call.output) {
    input_copy_.assign(call.input, call.input + call.bounds.back() * static_cast<std::int64_t>(item_size(call.type)));
    used.input = input_copy_.data();
  }
  Rounds rounds(segment_, rank_, used, rounds_, watch, sources_);
  rounds.run();
  rounds_ += static_cast<std::uint64_t>(rounds.count());
}

}  // namespace coppice::shm
