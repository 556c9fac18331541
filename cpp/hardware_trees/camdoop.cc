#include "hardware_trees/camdoop.h"

#include "hardware_trees/camdoop_frames.h"

namespace coppice::aggregation {

using namespace camdoop;

void CamdoopHop::open(const Job& job, std::span<const Endpoint> children, Endpoint parent) {
  check(job);
  Tree tree;
  tree.job = job;
  tree.number = static_cast<std::uint8_t>(setting(job, "tree", 0));
  tree.epoch = setting(job, "life", 0);
  tree.pairs = setting(job, "pairs", 0) == 1;
  const Tree* const before = trees_.find(key(job.id, tree.number));
  require(before == nullptr || before->epoch < tree.epoch, "expected a tree that is not open yet, or a later life");
  trees_.expect_room(job.slots - (before == nullptr ? 0 : before->reserved));
  tree.id = job.id;
  tree.parties = JobParties(children, parent);
  const std::size_t words = most_words(job), count = children.size();
  tree.heard.resize(count);
  tree.from.assign(count, CreditReceiver(job.slots, words));
  tree.to.resize(count);
  tree.down = FrameRing(job.slots, words);
  if (!tree.root()) {
    tree.from_parent = CreditReceiver(job.slots, words);
    tree.up = FrameRing(job.slots, words);
  }
  tree.cursor.resize(count);
  tree.ended.resize(count);
  tree.sum.resize(words);
  tree.frame = FrameBuffer(static_cast<int>(words) + 1);
  tree.words.resize(words + 1);
  const std::uint64_t at = key(job.id, tree.number);
  trees_.close(at);
  trees_.open(at, std::move(tree), job.slots);
}

void CamdoopHop::close(std::uint32_t job) {
  for (int tree = 0; tree < kMostTrees; ++tree) trees_.close(key(job, static_cast<std::uint8_t>(tree)));
}

std::int64_t CamdoopHop::slots_in_use() const {
  std::int64_t used = 0;
  for (const auto& [_, tree] : trees_) {
    if (!tree.started) continue;
    for (const CreditReceiver& each : tree.from) used += after(each.expected, each.used);
    used += after(tree.from_parent.expected, tree.from_parent.used);
    // What was passed up and has not come back; copies that only wait for their acknowledgement do not count.
    if (!tree.root() && !tree.pairs) used += after(tree.up_next, tree.down_next);
  }
  return used;
}

std::vector<int> CamdoopHop::waits_for(std::uint32_t job) const {
  std::vector<int> missing;
  for (const auto& [_, tree] : trees_) {
    if (tree.job.id != job) continue;
    for (std::size_t child = 0; child < tree.parties.size(); ++child) {
      const bool there = tree.started ? tree.from[child].ready() : tree.heard[child] != 0;
      if (!there) missing.push_back(static_cast<int>(child));
    }
    if (!missing.empty() && missing.size() < tree.parties.size()) return missing;
    missing.clear();
  }
  return missing;
}

void CamdoopHop::receive(Endpoint from, Bytes packet, Time now, Outbox& out) {
  count(Count::received);
  FrameHead head;
  if (!FrameHead::read(packet, head) || head.words == 0) return count(Count::malformed);
  const auto [found, child] = trees_.sender(key(head.job, head.tree), from);
  if (found == nullptr) return count(Count::unknown_sender);
  Tree& tree = *found;
  const bool up = head.type == kValues || head.type == kHello;
  const bool down = head.type == kSums || head.type == kStart || head.type == kRebuilt;
  if ((child >= 0 ? down : up) || !well_formed(head, packet, tree.job, tree.pairs)) return count(Count::malformed);
  const std::uint32_t epoch = load<std::uint32_t>(packet.data() + FrameHead::kBytes);
  if (epoch != tree.epoch || head.type == kRebuilt) {
    count(Count::bad_epoch);
    if (epoch < tree.epoch && child >= 0) put(tree, kRebuilt, 0, 0, {}, from, out);
    // A child that has all sums keeps silent until it is told, and others may miss some.
    if (epoch == tree.epoch && !tree.started) tell_unheard(tree, out);
    return;
  }
  const bool was_busy = busy(tree);
  bool news = false;
  if (head.type == kHello) {
    hello(tree, static_cast<std::size_t>(child), head.number, out);
  } else if (head.type == kStart) {
    if (tree.started || !tree.all_heard()) return count(tree.started ? Count::duplicate : Count::future);
    start(tree, head.number, out);
    news = true;
  } else if (!tree.started) {
    return count(Count::future);
  } else if (head.type == kAcknowledged) {
    CreditSender& sender = child >= 0 ? tree.to[static_cast<std::size_t>(child)] : tree.to_parent;
    news = sender.take(head.number, head.extra, child >= 0 ? tree.down_next : tree.up_next);
    if (!news) count(Count::stale);
  } else {
    CreditReceiver& receiver = child >= 0 ? tree.from[static_cast<std::size_t>(child)] : tree.from_parent;
    tree.words.resize(head.words);
    load_words(tree.words.data(), packet);
    count(receiver.take(head.number, head.extra, std::span<const Word>(tree.words).subspan(1)));
    proceed(tree, out, &receiver);
    acknowledge(tree, receiver, from, out);
  }
  if (news) proceed(tree, out, nullptr);
  if (news || (!was_busy && busy(tree))) tree.timer = later(now, tree.job.timeout);
}

void CamdoopHop::hello(Tree& tree, std::size_t child, std::uint32_t number, Outbox& out) {
  if (tree.started) {
    count(Count::answered);
    put(tree, kStart, tree.first, 0, {}, tree.parties[child], out);
    acknowledge(tree, tree.from[child], tree.parties[child], out);
    return;
  }
  if (tree.heard[child]) return count(Count::duplicate);
  if (!tree.any_heard() || after(number, tree.first) < 0) tree.first = number;
  tree.heard[child] = 1;
  if (!tree.all_heard()) return;
  if (tree.root()) {
    start(tree, tree.first, out);
  } else {
    put(tree, kHello, tree.first, 0, {}, tree.parties.parent(), out);
  }
}

void CamdoopHop::start(Tree& tree, std::uint32_t number, Outbox& out) {
  const auto frames = static_cast<std::uint32_t>(tree.job.slots);
  tree.started = true;
  tree.first = tree.up_next = tree.down_next = number;
  tree.to_parent.start(number, frames);
  tree.from_parent.start(number);
  for (std::size_t child = 0; child < tree.parties.size(); ++child) {
    tree.from[child].start(number);
    tree.to[child].start(number, frames);
    put(tree, kStart, number, 0, {}, tree.parties[child], out);
  }
  proceed(tree, out, nullptr);
}

std::uint32_t CamdoopHop::oldest(const Tree& tree) {
  std::uint32_t least = tree.down_next;
  for (const CreditSender& each : tree.to) {
    if (after(each.acknowledged, least) < 0) least = each.acknowledged;
  }
  return least;
}

// Whether there is a place for one more of what the children's frames give.
bool CamdoopHop::room(const Tree& tree) const {
  return (tree.root() ? after(tree.down_next, oldest(tree)) : after(tree.up_next, tree.to_parent.acknowledged)) < tree.job.slots;
}

void CamdoopHop::emit(Tree& tree, std::uint32_t extra, std::span<const Word> words) {
  if (tree.root()) {
    count(Count::completed);
    tree.down.put(tree.down_next++, extra, words);
  } else {
    count(Count::forwarded);
    tree.up.put(tree.up_next++, extra, words);
  }
}

// One chunk, if all children have it.
bool CamdoopHop::add(Tree& tree) {
  for (const CreditReceiver& each : tree.from) {
    if (!each.ready()) return false;
  }
  if (!room(tree)) return false;
  for (std::size_t child = 0; child < tree.from.size(); ++child) {
    const std::span<const Word> words = tree.from[child].ring.words(tree.from[child].used);
    if (child == 0) {
      std::copy(words.begin(), words.end(), tree.sum.begin());
    } else {
      add_words(tree.job.element, tree.sum.data(), words.data(), words.size());
    }
    tree.from[child].use();
  }
  emit(tree, 0, tree.sum);
  return true;
}

// As many pairs as all children have, up to one frame.
bool CamdoopHop::merge(Tree& tree) {
  bool moved = false;
  while (true) {
    bool all_ended = true;
    std::uint32_t least = 0xffffffff;
    for (std::size_t child = 0; child < tree.from.size(); ++child) {
      CreditReceiver& from = tree.from[child];
      while (!tree.ended[child] && from.ready() && tree.cursor[child] == from.ring.words(from.used).size()) {
        tree.ended[child] = from.ring.extra(from.used) == 1;
        tree.cursor[child] = 0;
        from.use();
        moved = true;
      }
      if (tree.ended[child]) continue;
      if (!from.ready()) return moved;
      all_ended = false;
      least = std::min(least, from.ring.words(from.used)[tree.cursor[child]]);
    }
    if (all_ended || tree.filled == tree.sum.size()) {
      if (!room(tree)) return moved;
      emit(tree, all_ended, std::span<const Word>(tree.sum).first(tree.filled));
      tree.filled = 0;
      if (all_ended) std::fill(tree.ended.begin(), tree.ended.end(), std::uint8_t{0});
      return true;
    }
    bool any = false;
    for (std::size_t child = 0; child < tree.from.size(); ++child) {
      if (tree.ended[child]) continue;
      const std::span<const Word> words = tree.from[child].ring.words(tree.from[child].used);
      if (words[tree.cursor[child]] != least) continue;
      const Word value = words[tree.cursor[child] + 1];
      if (any) {
        add_words(tree.job.element, &tree.sum[tree.filled + 1], &value, 1);
      } else {
        tree.sum[tree.filled] = least;
        tree.sum[tree.filled + 1] = value;
      }
      any = true;
      tree.cursor[child] += 2;
    }
    tree.filled += 2;
    moved = true;
  }
}

// Adds, passes on and tells of room, as far as it goes; the sender of `but` is told anyway.
void CamdoopHop::proceed(Tree& tree, Outbox& out, const CreditReceiver* but) {
  bool moved = true;
  while (moved) {
    moved = tree.pairs ? merge(tree) : add(tree);
    while (!tree.root() && tree.from_parent.ready() && after(tree.down_next, oldest(tree)) < tree.job.slots) {
      const std::uint32_t number = tree.from_parent.used;
      tree.down.put(tree.down_next++, tree.from_parent.ring.extra(number), tree.from_parent.ring.words(number));
      tree.from_parent.use();
      moved = true;
    }
  }
  while (tree.to_parent.may_send(tree.up_next) && !tree.root()) {
    const std::uint32_t number = tree.to_parent.sent++;
    count(Count::sent);
    put(tree, kValues, number, tree.up.extra(number), tree.up.words(number), tree.parties.parent(), out);
  }
  for (std::size_t child = 0; child < tree.to.size(); ++child) {
    while (tree.to[child].may_send(tree.down_next)) {
      const std::uint32_t number = tree.to[child].sent++;
      count(Count::sent);
      put(tree, kSums, number, tree.down.extra(number), tree.down.words(number), tree.parties[child], out);
    }
    if (&tree.from[child] != but && tree.from[child].should_tell()) acknowledge(tree, tree.from[child], tree.parties[child], out);
  }
  if (!tree.root() && &tree.from_parent != but && tree.from_parent.should_tell()) acknowledge(tree, tree.from_parent, tree.parties.parent(), out);
}

bool CamdoopHop::busy(const Tree& tree) {
  if (!tree.started) return tree.any_heard();
  return tree.to_parent.acknowledged != tree.up_next || oldest(tree) != tree.down_next;
}

void CamdoopHop::tell_unheard(Tree& tree, Outbox& out) {
  for (std::size_t child = 0; child < tree.heard.size(); ++child) {
    if (!tree.heard[child]) put(tree, kRebuilt, 0, 0, {}, tree.parties[child], out);
  }
}

Time CamdoopHop::deadline() const {
  Time soonest = kNever;
  for (const auto& [_, tree] : trees_) {
    if (busy(tree)) soonest = std::min(soonest, tree.timer);
  }
  return soonest;
}

void CamdoopHop::wake(Time now, Outbox& out) {
  for (auto& [_, tree] : trees_) {
    if (!busy(tree) || now < tree.timer) continue;
    tree.timer = later(now, tree.job.timeout);
    if (!tree.started) {
      if (tree.all_heard()) put(tree, kHello, tree.first, 0, {}, tree.parties.parent(), out);
      tell_unheard(tree, out);
      continue;
    }
    const auto again = [&](const CreditSender& sender, std::uint8_t type, const FrameRing& ring, std::uint32_t next, Endpoint to) {
      if (sender.acknowledged == next) return;
      // Where all that was sent has arrived, one frame more: its acknowledgement tells of room.
      const std::uint32_t end = sender.acknowledged == sender.sent ? sender.sent + 1 : sender.sent;
      for (std::uint32_t number = sender.acknowledged; number != end; ++number) {
        count(Count::resent);
        put(tree, type, number, ring.extra(number), ring.words(number), to, out);
      }
    };
    if (!tree.root()) again(tree.to_parent, kValues, tree.up, tree.up_next, tree.parties.parent());
    for (std::size_t child = 0; child < tree.to.size(); ++child) {
      again(tree.to[child], kSums, tree.down, tree.down_next, tree.parties[child]);
    }
  }
}

void CamdoopHop::put(Tree& tree, std::uint8_t type, std::uint32_t number, std::uint32_t extra, std::span<const Word> words,
                     Endpoint to, Outbox& out) {
  tree.words.resize(words.size() + 1);
  tree.words[0] = tree.epoch;
  std::copy(words.begin(), words.end(), tree.words.begin() + 1);
  out.send(to, tree.frame.with({.type = type, .tree = tree.number, .job = tree.job.id, .number = number, .extra = extra}, tree.words));
}

void CamdoopHop::acknowledge(Tree& tree, CreditReceiver& receiver, Endpoint to, Outbox& out) {
  receiver.told = receiver.limit();
  put(tree, kAcknowledged, receiver.expected, receiver.told, {}, to, out);
}

void CamdoopHop::save(Time now, StateWriter& state) const {
  for (const auto& [id, tree] : trees_) {
    state << id << tree.epoch << tree.started << tree.first << tree.heard << (busy(tree) ? tree.timer - now : Time{0});
    if (!tree.started) continue;
    state << tree.up_next << tree.down_next << tree.cursor << tree.ended << tree.filled;
    for (std::size_t i = 0; i < tree.filled; ++i) state << tree.sum[i];
    for (const CreditReceiver& each : tree.from) each.save(state);
    for (const CreditSender& each : tree.to) each.save(state);
    for (std::uint32_t number = oldest(tree); number != tree.down_next; ++number) {
      state << tree.down.extra(number);
      for (Word word : tree.down.words(number)) state << word;
    }
    if (tree.root()) continue;
    tree.from_parent.save(state);
    tree.to_parent.save(state);
    for (std::uint32_t number = tree.to_parent.acknowledged; number != tree.up_next; ++number) {
      state << tree.up.extra(number);
      for (Word word : tree.up.words(number)) state << word;
    }
  }
}

}  // namespace coppice::aggregation
