#include "hardware_trees/sharp.h"

#include <algorithm>

#include "shared_memory/float16.h"

namespace coppice::aggregation {

namespace {

enum Type : std::uint8_t { kValues = 1, kSum = 2, kRequest = 3, kGrant = 4 };
constexpr std::uint32_t kOfStream = 1;  // `extra` of values

bool possible(std::uint8_t type, std::uint32_t extra) {
  return type == kRequest || type == kGrant ? extra > 0 && extra < 1U << 30 : extra <= kOfStream;
}

std::uint32_t first_of(const Job& job) { return static_cast<std::uint32_t>(job.setting("first", 0)); }

int whole(const Job& job, const char* name, double otherwise, double most, const char* problem) {
  const double given = job.setting(name, otherwise);
  require(given >= 0 && given <= most && given == static_cast<double>(static_cast<std::int64_t>(given)), problem);
  return static_cast<int>(given);
}

void check(const Job& job) {
  check_job(job);
  whole(job, "tree", 0, 63, "expected a tree of 0 to 63");
  whole(job, "streams", 1, 64, "expected 0 to 64 streams at a time");
  whole(job, "low_latency", 4096, 1 << 30, "expected 0 to 2^30 bytes of a message that is not streamed");
  const double first = job.setting("first", 0);
  require(first >= 0 && first < 0x1p32, "expected a first number of 0 to 2^32 - 1");
  require(job.window <= job.slots, "expected a window of at most the job's slots");
  SharpValues{job};
}

float widened(int half, std::uint16_t bits) {
  return half == 1 ? shm::widen(shm::Float16{bits}) : shm::widen(shm::BFloat16{bits});
}

std::uint16_t narrowed(int half, float value) {
  return half == 1 ? shm::narrow_float16(value).bits : shm::narrow_bfloat16(value).bits;
}

template <class T>
void combine_as(int operation, Word* sum, const Word* more, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const T a = std::bit_cast<T>(sum[i]), b = std::bit_cast<T>(more[i]);
    sum[i] = std::bit_cast<Word>(operation == 1 ? (b < a ? b : a) : (a < b ? b : a));
  }
}

}  // namespace

SharpValues::SharpValues(const Job& job)
    : values_(static_cast<std::size_t>(job.values)), element_(job.element),
      operation_(whole(job, "operation", 0, 2, "expected the operation 0 (sum), 1 (minimum) or 2 (maximum)")),
      half_(whole(job, "half", 0, 2, "expected half 0 (none), 1 (float16) or 2 (bfloat16)")) {
  require(half_ == 0 || element_ == Element::float32, "expected float32 where values travel as halves");
}

void SharpValues::pack(const Word* values, std::size_t count, Word* words) const {
  if (half_ == 0) {
    std::copy_n(values, count, words);
    std::fill(words + count, words + values_, Word{0});
    return;
  }
  std::fill_n(words, this->words(), Word{0});
  for (std::size_t i = 0; i < count; ++i) {
    words[i / 2] |= static_cast<Word>(narrowed(half_, std::bit_cast<float>(values[i]))) << (i % 2 ? 0 : 16);
  }
}

void SharpValues::unpack(const Word* words, Word* values, std::size_t count) const {
  if (half_ == 0) {
    std::copy_n(words, count, values);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = std::bit_cast<Word>(widened(half_, static_cast<std::uint16_t>(words[i / 2] >> (i % 2 ? 0 : 16))));
  }
}

void SharpValues::combine(Word* sum, const Word* more) const {
  if (operation_ == 0) {
    add_words(element_, sum, more, values_);
  } else if (element_ == Element::int32) {
    combine_as<std::int32_t>(operation_, sum, more, values_);
  } else {
    combine_as<float>(operation_, sum, more, values_);
  }
}

