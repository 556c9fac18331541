#include "aggregation/camdoop.h"
#include "aggregation/camdoop_frames.h"

namespace coppice::aggregation {

using namespace camdoop;

CamdoopWorker::CamdoopWorker(const Job& job, int index, Endpoint above) : job_(job), above_(above) {
  check(job);
  require(index >= 0 && index < job.workers, "expected a worker's number below the job's workers");
  pairs_ = setting(job, "pairs", 0) == 1;
  lanes_.resize(setting(job, "trees", 1));
  for (Lane& lane : lanes_) {
    lane.life = setting(job, "life", 0);
    lane.begin = lane.base = lane.end = lane.made = setting(job, "first", 0);
    lane.chunks = FrameRing(2 * job.window, most_words(job));
    lane.from = CreditReceiver(job.slots, most_words(job));
  }
  words_.resize(most_words(job) + 1);
  frame_ = FrameBuffer(static_cast<int>(most_words(job)) + 1);
}

void CamdoopWorker::begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) {
  require(done(), "expected the all-reduce before to be done");
  const auto values = static_cast<std::size_t>(job_.values), trees = lanes_.size();
  const std::size_t frames = (count + values - 1) / values;
  require(frames < std::size_t{1} << 30, "expected fewer than 2^30 frames");
  input_ = static_cast<const Word*>(input);
  output_ = static_cast<Word*>(output);
  count_ = count;
  progress_ = now;
  for (std::size_t tree = 0; tree < trees; ++tree) {
    Lane& lane = lanes_[tree];
    lane.begin = lane.end;
    lane.end += static_cast<std::uint32_t>(pairs_ ? 1 : (frames + trees - 1 - tree) / trees);
    lane.next_pair = 0;
    lane.merged.clear();
    if (lane.begin == lane.end) continue;
    lane.timer = later(now, job_.timeout);
    if (lane.started) {
      proceed(tree, out);
    } else {
      put(tree, kHello, lane.begin, 0, {}, out);
    }
  }
}

bool CamdoopWorker::done() const {
  for (const Lane& lane : lanes_) {
    if (lane.base != lane.end) return false;
  }
  return true;
}

// Cuts the next chunk, or the next pairs, if it may be sent.
bool CamdoopWorker::cut(std::size_t tree) {
  Lane& lane = lanes_[tree];
  const auto values = static_cast<std::size_t>(job_.values);
  if (!pairs_) {
    if (lane.made == lane.end || after(lane.made, lane.base) >= job_.window) return false;
    const std::size_t at = (std::size_t{lane.made - lane.begin} * lanes_.size() + tree) * values;
    const std::size_t count = std::min(values, count_ - at);
    std::copy_n(input_ + at, count, words_.begin());
    std::fill(words_.begin() + static_cast<std::ptrdiff_t>(count), words_.begin() + static_cast<std::ptrdiff_t>(values), Word{0});
    lane.chunks.put(lane.made++, 0, std::span<const Word>(words_).first(values));
    return true;
  }
  if (lane.next_pair > count_ || lane.base == lane.end) return false;
  if (after(lane.made, lane.to.acknowledged) >= static_cast<std::int32_t>(lane.chunks.length())) return false;
  std::size_t filled = 0;
  for (; lane.next_pair < count_; ++lane.next_pair) {
    const Word* pair = input_ + 2 * lane.next_pair;
    if (pair[0] % lanes_.size() != tree) continue;
    if (filled == 2 * values) break;
    std::copy_n(pair, 2, words_.begin() + static_cast<std::ptrdiff_t>(filled));
    filled += 2;
  }
  const bool last = lane.next_pair == count_;
  if (last) ++lane.next_pair;
  lane.chunks.put(lane.made++, last, std::span<const Word>(words_).first(filled));
  return true;
}

void CamdoopWorker::proceed(std::size_t tree, Outbox& out) {
  Lane& lane = lanes_[tree];
  while (lane.started && after(lane.to.limit, lane.to.sent) > 0 && (lane.to.sent != lane.made || cut(tree))) {
    const std::uint32_t number = lane.to.sent++;
    ++counters_[Count::sent];
    put(tree, kValues, number, lane.chunks.extra(number), lane.chunks.words(number), out);
  }
}

