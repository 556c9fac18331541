#include "aggregation/sharp.h"

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
  require(groups_.count(job.id) == 0, "expected a job that is not open yet");
  require(job.window <= free_slots_, "expected a group whose window needs no more slots than are left: fall back");
  Group group;
  group.job = job;
  group.tree = static_cast<int>(job.setting("tree", 0));
  group.most_streams = static_cast<int>(job.setting("streams", 1));
  group.values = SharpValues(job);
  group.children = Children(children, parent);
  group.parent = parent;
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
  groups_.emplace(job.id, std::move(group));
  free_slots_ -= job.window;
}

void SharpSwitch::close(std::uint32_t job) {
  const auto found = groups_.find(job);
  if (found == groups_.end()) return;
  free_slots_ += found->second.job.window;
  leave_tree(found->second);
  groups_.erase(found);
}

std::int64_t SharpSwitch::slots_in_use() const {
  std::int64_t used = 0;
  for (const auto& [_, group] : groups_) {
    for (const Buffer& buffer : group.buffers) used += buffer.stage != unused && buffer.stage != summed;
  }
  return used;
}

// Who has not contributed to the oldest sum that is open.
std::vector<int> SharpSwitch::waits_for(std::uint32_t job) const {
  std::vector<int> missing;
  const auto found = groups_.find(job);
  if (found == groups_.end()) return missing;
  const Group& group = found->second;
  const Buffer* oldest = nullptr;
  for (const Buffer& buffer : group.buffers) {
    if (buffer.stage == open_ && (oldest == nullptr || after(buffer.number, oldest->number) < 0)) oldest = &buffer;
  }
  if (oldest == nullptr) return missing;
  const std::size_t children = group.children.size(), place = group.place(oldest->number);
  for (std::size_t child = 0; child < children; ++child) {
    if (!group.seen[place * children + child]) missing.push_back(static_cast<int>(child));
  }
  return missing;
}

void SharpSwitch::receive(Endpoint from, Bytes packet, Time /*now*/, Outbox& out) {
  ++counters_[Count::received];
  FrameHead head;
  if (!FrameHead::read(packet, head)) {
    ++counters_[Count::malformed];
    return;
  }
  const auto found = groups_.find(head.job);
  if (found == groups_.end()) {
    ++counters_[Count::stranger];
    return;
  }
  Group& group = found->second;
  const int child = group.children.find(from);
  const bool up = head.type == kValues || head.type == kRequest, down = head.type == kSum || head.type == kGrant;
  const bool carries = head.type == kValues || head.type == kSum;
  if (child < 0 && (from != group.parent || from == kNobody)) {
    ++counters_[Count::stranger];
  } else if ((child >= 0 ? !up : !down) || head.lane != 0 || !possible(head.type, head.extra) ||
             head.words != (carries ? group.values.words() : 0)) {
    ++counters_[Count::malformed];
  } else if (child >= 0) {
    from_child(group, static_cast<std::size_t>(child), head, packet, out);
  } else {
    from_parent(group, head, packet, out);
  }
}

void SharpSwitch::from_child(Group& group, std::size_t child, const FrameHead& head, Bytes packet, Outbox& out) {
  const std::size_t place = group.place(head.number);
  Buffer& buffer = group.buffers[place];
  const std::int32_t step = after(head.number, buffer.number);
  if (step < 0) {
    ++counters_[Count::stale];
    return;
  }
  std::uint8_t* seen = group.seen.data() + place * group.children.size();
  if (step > 0) {
    if (step != static_cast<std::int32_t>(group.buffers.size()) || (buffer.stage != unused && buffer.stage != summed)) {
      ++counters_[Count::ahead];
      return;
    }
    if (group.parent == kNobody && head.type == kValues && head.extra == kOfStream && !group.streams) {
      ++counters_[Count::over_quota];
      return;
    }
    buffer = {head.number, head.extra, head.type, open_, static_cast<int>(group.children.size())};
    std::fill_n(seen, group.children.size(), std::uint8_t{0});
  } else if (buffer.stage == unused) {
    ++counters_[Count::stale];
    return;
  } else if (head.type != buffer.type || head.extra != buffer.extra) {
    ++counters_[Count::malformed];
    return;
  }
  if (seen[child]) {
    const Endpoint sender = group.children[child];
    if (buffer.stage == summed) {
      ++counters_[Count::answered];
      send(group, place, true, {&sender, 1}, out);
      return;
    }
    ++counters_[Count::repeated];
    if (buffer.stage == waits) serve_tree(group.tree, out);  // whoever had it may have been closed
    if (buffer.stage != passed_up) return;
    ++counters_[Count::resent];
    send(group, place, false, {&group.parent, 1}, out);
    return;
  }
  ++counters_[Count::aggregated];
  seen[child] = 1;
  if (head.type == kValues) load_words(group.given_by(place, child), packet);
  if (--buffer.missing == 0) complete(group, place, out);
}

void SharpSwitch::from_parent(Group& group, const FrameHead& head, Bytes packet, Outbox& out) {
  const std::size_t place = group.place(head.number);
  Buffer& buffer = group.buffers[place];
  const std::int32_t step = after(head.number, buffer.number);
  if (step != 0 || buffer.stage == unused) {
    ++counters_[step > 0 ? Count::ahead : Count::stale];
  } else if (buffer.stage == summed) {
    ++counters_[Count::repeated];
  } else if (head.type != buffer.type + 1 || head.extra != buffer.extra || buffer.stage != passed_up) {
    ++counters_[Count::malformed];
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
    for (std::size_t child = 1; child < group.children.size(); ++child) {
      values.unpack(group.given_by(place, child), group.more.data(), values.values());
      values.combine(group.sum.data(), group.more.data());
    }
    values.pack(group.sum.data(), values.values(), group.sums.data() + place * values.words());
  }
  if (group.parent != kNobody) {
    ++counters_[Count::forwarded];
    buffer.stage = passed_up;
    send(group, place, false, {&group.parent, 1}, out);
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
  ++counters_[Count::completed];
  Buffer& buffer = group.buffers[place];
  buffer.stage = summed;
  send(group, place, true, group.children.all(), out);
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

void SharpSwitch::save(Time /*now*/, std::vector<std::uint8_t>& bytes) const {
  State state(bytes);
  for (const auto& [id, group] : groups_) {
    state << id << group.streams << group.to_stream;
    const std::size_t words = group.values.words(), children = group.children.size();
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
  if ((head.type != kSum && head.type != kGrant) || head.lane != 0 || !possible(head.type, head.extra) ||
      head.words != (head.type == kSum ? words_.size() : 0)) {
    ++counters_[Count::malformed];
  } else if (after(head.number, base_) >= 0 && after(head.number, sent_) < 0 &&
             (head.type == kGrant) != (streams_ && head.number == first_)) {
    ++counters_[Count::malformed];
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