void SharpSwitch::open(const Job& job, std::span<const Endpoint> children, Endpoint parent) {
  check(job);
  groups_.expect_new(job.id, job.window);
  Group group;
  group.job = job;
  group.tree = static_cast<int>(job.setting("tree", 0));
  group.most_streams = static_cast<int>(job.setting("streams", 1));
  group.values = SharpValues(job);
  group.parties = JobParties(children, parent);
  const std::size_t count = std::bit_ceil(2 * static_cast<std::size_t>(job.window)), words = group.values.words();
  group.buffers.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    // What would have been there a round before the first frames.
    const std::uint32_t number = first_of(job) + static_cast<std::uint32_t>(i);
    group.buffers[group.place(number)].number = number - static_cast<std::uint32_t>(count);
  }
  group.seen.resize(count * children.size());
  group.given.resize(count * children.size() * words);
  group.sums.resize(count * words);
  group.sum.resize(group.values.values());
  group.more.resize(group.values.values());
  group.frame = FrameBuffer(static_cast<int>(words));
  groups_.open(job.id, std::move(group), job.window);
}

void SharpSwitch::close(std::uint32_t job) {
  if (Group* const group = groups_.find(job)) leave_tree(*group);
  groups_.close(job);
}

std::int64_t SharpSwitch::slots_in_use() const {
  return groups_.total([](const Group& group) {
    return std::ranges::count_if(group.buffers, [](const Buffer& each) { return each.stage != unused && each.stage != summed; });
  });
}

// Who has not contributed to the oldest sum that is open.
std::vector<int> SharpSwitch::waits_for(std::uint32_t job) const {
  std::vector<int> missing;
  const Group* const group = groups_.find(job);
  if (group == nullptr) return missing;
  const Buffer* oldest = nullptr;
  for (const Buffer& buffer : group->buffers) {
    if (buffer.stage == open_ && (oldest == nullptr || after(buffer.number, oldest->number) < 0)) oldest = &buffer;
  }
  if (oldest == nullptr) return missing;
  const std::size_t children = group->parties.size(), place = group->place(oldest->number);
  for (std::size_t child = 0; child < children; ++child) {
    if (!group->seen[place * children + child]) missing.push_back(static_cast<int>(child));
  }
  return missing;
}

void SharpSwitch::receive(Endpoint from, Bytes packet, Time /*now*/, Outbox& out) {
  count(Count::received);
  FrameHead head;
  if (!FrameHead::read(packet, head)) return count(Count::malformed);
  const auto [group, child] = groups_.sender(head.job, from);
  if (group == nullptr) return count(Count::unknown_sender);
  const bool up = head.type == kValues || head.type == kRequest, down = head.type == kSum || head.type == kGrant;
  const bool carries = head.type == kValues || head.type == kSum;
  if ((child >= 0 ? !up : !down) || head.tree != 0 || !possible(head.type, head.extra) ||
             head.words != (carries ? group->values.words() : 0)) {
    return count(Count::malformed);
  }
  if (child < 0) return from_parent(*group, head, packet, out);
  from_child(*group, static_cast<std::size_t>(child), head, packet, out);
}

void SharpSwitch::from_child(Group& group, std::size_t child, const FrameHead& head, Bytes packet, Outbox& out) {
  const std::size_t place = group.place(head.number);
  Buffer& buffer = group.buffers[place];
  const std::int32_t step = after(head.number, buffer.number);
  if (step < 0) return count(Count::stale);
  std::uint8_t* seen = group.seen.data() + place * group.parties.size();
  if (step > 0) {
    if (step != static_cast<std::int32_t>(group.buffers.size()) || (buffer.stage != unused && buffer.stage != summed)) {
      return count(Count::future);
    }
    if (group.parties.root() && head.type == kValues && head.extra == kOfStream && !group.streams) {
      return count(Count::over_quota);
    }
    buffer = {head.number, head.extra, head.type, open_, static_cast<int>(group.parties.size())};
    std::fill_n(seen, group.parties.size(), std::uint8_t{0});
  } else if (buffer.stage == unused) {
    return count(Count::stale);
  } else if (head.type != buffer.type || head.extra != buffer.extra) {
    return count(Count::malformed);
  }
  if (seen[child]) {
    if (buffer.stage == summed) {
      count(Count::answered);
      send(group, place, true, group.parties.one(static_cast<int>(child)), out);
      return;
    }
    count(Count::duplicate);
    if (buffer.stage == waits) serve_tree(group.tree, out);  // whoever had it may have been closed
    if (buffer.stage != passed_up) return;
    count(Count::resent);
    send(group, place, false, group.parties.above(), out);
    return;
  }
  count(Count::aggregated);
  seen[child] = 1;
  if (head.type == kValues) load_words(group.given_by(place, child), packet);
  if (--buffer.missing == 0) complete(group, place, out);
}

