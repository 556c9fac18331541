#include "aggregation/camdoop.h"

#include "aggregation/camdoop_frames.h"

namespace coppice::aggregation {

using namespace camdoop;

void CamdoopHop::open(const Job& job, std::span<const Endpoint> children, Endpoint parent) {
  check(job);
  Lane lane;
  lane.job = job;
  lane.tree = static_cast<std::uint8_t>(setting(job, "tree", 0));
  lane.life = setting(job, "life", 0);
  lane.pairs = setting(job, "pairs", 0) == 1;
  const auto before = lanes_.find(key(job.id, lane.tree));
  const int held = before == lanes_.end() ? 0 : before->second.job.slots;
  require(before == lanes_.end() || before->second.life < lane.life, "expected a tree that is not open yet, or a later life");
  require(job.slots <= free_frames_ + held, "expected a tree that needs no more frames than are left");
  lane.children = Children(children, parent);
  lane.parent = parent;
  const std::size_t words = most_words(job), count = children.size();
  lane.heard.resize(count);
  lane.from.assign(count, CreditReceiver(job.slots, words));
  lane.to.resize(count);
  lane.down = FrameRing(job.slots, words);
  if (!lane.root()) {
    lane.from_parent = CreditReceiver(job.slots, words);
    lane.up = FrameRing(job.slots, words);
  }
  lane.cursor.resize(count);
  lane.ended.resize(count);
  lane.sum.resize(words);
  lane.frame = FrameBuffer(static_cast<int>(words) + 1);
  lane.words.resize(words + 1);
  free_frames_ -= job.slots - held;
  lanes_.insert_or_assign(key(job.id, lane.tree), std::move(lane));
}

void CamdoopHop::close(std::uint32_t job) {
  std::erase_if(lanes_, [&](const auto& entry) {
    if (entry.second.job.id != job) return false;
    free_frames_ += entry.second.job.slots;
    return true;
  });
}

std::int64_t CamdoopHop::slots_in_use() const {
  std::int64_t used = 0;
  for (const auto& [_, lane] : lanes_) {
    if (!lane.started) continue;
    for (const CreditReceiver& each : lane.from) used += after(each.expected, each.used);
    used += after(lane.from_parent.expected, lane.from_parent.used);
    // What was passed up and has not come back; copies that only wait for their acknowledgement do not count.
    if (!lane.root() && !lane.pairs) used += after(lane.up_next, lane.down_next);
  }
  return used;
}

std::vector<int> CamdoopHop::waits_for(std::uint32_t job) const {
  std::vector<int> missing;
  for (const auto& [_, lane] : lanes_) {
    if (lane.job.id != job) continue;
    for (std::size_t child = 0; child < lane.children.size(); ++child) {
      const bool there = lane.started ? lane.from[child].ready() : lane.heard[child] != 0;
      if (!there) missing.push_back(static_cast<int>(child));
    }
    if (!missing.empty() && missing.size() < lane.children.size()) return missing;
    missing.clear();
  }
  return missing;
}

void CamdoopHop::receive(Endpoint from, Bytes packet, Time now, Outbox& out) {
  ++counters_[Count::received];
  FrameHead head;
  if (!FrameHead::read(packet, head) || head.words == 0) {
    ++counters_[Count::malformed];
    return;
  }
  const auto found = lanes_.find(key(head.job, head.lane));
  if (found == lanes_.end()) {
    ++counters_[Count::stranger];
    return;
  }
  Lane& lane = found->second;
  const int child = lane.children.find(from);
  const bool up = head.type == kValues || head.type == kHello;
  const bool down = head.type == kSums || head.type == kStart || head.type == kRebuilt;
  if (child < 0 && (from != lane.parent || from == kNobody)) {
    ++counters_[Count::stranger];
    return;
  }
  if ((child >= 0 ? down : up) || !well_formed(head, packet, lane.job, lane.pairs)) {
    ++counters_[Count::malformed];
    return;
  }
  const std::uint32_t life = load<std::uint32_t>(packet.data() + FrameHead::kBytes);
  if (life != lane.life || head.type == kRebuilt) {
    ++counters_[Count::bad_epoch];
    if (life < lane.life && child >= 0) put(lane, kRebuilt, 0, 0, {}, from, out);
    return;
  }
  const bool was_busy = busy(lane);
  bool news = false;
  if (head.type == kHello) {
    hello(lane, static_cast<std::size_t>(child), head.number, out);
  } else if (head.type == kStart) {
    if (lane.started || !lane.all_heard()) {
      ++counters_[lane.started ? Count::repeated : Count::ahead];
      return;
    }
    start(lane, head.number, out);
    news = true;
  } else if (!lane.started) {
    ++counters_[Count::ahead];
    return;
  } else if (head.type == kAcknowledged) {
    CreditSender& sender = child >= 0 ? lane.to[static_cast<std::size_t>(child)] : lane.to_parent;
    news = sender.take(head.number, head.extra, child >= 0 ? lane.down_next : lane.up_next);
    if (!news) ++counters_[Count::stale];
  } else {
    CreditReceiver& receiver = child >= 0 ? lane.from[static_cast<std::size_t>(child)] : lane.from_parent;
    lane.words.resize(head.words);
    load_words(lane.words.data(), packet);
    ++counters_[receiver.take(head.number, head.extra, std::span<const Word>(lane.words).subspan(1))];
    proceed(lane, out, &receiver);
    acknowledge(lane, receiver, from, out);
  }
  if (news) proceed(lane, out, nullptr);
  if (news || (!was_busy && busy(lane))) lane.timer = later(now, lane.job.timeout);
}

void CamdoopHop::hello(Lane& lane, std::size_t child, std::uint32_t number, Outbox& out) {
  if (lane.started) {
    ++counters_[Count::answered];
    put(lane, kStart, lane.first, 0, {}, lane.children[child], out);
    acknowledge(lane, lane.from[child], lane.children[child], out);
    return;
  }
  if (lane.heard[child]) {
    ++counters_[Count::repeated];
    return;
  }
  if (!lane.any_heard() || after(number, lane.first) < 0) lane.first = number;
  lane.heard[child] = 1;
  if (!lane.all_heard()) return;
  if (lane.root()) {
    start(lane, lane.first, out);
  } else {
    put(lane, kHello, lane.first, 0, {}, lane.parent, out);
  }
}

void CamdoopHop::start(Lane& lane, std::uint32_t number, Outbox& out) {
  const auto frames = static_cast<std::uint32_t>(lane.job.slots);
  lane.started = true;
  lane.first = lane.up_next = lane.down_next = number;
  lane.to_parent.start(number, frames);
  lane.from_parent.start(number);
  for (std::size_t child = 0; child < lane.children.size(); ++child) {
    lane.from[child].start(number);
    lane.to[child].start(number, frames);
    put(lane, kStart, number, 0, {}, lane.children[child], out);
  }
  proceed(lane, out, nullptr);
}

std::uint32_t CamdoopHop::oldest(const Lane& lane) {
  std::uint32_t least = lane.down_next;
  for (const CreditSender& each : lane.to) {
    if (after(each.acknowledged, least) < 0) least = each.acknowledged;
  }
  return least;
}

// Whether there is a place for one more of what the children's frames give.
bool CamdoopHop::room(const Lane& lane) const {
  return (lane.root() ? after(lane.down_next, oldest(lane)) : after(lane.up_next, lane.to_parent.acknowledged)) < lane.job.slots;
}

void CamdoopHop::emit(Lane& lane, std::uint32_t extra, std::span<const Word> words) {
  if (lane.root()) {
    ++counters_[Count::completed];
    lane.down.put(lane.down_next++, extra, words);
  } else {
    ++counters_[Count::forwarded];
    lane.up.put(lane.up_next++, extra, words);
  }
}

// One chunk, if all children have it.
bool CamdoopHop::add(Lane& lane) {
  for (const CreditReceiver& each : lane.from) {
    if (!each.ready()) return false;
  }
  if (!room(lane)) return false;
  for (std::size_t child = 0; child < lane.from.size(); ++child) {
    const std::span<const Word> words = lane.from[child].ring.words(lane.from[child].used);
    if (child == 0) {
      std::copy(words.begin(), words.end(), lane.sum.begin());
    } else {
      add_words(lane.job.element, lane.sum.data(), words.data(), words.size());
    }
    lane.from[child].use();
  }
  emit(lane, 0, lane.sum);
  return true;
}

// As many pairs as all children have, up to one frame.
bool CamdoopHop::merge(Lane& lane) {
  bool moved = false;
  while (true) {
    bool all_ended = true;
    std::uint32_t least = 0xffffffff;
    for (std::size_t child = 0; child < lane.from.size(); ++child) {
      CreditReceiver& from = lane.from[child];
      while (!lane.ended[child] && from.ready() && lane.cursor[child] == from.ring.words(from.used).size()) {
        lane.ended[child] = from.ring.extra(from.used) == 1;
        lane.cursor[child] = 0;
        from.use();
        moved = true;
      }
      if (lane.ended[child]) continue;
      if (!from.ready()) return moved;
      all_ended = false;
      least = std::min(least, from.ring.words(from.used)[lane.cursor[child]]);
    }
    if (all_ended || lane.filled == lane.sum.size()) {
      if (!room(lane)) return moved;
      emit(lane, all_ended, std::span<const Word>(lane.sum).first(lane.filled));
      lane.filled = 0;
      if (all_ended) std::fill(lane.ended.begin(), lane.ended.end(), std::uint8_t{0});
      return true;
    }
    bool any = false;
    for (std::size_t child = 0; child < lane.from.size(); ++child) {
      if (lane.ended[child]) continue;
      const std::span<const Word> words = lane.from[child].ring.words(lane.from[child].used);
      if (words[lane.cursor[child]] != least) continue;
      const Word value = words[lane.cursor[child] + 1];
      if (any) {
        add_words(lane.job.element, &lane.sum[lane.filled + 1], &value, 1);
      } else {
        lane.sum[lane.filled] = least;
        lane.sum[lane.filled + 1] = value;
      }
      any = true;
      lane.cursor[child] += 2;
    }
    lane.filled += 2;
    moved = true;
  }
}

// Adds, passes on and tells of room, as far as it goes; the sender of `but` is told anyway.
void CamdoopHop::proceed(Lane& lane, Outbox& out, const CreditReceiver* but) {
  bool moved = true;
  while (moved) {
    moved = lane.pairs ? merge(lane) : add(lane);
    while (!lane.root() && lane.from_parent.ready() && after(lane.down_next, oldest(lane)) < lane.job.slots) {
      const std::uint32_t number = lane.from_parent.used;
      lane.down.put(lane.down_next++, lane.from_parent.ring.extra(number), lane.from_parent.ring.words(number));
      lane.from_parent.use();
      moved = true;
    }
  }
  while (lane.to_parent.may_send(lane.up_next) && !lane.root()) {
    const std::uint32_t number = lane.to_parent.sent++;
    ++counters_[Count::sent];
    put(lane, kValues, number, lane.up.extra(number), lane.up.words(number), lane.parent, out);
  }
  for (std::size_t child = 0; child < lane.to.size(); ++child) {
    while (lane.to[child].may_send(lane.down_next)) {
      const std::uint32_t number = lane.to[child].sent++;
      ++counters_[Count::sent];
      put(lane, kSums, number, lane.down.extra(number), lane.down.words(number), lane.children[child], out);
    }
    if (&lane.from[child] != but && lane.from[child].should_tell()) acknowledge(lane, lane.from[child], lane.children[child], out);
  }
  if (!lane.root() && &lane.from_parent != but && lane.from_parent.should_tell()) acknowledge(lane, lane.from_parent, lane.parent, out);
}

bool CamdoopHop::busy(const Lane& lane) {
  if (!lane.started) return lane.any_heard();
  return lane.to_parent.acknowledged != lane.up_next || oldest(lane) != lane.down_next;
}

Time CamdoopHop::deadline() const {
  Time soonest = kNever;
  for (const auto& [_, lane] : lanes_) {
    if (busy(lane)) soonest = std::min(soonest, lane.timer);
  }
  return soonest;
}

void CamdoopHop::wake(Time now, Outbox& out) {
  for (auto& [_, lane] : lanes_) {
    if (!busy(lane) || now < lane.timer) continue;
    lane.timer = later(now, lane.job.timeout);
    if (!lane.started) {
      if (lane.all_heard()) put(lane, kHello, lane.first, 0, {}, lane.parent, out);
      for (std::size_t child = 0; child < lane.heard.size(); ++child) {
        if (!lane.heard[child]) put(lane, kRebuilt, 0, 0, {}, lane.children[child], out);
      }
      continue;
    }
    const auto again = [&](const CreditSender& sender, std::uint8_t type, const FrameRing& ring, std::uint32_t next, Endpoint to) {
      if (sender.acknowledged == next) return;
      // Where all that was sent has arrived, one frame more: its acknowledgement tells of room.
      const std::uint32_t end = sender.acknowledged == sender.sent ? sender.sent + 1 : sender.sent;
      for (std::uint32_t number = sender.acknowledged; number != end; ++number) {
        ++counters_[Count::resent];
        put(lane, type, number, ring.extra(number), ring.words(number), to, out);
      }
    };
    if (!lane.root()) again(lane.to_parent, kValues, lane.up, lane.up_next, lane.parent);
    for (std::size_t child = 0; child < lane.to.size(); ++child) {
      again(lane.to[child], kSums, lane.down, lane.down_next, lane.children[child]);
    }
  }
}

void CamdoopHop::put(Lane& lane, std::uint8_t type, std::uint32_t number, std::uint32_t extra, std::span<const Word> words,
                     Endpoint to, Outbox& out) {
  lane.words.resize(words.size() + 1);
  lane.words[0] = lane.life;
  std::copy(words.begin(), words.end(), lane.words.begin() + 1);
  out.send(to, lane.frame.with({.type = type, .lane = lane.tree, .job = lane.job.id, .number = number, .extra = extra}, lane.words));
}

void CamdoopHop::acknowledge(Lane& lane, CreditReceiver& receiver, Endpoint to, Outbox& out) {
  receiver.told = receiver.limit();
  put(lane, kAcknowledged, receiver.expected, receiver.told, {}, to, out);
}

void CamdoopHop::save(Time now, std::vector<std::uint8_t>& bytes) const {
  State state(bytes);
  for (const auto& [id, lane] : lanes_) {
    state << id << lane.life << lane.started << lane.first << lane.heard << (busy(lane) ? lane.timer - now : Time{0});
    if (!lane.started) continue;
    state << lane.up_next << lane.down_next << lane.cursor << lane.ended << lane.filled;
    for (std::size_t i = 0; i < lane.filled; ++i) state << lane.sum[i];
    for (const CreditReceiver& each : lane.from) each.save(state);
    for (const CreditSender& each : lane.to) each.save(state);
    for (std::uint32_t number = oldest(lane); number != lane.down_next; ++number) {
      state << lane.down.extra(number);
      for (Word word : lane.down.words(number)) state << word;
    }
    if (lane.root()) continue;
    lane.from_parent.save(state);
    lane.to_parent.save(state);
    for (std::uint32_t number = lane.to_parent.acknowledged; number != lane.up_next; ++number) {
      state << lane.up.extra(number);
      for (Word word : lane.up.words(number)) state << word;
    }
  }
}

}  // namespace coppice::aggregation
