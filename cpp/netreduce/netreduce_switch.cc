#include "netreduce/netreduce_switch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "aggregation/state.h"

namespace coppice::aggregation {

using namespace netreduce;

NetReduceSwitch::NetReduceSwitch(int slots) : jobs_(slots, "slots (a job takes two windows of messages)") {
  if (slots < 1) {
    throw std::invalid_argument("expected 1 slot or more in a switch of netreduce, found " + std::to_string(slots));
  }
  scratch_.resize(kBase + kHeader + 4 * kMostValues);
}

void NetReduceSwitch::open(const Job& job, std::span<const Endpoint> children, Endpoint parent) {
  check(job);
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("job " + std::to_string(job.id) + " cannot be opened in this switch of netreduce: " +
                                why);
  };
  if (children.empty() || children.size() > static_cast<std::size_t>(job.workers)) {
    refuse("expected 1 to " + std::to_string(job.workers) + " children, found " + std::to_string(children.size()));
  }
  Served served;
  served.id = job.id;
  served.values = static_cast<std::size_t>(job.values);
  served.packets = static_cast<std::size_t>(message_packets(job));
  served.window = static_cast<std::uint32_t>(job.window);
  served.kept = std::bit_ceil(2 * served.window);
  const bool floats = job.element == Element::float32 && fixed_point(job) == 0;
  served.contributions = floats ? std::bit_ceil(served.window) : 0;
  served.parties = JobParties(children, parent);
  const std::size_t slots = served.kept * served.packets, workers = children.size();
  jobs_.expect_new(job.id, static_cast<std::int64_t>(slots));
  served.messages.resize(served.kept);
  served.starts.resize(served.kept * workers);
  served.flows.assign(workers, -1);
  served.recent.resize(workers);
  served.slots.resize(slots);
  served.sums.resize(slots * served.values);
  served.each.resize(served.contributions * served.packets * workers * served.values);
  children_.add(job.id, JobParties(children, kNobody));  // switches above may be those of several jobs
  jobs_.open(job.id, std::move(served), static_cast<std::int64_t>(slots));
}

void NetReduceSwitch::close(std::uint32_t job) {
  if (jobs_.close(job)) children_.remove(job);
}

std::int64_t NetReduceSwitch::slots_in_use() const {
  return jobs_.total([](const Served& job) { return job.held; });
}

void NetReduceSwitch::receive(Endpoint from, Bytes bytes, Time, Outbox& out) {
  count(Count::received);
  Packet packet;
  if (!read(bytes, packet)) return count(Count::malformed);
  if (const Senders::Sender* const child = children_.find(from)) {
    Served& job = *jobs_.find(child->job);
    if (packet.kind != Kind::data) return acknowledgement(job, child->child, packet, bytes, out);
    return data(job, child->child, packet, out);
  }
  const bool down_here = packet.kind == Kind::data && packet.has_header() && packet.from_switch();
  const auto [above, party] = down_here ? jobs_.sender(packet.job, from) : std::pair<Served*, int>{};
  if (above == nullptr) return count(Count::unknown_sender);
  down(*above, packet, out);
}

void NetReduceSwitch::acknowledgement(Served& job, int child, const Packet& packet, Bytes bytes, Outbox& out) {
  const std::size_t before = (static_cast<std::size_t>(child) + job.parties.size() - 1) % job.parties.size();
  if (packet.flow != job.flows[before]) return count(Count::unknown_sender);
  count(Count::forwarded);
  out.send(job.parties[before], bytes);
}

void NetReduceSwitch::data(Served& job, int child, const Packet& packet, Outbox& out) {
  const std::int32_t flow = job.flows[static_cast<std::size_t>(child)];
  if ((flow >= 0 && packet.flow != flow) || (packet.has_header() && packet.job != job.id)) {
    return count(Count::unknown_sender);
  }
  Place place;
  if (packet.values() > job.values || ((packet.flags & kLast) == 0 && packet.values() != job.values)) {
    return count(Count::malformed);
  }
  if (!find(job, child, packet, place)) return;
  Slot& slot = job.slots[place.message * job.packets + place.position];
  if (slot.bitmap != 0 && slot.values != packet.values()) return count(Count::malformed);
  const std::uint64_t bit = std::uint64_t{1} << child;
  if ((slot.bitmap & bit) != 0) {
    if (slot.state == State::open) {
      count(Count::duplicate);
    } else if (slot.state == State::summed) {
      count(Count::forwarded);
      send_up(job, place, out);
    } else {
      count(Count::answered);
      send_on(job, child, place, out);
    }
    return;
  }
  job.held += slot.bitmap == 0;
  slot.values = static_cast<std::uint16_t>(packet.values());
  add(job, child, place, packet);
  slot.bitmap |= bit;
  count(Count::aggregated);
  if (static_cast<std::size_t>(std::popcount(slot.bitmap)) != job.parties.size()) return;
  count(Count::completed);
  if (job.parties.root()) return finish(job, place, out);
  slot.state = State::summed;
  send_up(job, place, out);
}