void CamdoopWorker::receive(Endpoint from, Bytes packet, Time now, Outbox& out) {
  ++counters_[Count::received];
  FrameHead head;
  if (!FrameHead::read(packet, head) || head.words == 0) {
    ++counters_[Count::malformed];
    return;
  }
  if (from != above_ || head.job != job_.id || head.lane >= lanes_.size()) {
    ++counters_[Count::stranger];
    return;
  }
  if (!well_formed(head, packet, job_, pairs_) || head.type == kValues || head.type == kHello) {
    ++counters_[Count::malformed];
    return;
  }
  const std::size_t tree = head.lane;
  Lane& lane = lanes_[tree];
  const std::uint32_t life = load<std::uint32_t>(packet.data() + FrameHead::kBytes);
  if (head.type == kRebuilt && (life > lane.life || (life == lane.life && !lane.started))) {
    if (life > lane.life && pairs_ && lane.begin != lane.end) {
      failure_ = "tree " + std::to_string(tree) + " was rebuilt, which jobs of pairs do not survive: start a new job";
      return;
    }
    lane.life = life;
    lane.started = false;
    lane.timer = later(now, job_.timeout);
    put(tree, kHello, lane.base, 0, {}, out);
  } else if (life != lane.life) {
    ++counters_[Count::bad_epoch];
  } else if (head.type == kRebuilt) {
    ++counters_[Count::repeated];
  } else if (head.type == kStart) {
    const std::int32_t back = after(lane.base, head.number);
    if (lane.started) {
      ++counters_[Count::repeated];
    } else if (!pairs_ && (back < 0 || back > job_.window)) {
      ++counters_[Count::malformed];
    } else {
      lane.started = true;
      lane.to.start(head.number, static_cast<std::uint32_t>(job_.slots));
      lane.from.start(head.number);
      lane.timer = later(now, job_.timeout);
      proceed(tree, out);
    }
  } else if (!lane.started) {
    ++counters_[Count::ahead];
  } else if (head.type == kAcknowledged) {
    if (lane.to.take(head.number, head.extra, lane.made)) {
      lane.timer = later(now, job_.timeout);
      proceed(tree, out);
    } else {
      ++counters_[Count::stale];
    }
  } else {
    words_.resize(head.words);
    load_words(words_.data(), packet);
    ++counters_[lane.from.take(head.number, head.extra, std::span<const Word>(words_).subspan(1))];
    words_.resize(most_words(job_) + 1);
    const std::uint32_t before = lane.from.used;
    take(tree);
    if (before != lane.from.used) {
      progress_ = now;
      lane.timer = later(now, job_.timeout);
      proceed(tree, out);
    }
    lane.from.told = lane.from.limit();
    put(tree, kAcknowledged, lane.from.expected, lane.from.told, {}, out);
  }
}

// Uses the sums that have come in their order.
void CamdoopWorker::take(std::size_t tree) {
  Lane& lane = lanes_[tree];
  const auto values = static_cast<std::size_t>(job_.values);
  for (; lane.from.ready(); lane.from.use()) {
    const std::span<const Word> words = lane.from.ring.words(lane.from.used);
    if (pairs_) {
      ++counters_[Count::completed];
      lane.merged.insert(lane.merged.end(), words.begin(), words.end());
      lane.base += lane.from.ring.extra(lane.from.used);
      if (done()) gather();
    } else if (lane.base != lane.end && lane.from.used == lane.base) {
      ++counters_[Count::completed];
      const std::size_t at = (std::size_t{lane.base - lane.begin} * lanes_.size() + tree) * values;
      std::copy_n(words.begin(), std::min(values, count_ - at), output_ + at);
      ++lane.base;
    }
  }
}

// Joins the pairs of all trees by their keys.
void CamdoopWorker::gather() {
  std::vector<std::pair<Word, Word>> pairs;
  for (const Lane& lane : lanes_) {
    for (std::size_t i = 0; i < lane.merged.size(); i += 2) pairs.emplace_back(lane.merged[i], lane.merged[i + 1]);
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

bool CamdoopWorker::waits(const Lane& lane) const {
  return lane.base != lane.end || (lane.started && lane.to.acknowledged != lane.made) ||
         (!lane.started && lane.begin != lane.end);
}

Time CamdoopWorker::deadline() const {
  Time soonest = kNever;
  if (!failure_.empty()) return soonest;
  for (const Lane& lane : lanes_) {
    if (waits(lane)) soonest = std::min(soonest, lane.timer);
  }
  return done() ? soonest : std::min(soonest, later(progress_, job_.patience));
}

void CamdoopWorker::wake(Time now, Outbox& out) {
  if (now < deadline()) return;
  if (!done() && now >= later(progress_, job_.patience)) {
    failure_ = "no sum came in the job's patience: some worker is silent, or a hop is";
    return;
  }
  for (std::size_t tree = 0; tree < lanes_.size(); ++tree) {
    Lane& lane = lanes_[tree];
    if (!waits(lane) || now < lane.timer) continue;
    lane.timer = later(now, job_.timeout);
    if (!lane.started || lane.to.acknowledged == lane.made) {
      put(tree, kHello, lane.base, 0, {}, out);
      continue;
    }
    const std::uint32_t end = lane.to.acknowledged == lane.to.sent ? lane.to.sent + 1 : lane.to.sent;
    for (std::uint32_t number = lane.to.acknowledged; number != end; ++number) {
      ++counters_[Count::resent];
      put(tree, kValues, number, lane.chunks.extra(number), lane.chunks.words(number), out);
    }
  }
}

void CamdoopWorker::put(std::size_t tree, std::uint8_t type, std::uint32_t number, std::uint32_t extra,
                        std::span<const Word> words, Outbox& out) {
  std::copy(words.begin(), words.end(), words_.begin() + 1);
  words_[0] = lanes_[tree].life;
  out.send(above_, frame_.with({.type = type, .lane = static_cast<std::uint8_t>(tree), .job = job_.id, .number = number, .extra = extra},
                               std::span<const Word>(words_).first(words.size() + 1)));
}

void CamdoopWorker::save(Time now, std::vector<std::uint8_t>& bytes) const {
  State state(bytes);
  for (const Lane& lane : lanes_) {
    state << lane.life << lane.started << lane.begin << lane.base << lane.end << lane.made << lane.next_pair << lane.merged;
    lane.to.save(state);
    lane.from.save(state);
    if (waits(lane)) state << lane.timer - now;
  }
  state << failure_.empty();
  if (!done() && job_.patience != kNever) state << progress_ - now;
}

}  // namespace coppice::aggregation