void SharpSwitch::from_parent(Group& group, const FrameHead& head, Bytes packet, Outbox& out) {
  const std::size_t place = group.place(head.number);
  Buffer& buffer = group.buffers[place];
  const std::int32_t step = after(head.number, buffer.number);
  if (step != 0 || buffer.stage == unused) {
    count(step > 0 ? Count::future : Count::stale);
  } else if (buffer.stage == summed) {
    count(Count::duplicate);
  } else if (head.type != buffer.type + 1 || head.extra != buffer.extra || buffer.stage != passed_up) {
    count(Count::malformed);
  } else {
    if (head.type == kSum) load_words(group.sums.data() + place * group.values.words(), packet);
    finish(group, place, out);
  }
}

// All children have contributed.
void SharpSwitch::complete(Group& group, std::size_t place, Outbox& out) {
  Buffer& buffer = group.buffers[place];
  if (buffer.type == kValues) {
    const SharpValues& values = group.values;
    values.unpack(group.given_by(place, 0), group.sum.data(), values.values());
    for (std::size_t child = 1; child < group.parties.size(); ++child) {
      values.unpack(group.given_by(place, child), group.more.data(), values.values());
      values.combine(group.sum.data(), group.more.data());
    }
    values.pack(group.sum.data(), values.values(), group.sums.data() + place * values.words());
  }
  if (!group.parties.root()) {
    count(Count::forwarded);
    buffer.stage = passed_up;
    send(group, place, false, group.parties.above(), out);
    return;
  }
  if (buffer.type == kRequest && !(trees_[group.tree].waiting.empty() && take_tree(group, buffer))) {
    buffer.stage = waits;
    trees_[group.tree].waiting.push_back(group.job.id);
    return;
  }
  finish(group, place, out);
}

// The sum, or the tree, is there.
void SharpSwitch::finish(Group& group, std::size_t place, Outbox& out) {
  count(Count::completed);
  Buffer& buffer = group.buffers[place];
  buffer.stage = summed;
  send(group, place, true, group.parties.children(), out);
  if (!group.streams || buffer.type != kValues || --group.to_stream > 0) return;
  leave_tree(group);
  serve_tree(group.tree, out);
}

bool SharpSwitch::take_tree(Group& group, const Buffer& request) {
  Tree& tree = trees_[group.tree];
  if (group.streams || tree.streaming >= group.most_streams) return false;
  ++tree.streaming;
  group.streams = true;
  group.to_stream = request.extra;
  return true;
}

void SharpSwitch::leave_tree(Group& group) {
  const auto found = trees_.find(group.tree);
  if (found == trees_.end()) return;
  if (group.streams) --found->second.streaming;
  group.streams = false;
  std::erase(found->second.waiting, group.job.id);
}

// Lets those who wait for the tree have it, in their order.
void SharpSwitch::serve_tree(int number, Outbox& out) {
  Tree& tree = trees_[number];
  while (!tree.waiting.empty()) {
    Group& next = groups_.at(tree.waiting.front());
    const auto request = std::find_if(next.buffers.begin(), next.buffers.end(),
                                      [](const Buffer& buffer) { return buffer.stage == waits; });
    if (!take_tree(next, *request)) return;
    tree.waiting.pop_front();
    finish(next, static_cast<std::size_t>(request - next.buffers.begin()), out);
  }
}

