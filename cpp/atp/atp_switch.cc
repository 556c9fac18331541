#include "atp/atp_switch.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "aggregation/state.h"

namespace coppice::aggregation {

using namespace atp;

AtpSwitch::AtpSwitch(int slots) {
  if (slots < 1 || slots > 65536) {
    throw std::invalid_argument("expected 1 to 65536 slots in a switch of atp, found " + std::to_string(slots));
  }
  slots_.resize(static_cast<std::size_t>(slots));
}

void AtpSwitch::open(const Job& job, std::span<const Endpoint> children, Endpoint parent) {
  check(job);
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("job " + std::to_string(job.id) + " cannot be opened in this switch of atp: " + why);
  };
  if (parent == kNobody) refuse("it has no server above");
  if (children.size() != static_cast<std::size_t>(job.workers)) {
    refuse("expected one child for each of " + std::to_string(job.workers) + " workers, found " +
           std::to_string(children.size()));
  }
  if (static_cast<std::size_t>(job.slots) > slots_.size()) {
    refuse("expected at most " + std::to_string(slots_.size()) + " slots, found " + std::to_string(job.slots));
  }
  const Ways ways(children);
  if (ways.mask == 0) refuse("it reaches none of the workers");
  jobs_.expect_new(job.id);
  const auto mark = static_cast<std::int64_t>(job.setting("mark_bytes", 80'000));
  jobs_.open(job.id, {{job.id, {}}, job.workers, ways, parent, mark});
}

void AtpSwitch::close(std::uint32_t job) {
  if (!jobs_.close(job)) return;
  for (Slot& slot : slots_) {
    if (slot.taken && slot.application == job) slot.taken = false;
  }
}

std::int64_t AtpSwitch::slots_in_use() const {
  return std::count_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.taken && !jobs_.at(slot.application).answered.contains(slot.key);
  });
}

std::vector<int> AtpSwitch::waits_for(std::uint32_t job) const {
  const Served* const served = jobs_.find(job);
  if (served == nullptr) return {};
  std::uint32_t late = 0;
  for (const Slot& slot : slots_) {
    if (slot.taken && slot.application == job && !served->answered.contains(slot.key)) late |= ~slot.bitmap;
  }
  return served->ways.list(late);
}

void AtpSwitch::receive(Endpoint from, Bytes packet, Time, Outbox& out) {
  count(Count::received);
  Header header;
  if (!read(packet, header)) return count(Count::malformed);
  Served* const found = jobs_.find(header.application);
  if (found == nullptr) return count(Count::unknown_sender);
  Served& job = *found;
  const bool from_above = from == job.parent;
  if (!from_above && !job.ways.own(from, header.bitmap)) {
    count(Count::unknown_sender);
  } else if (header.workers != job.workers) {
    count(Count::malformed);
  } else if (std::max(header.aggregator, header.next) >= slots_.size()) {
    count(Count::out_of_range);
  } else if (from_above) {
    down(job, header, packet, out);
  } else {
    up(job, header, packet, out);
  }
}

void AtpSwitch::up(Served& job, Header& header, Bytes packet, Outbox& out) {
  if (!header.has(kCongested) && out.queued(job.parent) >= job.mark_bytes) {
    header.flags |= kCongested;
    count(Count::marked);
  }
  Slot& slot = slots_[header.aggregator];
  if (header.has(kAck | kOverflow)) return forward(job, header, packet, out);
  if (header.has(kResend)) {
    if (slot.holds(header)) return evict(job, slot, header, packet, out);
    return forward(job, header, packet, out);
  }
  if (job.answered.contains(header.key)) return count(Count::stale);
  if (slot.taken && !slot.holds(header)) {
    if (!abandoned(slot, header)) {
      header.flags |= kCollision;
      count(Count::collided);
      return forward(job, header, packet, out);
    }
    count(Count::evicted);
    slot.taken = false;
  }
  const bool first = !slot.taken;
  if (first) {
    slot.taken = true;
    slot.flags = 0;
    slot.application = header.application;
    slot.bitmap = 0;
    slot.length = header.length;
    slot.key = header.key;
  } else if (slot.length != header.length) {
    return count(Count::malformed);
  } else if ((slot.bitmap & header.bitmap) != 0) {
    return count(Count::duplicate);
  }
  slot.bitmap |= header.bitmap;
  slot.flags |= header.flags & (kCongested | kCollision);
  add(slot, packet, first);
  count(Count::aggregated);
  if (slot.bitmap != job.ways.mask) return;
  count(Count::completed);
  header.bitmap = slot.bitmap;
  header.flags = slot.flags;
  send_up(job, header, slot, out);
}

