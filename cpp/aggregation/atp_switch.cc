#include "aggregation/atp_switch.h"

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
  const auto id = static_cast<std::uint16_t>(job.id);
  if (jobs_.contains(id)) refuse("it is open");
  const auto mark = static_cast<std::int64_t>(job.setting("mark_bytes", 80'000));
  jobs_.emplace(id, Served{job.workers, ways, parent, mark});
}

void AtpSwitch::close(std::uint32_t job) {
  if (job > 65535 || jobs_.erase(static_cast<std::uint16_t>(job)) == 0) return;
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
  const auto found = job <= 65535 ? jobs_.find(static_cast<std::uint16_t>(job)) : jobs_.end();
  if (found == jobs_.end()) return {};
  std::uint32_t late = 0;
  for (const Slot& slot : slots_) {
    if (slot.taken && slot.application == job && !found->second.answered.contains(slot.key)) late |= ~slot.bitmap;
  }
  return found->second.ways.list(late);
}

void AtpSwitch::receive(Endpoint from, Bytes packet, Time, Outbox& out) {
  ++counters_[Count::received];
  Header header;
  if (!read(packet, header)) {
    ++counters_[Count::malformed];
    return;
  }
  const auto found = jobs_.find(header.application);
  if (found == jobs_.end()) {
    ++counters_[Count::stranger];
    return;
  }
  Served& job = found->second;
  const bool from_above = from == job.parent;
  if (!from_above && !job.ways.own(from, header.bitmap)) {
    ++counters_[Count::stranger];
  } else if (header.workers != job.workers) {
    ++counters_[Count::malformed];
  } else if (std::max(header.aggregator, header.next) >= slots_.size()) {
    ++counters_[Count::out_of_range];
  } else if (from_above) {
    down(job, header, packet, out);
  } else {
    up(job, header, packet, out);
  }
}

void AtpSwitch::up(Served& job, Header& header, Bytes packet, Outbox& out) {
  if (!header.has(kCongested) && out.queued(job.parent) >= job.mark_bytes) {
    header.flags |= kCongested;
    ++counters_[Count::marked];
  }
  Slot& slot = slots_[header.aggregator];
  if (header.has(kAck | kOverflow)) return forward(job, header, packet, out);
  if (header.has(kResend)) {
    if (slot.holds(header)) return evict(job, slot, header, packet, out);
    return forward(job, header, packet, out);
  }
  if (job.answered.contains(header.key)) {
    ++counters_[Count::stale];
    return;
  }
  if (slot.taken && !slot.holds(header)) {
    if (!abandoned(slot, header)) {
      header.flags |= kCollision;
      ++counters_[Count::collided];
      return forward(job, header, packet, out);
    }
    ++counters_[Count::evicted];
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
    ++counters_[Count::malformed];
    return;
  } else if ((slot.bitmap & header.bitmap) != 0) {
    ++counters_[Count::repeated];
    return;
  }
  slot.bitmap |= header.bitmap;
  slot.flags |= header.flags & (kCongested | kCollision);
  add(slot, packet, first);
  ++counters_[Count::aggregated];
  if (slot.bitmap != job.ways.mask) return;
  ++counters_[Count::completed];
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
  if (slot.length != header.length) {
    ++counters_[Count::malformed];
    return;
  }
  ++counters_[Count::evicted];
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
  if ((header.bitmap & job.ways.mask) == 0) {
    ++counters_[Count::stranger];
    return;
  }
  ++counters_[Count::forwarded];
  bool crowded = false;
  for (int at = 0; at < job.ways.endpoints; ++at) {
    crowded |= out.queued(job.ways.all[static_cast<std::size_t>(at)]) >= job.mark_bytes;
  }
  std::copy(packet.begin(), packet.end(), scratch_.begin());
  if (crowded && !header.has(kCongested)) {
    scratch_[5] |= kCongested;
    ++counters_[Count::marked];
  }
  job.ways.send(header.bitmap, scratch_, out);
}

void AtpSwitch::send_up(const Served& job, Header header, const Slot& slot, Outbox& out) {
  write(header, scratch_.data());
  store_values(slot.values.data(), scratch_.data() + kValuesAt, kValues);
  out.send(job.parent, scratch_);
}

void AtpSwitch::forward(const Served& job, const Header& header, Bytes packet, Outbox& out) {
  ++counters_[Count::forwarded];
  std::copy(packet.begin(), packet.end(), scratch_.begin());
  scratch_[5] = header.flags;
  out.send(job.parent, scratch_);
}

void AtpSwitch::save(Time, std::vector<std::uint8_t>& state) const {
  for (const Slot& slot : slots_) {
    append(state, slot.taken);
    if (!slot.taken) continue;
    append(state, slot.flags);
    append(state, slot.application);
    append(state, slot.bitmap);
    append(state, slot.length);
    append(state, slot.key);
    append(state, slot.values.data(), slot.values.size());
  }
  for (const auto& [id, job] : jobs_) {
    append(state, id);
    job.answered.save(state);
  }
}

}  // namespace coppice::aggregation