bool NetReduceSwitch::find(Served& job, int child, const Packet& packet, Place& place) {
  return packet.has_header() ? find_by_header(job, child, packet, place) : find_by_number(job, child, packet, place);
}

// The first message of a turn of the ring takes the place of one that all hosts have received.
bool NetReduceSwitch::find_by_header(Served& job, int child, const Packet& packet, Place& place) {
  if (packet.packets > job.packets || (packet.position != 0 && !packet.from_switch())) {
    count(Count::malformed);
    return false;
  }
  place = {packet.message % job.kept, packet.position};
  if (!packet.from_switch() && overlaps(job, child, packet)) {
    count(Count::malformed);
    return false;
  }
  const auto at = static_cast<std::size_t>(child);
  Message& message = job.messages[place.message];
  std::uint32_t& start = job.starts[place.message * job.parties.size() + at];
  const std::uint64_t bit = std::uint64_t{1} << child, as_switch = packet.from_switch() ? bit : 0;
  if (!message.there || message.number != packet.message) {
    if (message.there && before(packet.message, message.number)) {
      count(Count::stale);
      return false;
    }
    if (!may_start(job, packet.message)) {
      count(Count::future);
      return false;
    }
    message = {true, packet.message, packet.packets, 0, 0, 0};
    const auto first = job.slots.begin() + static_cast<std::ptrdiff_t>(place.message * job.packets);
    std::fill(first, first + packet.packets, Slot{});
  } else if (message.packets != packet.packets ||
             ((message.started & bit) != 0 && (start != packet.psn || (message.switches & bit) != as_switch))) {
    count(Count::malformed);
    return false;
  }
  message.started |= bit;
  message.switches |= as_switch;
  start = packet.psn;
  job.flows[at] = packet.flow;
  job.recent[at] = static_cast<std::uint32_t>(place.message);
  return true;
}

// Whether the numbers of this message are those of another one of the child.
bool NetReduceSwitch::overlaps(const Served& job, int child, const Packet& packet) const {
  for (std::size_t at = 0; at < job.kept; ++at) {
    const Message& other = job.messages[at];
    if (at == packet.message % job.kept || (((other.started & ~other.switches) >> child) & 1) == 0) continue;
    const std::uint32_t start = job.starts[at * job.parties.size() + static_cast<std::size_t>(child)];
    if (packet.psn - start < other.packets || start - packet.psn < packet.packets) return true;
  }
  return false;
}

bool NetReduceSwitch::find_by_number(Served& job, int child, const Packet& packet, Place& place) {
  const auto flow = static_cast<std::size_t>(child);
  for (std::size_t step = 0; step < job.kept; ++step) {
    const std::size_t at = (job.recent[flow] + step) % job.kept;
    const Message& message = job.messages[at];
    if (!message.there || (((message.started & ~message.switches) >> child) & 1) == 0) continue;
    const std::uint32_t position = packet.psn - job.starts[at * job.parties.size() + flow];
    if (position >= message.packets) continue;
    // A packet without a header is none's first, and says whether it is the last.
    if (position == 0 || (position + 1U == message.packets) != ((packet.flags & kLast) != 0)) {
      count(Count::malformed);
      return false;
    }
    job.recent[flow] = static_cast<std::uint32_t>(at);
    place = {at, position};
    return true;
  }
  count(Count::future);  // or long past: its message is not known
  return false;
}

// Whoever sends a message has received the one a window before.
bool NetReduceSwitch::may_start(const Served& job, std::uint32_t message) const {
  if (message < job.window) return true;
  const Message& earlier = job.messages[(message - job.window) % job.kept];
  return earlier.there && earlier.number == message - job.window && earlier.final == earlier.packets;
}

void NetReduceSwitch::add(Served& job, int child, const Place& place, const Packet& packet) {
  const std::size_t at = place.message * job.packets + place.position, count = packet.values();
  const Slot& slot = job.slots[at];
  const std::uint8_t* wire = packet.payload.data();
  std::uint32_t* sum = job.sums.data() + at * job.values;
  if (job.contributions == 0) {
    const std::uint32_t keep = slot.bitmap == 0 ? 0 : ~0u;
    for (std::size_t each = 0; each < count; ++each) {
      sum[each] = (sum[each] & keep) + load<std::uint32_t>(wire + 4 * each);
    }
    return;
  }
  const std::size_t workers = job.parties.size();
  const std::size_t row = (job.messages[place.message].number % job.contributions) * job.packets + place.position;
  std::uint32_t* all = job.each.data() + row * workers * job.values;
  std::uint32_t* mine = all + static_cast<std::size_t>(child) * job.values;
  for (std::size_t each = 0; each < count; ++each) mine[each] = load<std::uint32_t>(wire + 4 * each);
  if (static_cast<std::size_t>(std::popcount(slot.bitmap)) + 1 != workers) return;
  std::copy_n(all, count, sum);
  for (std::size_t worker = 1; worker < workers; ++worker) {
    const std::uint32_t* more = all + worker * job.values;
    for (std::size_t each = 0; each < count; ++each) {
      sum[each] = std::bit_cast<std::uint32_t>(std::bit_cast<float>(sum[each]) + std::bit_cast<float>(more[each]));
    }
  }
  for (std::size_t each = 0; each < count; ++each) {  // one NaN, whichever were added
    if (std::isnan(std::bit_cast<float>(sum[each]))) sum[each] = 0x7fc00000;
  }
}

