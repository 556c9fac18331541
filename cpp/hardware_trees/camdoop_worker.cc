#include "hardware_trees/camdoop.h"
#include "hardware_trees/camdoop_frames.h"

namespace coppice::aggregation {

using namespace camdoop;

CamdoopWorker::CamdoopWorker(const Job& job, int index, Endpoint above) : job_(job), above_(above) {
  check(job);
  require(index >= 0 && index < job.workers, "expected a worker's number below the job's workers");
  pairs_ = setting(job, "pairs", 0) == 1;
  trees_.resize(setting(job, "trees", 1));
  for (Tree& tree : trees_) {
    tree.epoch = setting(job, "life", 0);
    tree.begin = tree.base = tree.end = tree.made = setting(job, "first", 0);
    tree.chunks = FrameRing(2 * job.window, most_words(job));
    tree.from = CreditReceiver(job.slots, most_words(job));
  }
  words_.resize(most_words(job) + 1);
  frame_ = FrameBuffer(static_cast<int>(most_words(job)) + 1);
}

void CamdoopWorker::begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) {
  require(done(), "expected the all-reduce before to be done");
  const auto values = static_cast<std::size_t>(job_.values), trees = trees_.size();
  const std::size_t frames = (count + values - 1) / values;
  require(frames < std::size_t{1} << 30, "expected fewer than 2^30 frames");
  input_ = static_cast<const Word*>(input);
  output_ = static_cast<Word*>(output);
  count_ = count;
  progress_ = now;
  for (std::size_t which = 0; which < trees; ++which) {
    Tree& tree = trees_[which];
    tree.begin = tree.end;
    tree.end += static_cast<std::uint32_t>(pairs_ ? 1 : (frames + trees - 1 - which) / trees);
    tree.next_pair = 0;
    tree.merged.clear();
    if (tree.begin == tree.end) continue;
    tree.timer = later(now, job_.timeout);
    if (tree.started) {
      proceed(which, out);
    } else {
      put(which, kHello, tree.begin, 0, {}, out);
    }
  }
}

bool CamdoopWorker::done() const {
  for (const Tree& tree : trees_) {
    if (tree.base != tree.end) return false;
  }
  return true;
}

// Cuts the next chunk, or the next pairs, if it may be sent.
bool CamdoopWorker::cut(std::size_t which) {
  Tree& tree = trees_[which];
  const auto values = static_cast<std::size_t>(job_.values);
  if (!pairs_) {
    if (tree.made == tree.end || after(tree.made, tree.base) >= job_.window) return false;
    const std::size_t at = (std::size_t{tree.made - tree.begin} * trees_.size() + which) * values;
    const std::size_t count = std::min(values, count_ - at);
    std::copy_n(input_ + at, count, words_.begin());
    std::fill(words_.begin() + static_cast<std::ptrdiff_t>(count), words_.begin() + static_cast<std::ptrdiff_t>(values), Word{0});
    tree.chunks.put(tree.made++, 0, std::span<const Word>(words_).first(values));
    return true;
  }
  if (tree.next_pair > count_ || tree.base == tree.end) return false;
  if (after(tree.made, tree.to.acknowledged) >= static_cast<std::int32_t>(tree.chunks.length())) return false;
  std::size_t filled = 0;
  for (; tree.next_pair < count_; ++tree.next_pair) {
    const Word* pair = input_ + 2 * tree.next_pair;
    if (pair[0] % trees_.size() != which) continue;
    if (filled == 2 * values) break;
    std::copy_n(pair, 2, words_.begin() + static_cast<std::ptrdiff_t>(filled));
    filled += 2;
  }
  const bool last = tree.next_pair == count_;
  if (last) ++tree.next_pair;
  tree.chunks.put(tree.made++, last, std::span<const Word>(words_).first(filled));
  return true;
}

void CamdoopWorker::proceed(std::size_t which, Outbox& out) {
  Tree& tree = trees_[which];
  while (tree.started && after(tree.to.limit, tree.to.sent) > 0 && (tree.to.sent != tree.made || cut(which))) {
    const std::uint32_t number = tree.to.sent++;
    count(Count::sent);
    put(which, kValues, number, tree.chunks.extra(number), tree.chunks.words(number), out);
  }
}

