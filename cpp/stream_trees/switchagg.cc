#include "stream_trees/switchagg.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "aggregation/bytes.h"
#include "aggregation/state.h"

namespace coppice::aggregation {

namespace switchagg {

namespace {

constexpr std::size_t kMostBytes = 65'000;
constexpr double kMostEntries = 1 << 24;

int whole(const Job& job, const std::string& name, double otherwise, double least, double most) {
  const double found = job.setting(name, otherwise);
  if (!(found >= least && found <= most) || found != std::floor(found)) {
    throw std::invalid_argument("expected `" + name + "` to be a whole number from " +
                                std::to_string(static_cast<long long>(least)) + " to " +
                                std::to_string(static_cast<long long>(most)) + ", found " + std::to_string(found));
  }
  return static_cast<int>(found);
}

// The engine for keys of a length: up to 4, 8, 16, 32, 64 bytes.
int engine_of(std::size_t length) {
  return std::max(0, static_cast<int>(std::bit_width(length - 1)) - 2);
}

}  // namespace

Options::Options(const Job& job) {
  operation = static_cast<Operation>(whole(job, "operation", 0, 0, kOperations - 1));
  lanes = whole(job, "lanes", job.values, 1, job.values);
  key_bytes = whole(job, "key_bytes", 4, 4, 64);
  engines = engine_of(static_cast<std::size_t>(key_bytes)) + 1;
  if (job.slots < 1) throw std::invalid_argument("expected at least 1 slot, found " + std::to_string(job.slots));
  if (job.window < 1) throw std::invalid_argument("expected a window of at least 1, found " + std::to_string(job.window));
  window = std::min(job.window, kMostWindow);
  front = job.slots;
  back = whole(job, "back", std::min(16.0 * job.slots, kMostEntries), 0, kMostEntries);
  most_pairs = std::min(job.values / lanes, 65'535);
  round = whole(job, "round", std::max(back, 1), 1, 1 << 30);
  const double start = job.setting("sequence", 0);
  first = start >= 0 && start < 4294967296.0 ? static_cast<std::uint32_t>(start) : 0;
  const std::size_t pair = 1 + static_cast<std::size_t>(key_bytes) + 4 * static_cast<std::size_t>(lanes);
  most_bytes = kHeadBytes + static_cast<std::size_t>(most_pairs) * pair;
  if (most_bytes > kMostBytes) {
    throw std::invalid_argument("expected packets of at most " + std::to_string(kMostBytes) + " bytes, found " +
                                std::to_string(most_bytes) + ": choose fewer values");
  }
}

Head read_head(const std::uint8_t* packet) {
  return {packet[0], packet[1], packet[2], packet[3], load<std::uint32_t>(packet + 4), load<std::uint32_t>(packet + 8),
          load<std::uint32_t>(packet + 12), load<std::uint16_t>(packet + 16), load<std::uint16_t>(packet + 18)};
}

void write_head(std::uint8_t* packet, const Head& head) {
  packet[0] = head.kind;
  packet[1] = head.operation;
  packet[2] = head.flags;
  packet[3] = head.zero;
  store(packet + 4, head.tree);
  store(packet + 8, head.sequence);
  store(packet + 12, head.acknowledged);
  store(packet + 16, head.round);
  store(packet + 18, head.count);
}

bool valid(const Head& head, Bytes packet, const Options& options) {
  if (head.operation != static_cast<std::uint8_t>(options.operation) || head.flags > 1 || head.zero != 0) return false;
  if (head.count > options.most_pairs || (head.count == 0 && !head.end())) return false;
  const std::size_t values = 4 * static_cast<std::size_t>(options.lanes);
  std::size_t at = kHeadBytes;
  for (int pair = 0; pair < head.count; ++pair) {
    if (at >= packet.size()) return false;
    const std::size_t length = packet[at];
    if (length == 0 || length > static_cast<std::size_t>(options.key_bytes)) return false;
    at += 1 + length + values;
  }
  return at == packet.size();
}

void send_acknowledgement(Endpoint to, const AcknowledgementFields& fields, Outbox& out) {
  std::array<std::uint8_t, kAcknowledgementBytes> packet{kAcknowledgement, static_cast<std::uint8_t>(fields.again ? 1 : 0)};
  store(packet.data() + 2, fields.awaited);
  store(packet.data() + 4, fields.tree);
  store(packet.data() + 8, fields.next);
  store(packet.data() + 12, fields.beyond);
  out.send(to, packet);
}

AcknowledgementFields read_acknowledgement(const std::uint8_t* packet) {
  return {packet[1] != 0, load<std::uint16_t>(packet + 2), load<std::uint32_t>(packet + 4),
          load<std::uint32_t>(packet + 8), load<std::uint64_t>(packet + 12)};
}

}  // namespace switchagg

using namespace switchagg;

SwitchAgg::Tree::Tree(const Job& job, const Options& with, JobParties of)
    : ServedJob{job.id, std::move(of)}, options(with), from_parent(with.first), answered(with.first),
      up(parties.root() ? std::vector<Endpoint>{} : std::vector<Endpoint>{parties.parent()}, with.window,
         parties.root() ? 0 : with.most_bytes, with.first, job.timeout, job.give_up_timeout),
      down({parties.children().begin(), parties.children().end()}, with.window, with.most_bytes, with.first, job.timeout, job.give_up_timeout),
      filling(with.most_bytes) {
  for (Endpoint each : parties.children()) children.push_back({.at = each, .window = ReceiveWindow(with.first)});
  for (int engine = 0; engine < with.engines; ++engine) {
    engines.emplace_back(with.front, with.back, std::min(4 << engine, with.key_bytes), with.lanes, with.operation,
                         job.element);
  }
}

void SwitchAgg::open(const Job& job, std::span<const Endpoint> children, Endpoint parent) {
  const Options options(job);
  const std::int64_t slots = std::int64_t{options.engines} * options.front;
  trees_.expect_new(job.id, slots);
  trees_.open(job.id, Tree(job, options, JobParties(children, parent)), slots);
}

std::int64_t SwitchAgg::slots_in_use() const {
  return trees_.total([](const Tree& tree) {
    std::int64_t found = 0;
    for (const PairTable& engine : tree.engines) found += engine.in_use();
    return found;
  });
}

std::vector<int> SwitchAgg::waits_for(std::uint32_t job) const {
  std::vector<int> found;
  const Tree* const tree = trees_.find(job);
  if (tree == nullptr) return found;
  const std::vector<Child>& children = tree->children;
  bool under_way = tree->complete != 0;
  for (const PairTable& engine : tree->engines) under_way = under_way || engine.in_use() != 0;
  for (std::size_t child = 0; under_way && child < children.size(); ++child) {
    if (!children[child].complete) found.push_back(static_cast<int>(child));
  }
  return found;
}

void SwitchAgg::receive(Endpoint from, Bytes packet, Time now, Outbox& out) {
  count(Count::received);
  static_assert(kHeadBytes == kAcknowledgementBytes);
  if (packet.size() < kHeadBytes || packet[0] < kUp || packet[0] > kAcknowledgement) return count(Count::malformed);
  Tree* const tree = trees_.find(load<std::uint32_t>(packet.data() + 4));
  if (tree == nullptr) return count(Count::out_of_range);
  if (packet[0] == kAcknowledgement) return acknowledged(*tree, from, packet, now, out);
  if (!valid(read_head(packet.data()), packet, tree->options)) return count(Count::malformed);
  const int child = tree->parties.find(from);
  if (packet[0] == kUp && child >= 0) return from_child(*tree, static_cast<std::size_t>(child), packet, now, out);
  if (packet[0] == kDown && child == JobParties::kParent) return from_parent(*tree, packet, now, out);
  count(Count::unknown_sender);
}

void SwitchAgg::from_child(Tree& tree, std::size_t index, Bytes packet, Time now, Outbox& out) {
  Child& child = tree.children[index];
  const Head head = read_head(packet.data());
  const auto heard = tree.down.acknowledge(index, head.acknowledged, 0, false, now, out, counters_);
  const Arrival arrival = child.window.look(head.sequence);
  const int later = static_cast<std::int16_t>(head.round - tree.round);
  if (heard == Acknowledged::impossible) {
    count(Count::out_of_range);
  } else if (arrival == Arrival::duplicate) {
    count(Count::duplicate);
    answer_child(tree, child, false, out);
  } else if (arrival == Arrival::future) {
    count(Count::future);
  } else if (later != 0) {
    count(later > 0 ? Count::future : Count::stale);
    if (later > 0) child.early = true;
  } else if (child.ending && (head.end() || distance(head.sequence, child.end) > 0)) {
    count(Count::out_of_range);
  } else if (!tree.top().room()) {
    count(Count::over_quota);
    child.refused = true;
  } else {
    child.window.take(head.sequence);
    for_pairs(packet, head.count, tree.options.lanes, [&](Bytes key, const std::uint8_t* values) {
      tree.engines[static_cast<std::size_t>(engine_of(key.size()))].add(
          key, values, counters_, [&](const Pair& pair) { emit(tree, pair, now, out); });
    });
    if (head.end()) {
      child.ending = true;
      child.end = head.sequence;
    }
    if (child.ending && !child.complete && distance(child.window.next(), child.end) > 0) {
      child.complete = true;
      ++tree.complete;
    }
    answer_child(tree, child, false, out);
  }
  proceed(tree, now, out);
}

void SwitchAgg::from_parent(Tree& tree, Bytes packet, Time now, Outbox& out) {
  const Head head = read_head(packet.data());
  const Arrival arrival = tree.from_parent.look(head.sequence);
  if (arrival == Arrival::future) return count(Count::future);
  if (arrival == Arrival::duplicate) {
    count(Count::duplicate);
    answer_parent(tree, out);
  } else if (!tree.down.fits(head.sequence)) {
    count(Count::over_quota);
  } else {
    tree.from_parent.take(head.sequence);
    std::copy(packet.begin(), packet.end(), tree.down.place(head.sequence));
    tree.down.send(head.sequence, packet.size(), now, out, counters_);
  }
}

// What all children have: so the parent never sends more than the window that the children take.
void SwitchAgg::answer_parent(Tree& tree, Outbox& out) {
  tree.answered = tree.down.base();
  send_acknowledgement(tree.parties.parent(), {false, 0, tree.id, tree.answered, 0}, out);
}

void SwitchAgg::acknowledged(Tree& tree, Endpoint from, Bytes packet, Time now, Outbox& out) {
  if (packet.size() != kAcknowledgementBytes || packet[1] > 1) return count(Count::malformed);
  const AcknowledgementFields fields = read_acknowledgement(packet.data());
  const int child = tree.parties.find(from);
  if (child == JobParties::kUnknown) return count(Count::unknown_sender);
  SendWindow& stream = child >= 0 ? tree.down : tree.up;
  if (stream.acknowledge(static_cast<std::size_t>(std::max(child, 0)), fields.next, fields.beyond, fields.again, now, out, counters_) ==
      Acknowledged::impossible) {
    count(Count::out_of_range);
  }
  proceed(tree, now, out);
}

void SwitchAgg::answer_child(Tree& tree, Child& child, bool again, Outbox& out) {
  const auto slow = std::find_if(tree.children.begin(), tree.children.end(), [](const Child& each) { return !each.complete; });
  const auto awaited = slow == tree.children.end() ? 0 : slow - tree.children.begin() + 1;
  send_acknowledgement(child.at, {again, static_cast<std::uint16_t>(awaited), tree.id, child.window.next(),
                                  child.window.beyond()}, out);
}

// Adds a pair to the packet that goes up, and sends it once it is full; there must be room for one.
void SwitchAgg::emit(Tree& tree, const Pair& pair, Time now, Outbox& out) {
  std::uint8_t* at = tree.filling.data() + tree.filled;
  const auto lanes = static_cast<std::size_t>(tree.options.lanes);
  *at = static_cast<std::uint8_t>(pair.key.size());
  std::copy(pair.key.begin(), pair.key.end(), at + 1);
  put(at + 1 + pair.key.size(), pair.values, lanes);
  tree.filled += 1 + pair.key.size() + 4 * lanes;
  if (++tree.pairs == tree.options.most_pairs) send_filled(tree, false, now, out);
}

void SwitchAgg::send_filled(Tree& tree, bool end, Time now, Outbox& out) {
  SendWindow& stream = tree.top();
  const bool root = tree.parties.root();
  write_head(tree.filling.data(),
             {root ? kDown : kUp, static_cast<std::uint8_t>(tree.options.operation), static_cast<std::uint8_t>(end ? 1 : 0), 0,
              tree.id, stream.next(), root ? 0 : tree.down.base(), tree.round, static_cast<std::uint16_t>(tree.pairs)});
  std::copy_n(tree.filling.begin(), tree.filled, stream.place(stream.next()));
  stream.send(stream.next(), tree.filled, now, out, counters_);
  tree.filled = kHeadBytes;
  tree.pairs = 0;
}

// Empties the memories as far as there is room, and asks again for what was refused.
void SwitchAgg::proceed(Tree& tree, Time now, Outbox& out) {
  while (tree.complete == static_cast<int>(tree.children.size()) && tree.top().room()) {
    if (tree.draining < tree.engines.size()) {
      const auto up = [&](const Pair& pair) { emit(tree, pair, now, out); };
      if (!tree.engines[tree.draining].drain(counters_, up)) ++tree.draining;
      continue;
    }
    send_filled(tree, true, now, out);
    count(Count::completed);
    ++tree.round;
    tree.complete = 0;
    tree.draining = 0;
    for (Child& each : tree.children) {
      each.refused = each.refused || each.early;
      each.ending = each.complete = each.early = false;
    }
  }
  // Half of a window has to be free, and one child is asked at a time: all that it sends again may need a place.
  const auto half = static_cast<std::uint32_t>(tree.options.window / 2);
  if (tree.complete < static_cast<int>(tree.children.size()) && tree.top().fits(tree.top().next() + half)) {
    for (std::size_t step = 1; step <= tree.children.size(); ++step) {
      const std::size_t which = (tree.asked + step) % tree.children.size();
      Child& child = tree.children[which];
      if (!child.refused) continue;
      child.refused = false;
      tree.asked = which;
      answer_child(tree, child, true, out);
      break;
    }
  }
  if (!tree.parties.root() && tree.down.base() != tree.answered) answer_parent(tree, out);
}

Time SwitchAgg::deadline() const {
  Time first = kNever;
  for (const auto& [id, tree] : trees_) first = std::min({first, tree.up.deadline(), tree.down.deadline()});
  return first;
}

void SwitchAgg::wake(Time now, Outbox& out) {
  for (auto& [id, tree] : trees_) {
    tree.up.wake(now, out, counters_);
    tree.down.wake(now, out, counters_);
  }
}

void SwitchAgg::save(Time now, StateWriter& state) const {
  for (const auto& [id, tree] : trees_) {
    state << id << tree.round << tree.draining << tree.answered << tree.asked << tree.pairs;
    state << Bytes(tree.filling).first(tree.filled).subspan(kHeadBytes);
    for (const Child& each : tree.children) {
      each.window.save(state);
      state << each.ending << each.complete << each.refused << each.early << (each.ending ? each.end : 0);
    }
    tree.from_parent.save(state);
    tree.up.save(now, state);
    tree.down.save(now, state);
    for (const PairTable& engine : tree.engines) engine.save(state);
  }
}

}  // namespace coppice::aggregation