void NetReduceSwitch::finish(Served& job, const Place& place, Outbox& out) {
  job.slots[place.message * job.packets + place.position].state = State::final;
  ++job.messages[place.message].final;
  --job.held;
  for (std::size_t child = 0; child < job.parties.size(); ++child) send_on(job, static_cast<int>(child), place, out);
}

// Into the scratch packet: `packet` as far as it goes, and the sum. Returns its size.
std::size_t NetReduceSwitch::write_sum(const Served& job, const Place& place, Packet packet) {
  const Message& message = job.messages[place.message];
  const std::size_t at = place.message * job.packets + place.position, count = job.slots[at].values;
  packet.flags |= place.position + 1U == message.packets ? kLast : 0;
  packet.job = job.id;
  packet.message = message.number;
  packet.packets = message.packets;
  packet.position = static_cast<std::uint16_t>(place.position);
  const std::size_t header = write(packet, scratch_.data());
  for (std::size_t each = 0; each < count; ++each) {
    store(scratch_.data() + header + 4 * each, job.sums[at * job.values + each]);
  }
  return header + 4 * count;
}

void NetReduceSwitch::send_up(Served& job, const Place& place, Outbox& out) {
  Packet packet;
  packet.flags = kHasHeader | kFromSwitch;
  out.send(job.parties.parent(), Bytes(scratch_.data(), write_sum(job, place, packet)));
}

// The packet of a child goes on to the next one, unless the child is a switch.
void NetReduceSwitch::send_on(Served& job, int child, const Place& place, Outbox& out) {
  const auto at = static_cast<std::size_t>(child);
  const bool back = (job.messages[place.message].switches >> child & 1) != 0;
  Packet packet;
  packet.flow = static_cast<std::uint16_t>(job.flows[at]);
  if (back) {
    packet.flags = kHasHeader | kFromSwitch;
  } else {
    packet.flags = place.position == 0 ? kHasHeader : 0;
    packet.psn = job.starts[place.message * job.parties.size() + at] + static_cast<std::uint32_t>(place.position);
  }
  out.send(job.parties[back ? at : (at + 1) % job.parties.size()],
           Bytes(scratch_.data(), write_sum(job, place, packet)));
}

void NetReduceSwitch::down(Served& job, const Packet& packet, Outbox& out) {
  const Place place{packet.message % job.kept, packet.position};
  const Message& message = job.messages[place.message];
  if (!message.there || message.number != packet.message) {
    return count(message.there && before(packet.message, message.number) ? Count::stale : Count::future);
  }
  const std::size_t at = place.message * job.packets + place.position;
  if (packet.packets != message.packets || (job.slots[at].bitmap != 0 && job.slots[at].values != packet.values())) {
    count(Count::malformed);
  } else if (job.slots[at].state == State::open) {
    count(Count::future);
  } else if (job.slots[at].state == State::final) {
    count(Count::duplicate);
  } else {
    for (std::size_t each = 0; each < packet.values(); ++each) {
      job.sums[at * job.values + each] = load<std::uint32_t>(packet.payload.data() + 4 * each);
    }
    finish(job, place, out);
  }
}

std::vector<int> NetReduceSwitch::waits_for(std::uint32_t job) const {
  const Served* const served = jobs_.find(job);
  if (served == nullptr) return {};
  std::uint64_t late = 0;
  for (const Slot& slot : served->slots) {
    if (slot.bitmap != 0 && slot.state == State::open) late |= ~slot.bitmap;
  }
  return served->parties.numbers_in(late);
}

void NetReduceSwitch::save(Time, StateWriter& state) const {
  for (const auto& [id, job] : jobs_) {
    state << id;
    state.put(job.flows.data(), job.flows.size());
    for (std::size_t at = 0; at < job.messages.size(); ++at) {
      const Message& message = job.messages[at];
      state << message.there;
      if (!message.there) continue;
      state << message.number << message.packets << message.started << message.switches;
      for (std::size_t flow = 0; flow < job.parties.size(); ++flow) {
        if ((message.started >> flow & 1) != 0) state << job.starts[at * job.parties.size() + flow];
      }
      for (std::size_t position = 0; position < message.packets; ++position) {
        const std::size_t place = at * job.packets + position;
        const Slot& slot = job.slots[place];
        state << slot.state << slot.bitmap;
        if (slot.bitmap == 0) continue;
        state << slot.values;
        if (job.contributions == 0 || slot.state != State::open) {
          state.put(job.sums.data() + place * job.values, slot.values);
          continue;
        }
        const std::size_t row = (message.number % job.contributions) * job.packets + position;
        for (std::size_t flow = 0; flow < job.parties.size(); ++flow) {
          if ((slot.bitmap >> flow & 1) == 0) continue;
          state.put(job.each.data() + (row * job.parties.size() + flow) * job.values, slot.values);
        }
      }
    }
  }
}

}  // namespace coppice::aggregation