void CamdoopWorker::receive(Endpoint from, Bytes packet, Time now, Outbox& out) {
  count(Count::received);
  FrameHead head;
  if (!FrameHead::read(packet, head) || head.words == 0) return count(Count::malformed);
  if (from != above_ || head.job != job_.id || head.tree >= trees_.size()) return count(Count::unknown_sender);
  if (!well_formed(head, packet, job_, pairs_) || head.type == kValues || head.type == kHello) {
    return count(Count::malformed);
  }
  const std::size_t which = head.tree;
  Tree& tree = trees_[which];
  const std::uint32_t epoch = load<std::uint32_t>(packet.data() + FrameHead::kBytes);
  if (head.type == kRebuilt && (epoch > tree.epoch || (epoch == tree.epoch && !tree.started))) {
    if (epoch > tree.epoch && pairs_ && tree.begin != tree.end) {
      failure_ = "tree " + std::to_string(which) + " was rebuilt, which jobs of pairs do not survive: start a new job";
      return;
    }
    tree.epoch = epoch;
    tree.started = false;
    tree.timer = later(now, job_.timeout);
    put(which, kHello, tree.base, 0, {}, out);
  } else if (epoch != tree.epoch) {
    count(Count::bad_epoch);
  } else if (head.type == kRebuilt) {
    count(Count::duplicate);
  } else if (head.type == kStart) {
    const std::int32_t back = after(tree.base, head.number);
    if (tree.started) {
      count(Count::duplicate);
    } else if (!pairs_ && (back < 0 || back > job_.window)) {
      count(Count::malformed);
    } else {
      tree.started = true;
      tree.to.start(head.number, static_cast<std::uint32_t>(job_.slots));
      tree.from.start(head.number);
      tree.timer = later(now, job_.timeout);
      proceed(which, out);
    }
  } else if (!tree.started) {
    count(Count::future);
  } else if (head.type == kAcknowledged) {
    if (tree.to.take(head.number, head.extra, tree.made)) {
      tree.timer = later(now, job_.timeout);
      proceed(which, out);
    } else {
      count(Count::stale);
    }
  } else {
    words_.resize(head.words);
    load_words(words_.data(), packet);
    count(tree.from.take(head.number, head.extra, std::span<const Word>(words_).subspan(1)));
    words_.resize(most_words(job_) + 1);
    const std::uint32_t before = tree.from.used;
    take(which);
    if (before != tree.from.used) {
      progress_ = now;
      tree.timer = later(now, job_.timeout);
      proceed(which, out);
    }
    tree.from.told = tree.from.limit();
    put(which, kAcknowledged, tree.from.expected, tree.from.told, {}, out);
  }
}

// Uses the sums that have come in their order.
void CamdoopWorker::take(std::size_t which) {
  Tree& tree = trees_[which];
  const auto values = static_cast<std::size_t>(job_.values);
  for (; tree.from.ready(); tree.from.use()) {
    const std::span<const Word> words = tree.from.ring.words(tree.from.used);
    if (pairs_) {
      count(Count::completed);
      tree.merged.insert(tree.merged.end(), words.begin(), words.end());
      tree.base += tree.from.ring.extra(tree.from.used);
      if (done()) gather();
    } else if (tree.base != tree.end && tree.from.used == tree.base) {
      count(Count::completed);
      const std::size_t at = (std::size_t{tree.base - tree.begin} * trees_.size() + which) * values;
      std::copy_n(words.begin(), std::min(values, count_ - at), output_ + at);
      ++tree.base;
    }
  }
}

// Joins the pairs of all trees by their keys.
void CamdoopWorker::gather() {
  std::vector<std::pair<Word, Word>> pairs;
  for (const Tree& tree : trees_) {
    for (std::size_t i = 0; i < tree.merged.size(); i += 2) pairs.emplace_back(tree.merged[i], tree.merged[i + 1]);
  }
  std::sort(pairs.begin(), pairs.end());
  if (pairs.size() > setting(job_, "most", 1 << 20)) {
    failure_ = "expected room for " + std::to_string(pairs.size()) + " pairs in the output: raise the setting most";
    return;
  }
  output_[0] = static_cast<Word>(pairs.size());
  output_[1] = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    output_[2 * i + 2] = pairs[i].first;
    output_[2 * i + 3] = pairs[i].second;
  }
}

bool CamdoopWorker::waits(const Tree& tree) const {
  return tree.base != tree.end || (tree.started && tree.to.acknowledged != tree.made) ||
         (!tree.started && tree.begin != tree.end);
}

Time CamdoopWorker::deadline() const {
  Time soonest = kNever;
  if (!failure_.empty()) return soonest;
  for (const Tree& tree : trees_) {
    if (waits(tree)) soonest = std::min(soonest, tree.timer);
  }
  return done() ? soonest : std::min(soonest, later(progress_, job_.give_up_timeout));
}

void CamdoopWorker::wake(Time now, Outbox& out) {
  if (now < deadline()) return;
  if (!done() && now >= later(progress_, job_.give_up_timeout)) {
    failure_ = "no sum came in the job's give-up timeout: some worker is silent, or a hop is";
    return;
  }
  for (std::size_t which = 0; which < trees_.size(); ++which) {
    Tree& tree = trees_[which];
    if (!waits(tree) || now < tree.timer) continue;
    tree.timer = later(now, job_.timeout);
    if (!tree.started || tree.to.acknowledged == tree.made) {
      put(which, kHello, tree.base, 0, {}, out);
      continue;
    }
    const std::uint32_t end = tree.to.acknowledged == tree.to.sent ? tree.to.sent + 1 : tree.to.sent;
    for (std::uint32_t number = tree.to.acknowledged; number != end; ++number) {
      count(Count::resent);
      put(which, kValues, number, tree.chunks.extra(number), tree.chunks.words(number), out);
    }
  }
}

void CamdoopWorker::put(std::size_t which, std::uint8_t type, std::uint32_t number, std::uint32_t extra,
                        std::span<const Word> words, Outbox& out) {
  std::copy(words.begin(), words.end(), words_.begin() + 1);
  words_[0] = trees_[which].epoch;
  out.send(above_, frame_.with({.type = type, .tree = static_cast<std::uint8_t>(which), .job = job_.id, .number = number, .extra = extra},
                               std::span<const Word>(words_).first(words.size() + 1)));
}

void CamdoopWorker::save(Time now, StateWriter& state) const {
  for (const Tree& tree : trees_) {
    state << tree.epoch << tree.started << tree.begin << tree.base << tree.end << tree.made << tree.next_pair << tree.merged;
    tree.to.save(state);
    tree.from.save(state);
    if (waits(tree)) state << tree.timer - now;
  }
  state << failure_.empty();
  if (!done() && job_.give_up_timeout != kNever) state << progress_ - now;
}

}  // namespace coppice::aggregation