void SharpSwitch::send(Group& group, std::size_t place, bool down, std::span<const Endpoint> to, Outbox& out) {
  const Buffer& buffer = group.buffers[place];
  const FrameHead head{.type = static_cast<std::uint8_t>(buffer.type + down), .job = group.job.id,
                       .number = buffer.number, .extra = buffer.extra};
  const std::size_t words = buffer.type == kValues ? group.values.words() : 0;
  out.send(to, group.frame.with(head, std::span<const Word>(group.sums.data() + place * group.values.words(), words)));
}

void SharpSwitch::save(Time /*now*/, StateWriter& state) const {
  for (const auto& [id, group] : groups_) {
    state << id << group.streams << group.to_stream;
    const std::size_t words = group.values.words(), children = group.parties.size();
    for (std::size_t place = 0; place < group.buffers.size(); ++place) {
      const Buffer& buffer = group.buffers[place];
      state << buffer.number << buffer.extra << buffer.type << buffer.stage;
      if (buffer.stage == unused) continue;
      for (std::size_t child = 0; child < children; ++child) {
        state << group.seen[place * children + child];
        if (buffer.stage != open_ || !group.seen[place * children + child]) continue;
        for (std::size_t i = 0; i < words; ++i) state << group.given[(place * children + child) * words + i];
      }
      for (std::size_t i = 0; buffer.stage != open_ && i < words; ++i) state << group.sums[place * words + i];
    }
  }
  for (const auto& [tree, now] : trees_) {
    state << tree << now.streaming;
    for (std::uint32_t job : now.waiting) state << job;
  }
}

SharpWorker::SharpWorker(const Job& job, int index, Endpoint above)
    : WindowWorker(job, index, above, first_of(job)), values_(job), words_(values_.words()),
      frame_(static_cast<int>(values_.words())) {
  check(job);
}

void SharpWorker::begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) {
  require(done(), "expected the all-reduce before to be done");
  const bool streams = static_cast<double>(values_.bytes(count)) > job_.setting("low_latency", 4096);
  require(!streams || job_.setting("streams", 1) > 0, "expected a message that needs no streaming: fall back");
  input_ = static_cast<const Word*>(input);
  output_ = static_cast<Word*>(output);
  count_ = count;
  streams_ = streams;
  start((count + values_.values() - 1) / values_.values() + streams, now, out);
}

void SharpWorker::write(std::uint32_t number, Outbox& out) {
  if (streams_ && number == first_) {
    out.send(above_, frame_.with({.type = kRequest, .job = job_.id, .number = number, .extra = end_ - first_ - 1}));
    return;
  }
  const std::size_t at = (static_cast<std::size_t>(number - first_) - streams_) * values_.values();
  values_.pack(input_ + at, std::min(values_.values(), count_ - at), words_.data());
  out.send(above_, frame_.with({.type = kValues, .job = job_.id, .number = number, .extra = streams_}, words_));
}

void SharpWorker::receive(Endpoint from, Bytes packet, Time now, Outbox& out) {
  FrameHead head;
  if (!read(from, packet, head)) return;
  if ((head.type != kSum && head.type != kGrant) || head.tree != 0 || !possible(head.type, head.extra) ||
      head.words != (head.type == kSum ? words_.size() : 0)) {
    count(Count::malformed);
  } else if (after(head.number, base_) >= 0 && after(head.number, sent_) < 0 &&
             (head.type == kGrant) != (streams_ && head.number == first_)) {
    count(Count::malformed);
  } else if (awaited(head.number)) {
    if (head.type == kSum) {
      load_words(words_.data(), packet);
      const std::size_t at = (static_cast<std::size_t>(head.number - first_) - streams_) * values_.values();
      values_.unpack(words_.data(), output_ + at, std::min(values_.values(), count_ - at));
    }
    take(head.number, now, out);
  }
}

}  // namespace coppice::aggregation