// Two passes: the pipeline has registers for half of the values, and the packet comes round again for the others.
void AtpSwitch::add(Slot& slot, Bytes packet, bool first) {
  for (int half = 0; half < 2; ++half) {
    std::int32_t* sum = slot.values.data() + half * kHalf;
    const std::uint8_t* wire = packet.data() + kValuesAt + 4 * half * kHalf;
    if (first) {
      load_values(wire, sum, kHalf);
    } else {
      counters_[Count::saturated] += static_cast<std::uint64_t>(add_sticking(sum, wire, kHalf));
    }
  }
}

// Whether nobody will ask for what the slot holds: its chunk was answered, or the sender's window is past it.
bool AtpSwitch::abandoned(const Slot& slot, const Header& by) const {
  if (slot.application == by.application && slot.key + kMostWindow <= by.key) return true;
  return jobs_.at(slot.application).answered.contains(slot.key);
}

// A contribution sent again takes the partial sum along; where the two overlap, neither is lost.
void AtpSwitch::evict(const Served& job, Slot& slot, Header& header, Bytes packet, Outbox& out) {
  if (slot.length != header.length) return count(Count::malformed);
  count(Count::evicted);
  slot.taken = false;
  slot.flags |= header.flags & (kCongested | kCollision);
  header.flags |= slot.flags;
  if ((slot.bitmap & header.bitmap) == 0) {
    add(slot, packet, false);
    slot.bitmap |= header.bitmap;
  } else if ((header.bitmap & ~slot.bitmap) != 0) {
    forward(job, header, packet, out);
    if ((slot.bitmap & ~header.bitmap) == 0) return;
  }
  header.bitmap = slot.bitmap;
  send_up(job, header, slot, out);
}

void AtpSwitch::down(Served& job, Header& header, Bytes packet, Outbox& out) {
  if (header.has(kAck)) {
    Slot& slot = slots_[header.aggregator];
    if (slot.holds(header)) slot.taken = false;
    job.answered.add(header.key);
  }
  if ((header.bitmap & job.ways.mask) == 0) return count(Count::unknown_sender);
  count(Count::forwarded);
  bool crowded = false;
  for (int at = 0; at < job.ways.endpoints; ++at) {
    crowded |= out.queued(job.ways.all[static_cast<std::size_t>(at)]) >= job.mark_bytes;
  }
  std::copy(packet.begin(), packet.end(), scratch_.begin());
  if (crowded && !header.has(kCongested)) {
    scratch_[5] |= kCongested;
    count(Count::marked);
  }
  job.ways.send(header.bitmap, scratch_, out);
}

void AtpSwitch::send_up(const Served& job, Header header, const Slot& slot, Outbox& out) {
  write(header, scratch_.data());
  store_values(slot.values.data(), scratch_.data() + kValuesAt, kValues);
  out.send(job.parent, scratch_);
}

void AtpSwitch::forward(const Served& job, const Header& header, Bytes packet, Outbox& out) {
  count(Count::forwarded);
  std::copy(packet.begin(), packet.end(), scratch_.begin());
  scratch_[5] = header.flags;
  out.send(job.parent, scratch_);
}

void AtpSwitch::save(Time, StateWriter& state) const {
  for (const Slot& slot : slots_) {
    state << slot.taken;
    if (!slot.taken) continue;
    state << slot.flags << slot.application << slot.bitmap << slot.length << slot.key;
    state.put(slot.values.data(), slot.values.size());
  }
  for (const auto& [id, job] : jobs_) {
    state << id;
    job.answered.save(state);
  }
}

}  // namespace coppice::aggregation
