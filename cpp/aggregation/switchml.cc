#include "aggregation/switchml.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "aggregation/state.h"
#include "aggregation/values.h"

namespace coppice::aggregation {

namespace {

using Packet = SwitchMlPacket;

void require(bool holds, const char* what, std::int64_t found) {
  if (!holds) throw std::invalid_argument(std::string("expected ") + what + ", found " + std::to_string(found));
}

}  // namespace

void Packet::check(const Job& job) {
  require(job.values >= 1 && job.values <= Packet::kMostValues, "1 to 2048 values in a packet", job.values);
  require(job.slots >= 1 && job.slots <= Packet::kMostSlots, "1 to 8192 slots", job.slots);
  require(job.window >= 1 && job.window <= job.slots, "a window of 1 to as many packets as there are slots", job.window);
  require(job.workers >= 1, "a worker or more", job.workers);
  const double first = job.setting("first_packet", 0);
  if (!(first >= 0 && first < 4294967296.0 && first == std::floor(first))) {
    throw std::invalid_argument("expected a whole `first_packet` from 0 to 2^32 - 1, found " + std::to_string(first));
  }
}

std::uint32_t Packet::first_id(const Job& job) { return static_cast<std::uint32_t>(job.setting("first_packet", 0)); }

Count Packet::wrong_id(std::uint32_t expected, std::uint32_t found) {
  // Signed distance on the circle of ids (RFC 1982).
  return static_cast<std::int32_t>(found - expected) > 0 ? Count::future : Count::stale;
}

std::uint8_t Packet::kind_of(int values) { return values == 64 ? 0x11 : values == 256 ? 0x13 : 0x14; }

Packet Packet::read(const std::uint8_t* from) {
  const auto pool = load<std::uint16_t>(from + 6);
  return {from[0], from[1], swapped(load<std::uint32_t>(from + 2)), (pool & 0x8000) != 0, pool & 0x7FFF,
          {static_cast<std::int8_t>(from[8]), static_cast<std::int8_t>(from[9])}};
}

void Packet::write(std::uint8_t* to) const {
  to[0] = kind;
  to[1] = job;
  store(to + 2, swapped(id));
  store(to + 6, static_cast<std::uint16_t>(slot | (set ? 0x8000 : 0)));
  to[8] = static_cast<std::uint8_t>(exponents[0]);
  to[9] = static_cast<std::uint8_t>(exponents[1]);
}

std::string Packet::describe(Bytes packet) {
  if (packet.size() < kHead + 4) return std::to_string(packet.size()) + " bytes";
  const Packet head = read(packet.data());
  const auto value = static_cast<std::int32_t>(load<std::uint32_t>(packet.data() + kHead));
  return "slot " + std::to_string(head.slot) + " set " + std::to_string(head.set) + " packet " + std::to_string(head.id) +
         " value " + std::to_string(value);
}

void SwitchMlSwitch::open(const Job& job, std::span<const Endpoint> children, Endpoint parent) {
  Packet::check(job);
  const auto n = static_cast<std::int64_t>(children.size());
  require(n >= 1 && n <= Packet::kMostWorkers, "1 to 32 workers or switches below one switch", n);
  jobs_.expect_new(job.id, job.slots);
  Service service;
  service.id = job.id;
  service.parties = JobParties(children, parent);
  service.first = Packet::first_id(job);
  service.published_rule = job.setting("published_rule", 0) != 0;
  if (parent != kNobody && service.published_rule) {
    throw std::invalid_argument("expected no switch above one that goes by the published rule, found one");
  }
  service.values = job.values;
  service.kind = Packet::kind_of(job.values);
  service.slots.resize(static_cast<std::size_t>(job.slots));
  service.sums.resize(2 * service.slots.size() * static_cast<std::size_t>(job.values));
  service.form.full = job.setting("approximate", 0) == 0;
  if (adder_ == Adder::fpisa) service.floats.resize(2 * service.sums.size());
  service.reply.resize(Packet::size_of(job.values));
  senders_.add(job.id, service.parties);
  jobs_.open(job.id, std::move(service), job.slots);
}

void SwitchMlSwitch::close(std::uint32_t job) {
  if (jobs_.close(job)) senders_.remove(job);
}

std::int64_t SwitchMlSwitch::slots_in_use() const {
  return jobs_.total([](const Service& service) { return std::ranges::count_if(service.slots, &Slot::busy); });
}

std::vector<int> SwitchMlSwitch::waits_for(std::uint32_t job) const {
  const Service* const service = jobs_.find(job);
  if (service == nullptr) return {};
  std::uint32_t late = 0;
  for (const Slot& slot : service->slots) {
    const auto latest = static_cast<std::size_t>(std::max<int>(slot.latest, 0));
    if (slot.busy() && slot.missing[latest] > 0) late |= ~slot.seen[latest];
  }
  return service->parties.numbers_in(late);
}

std::span<const std::int32_t> SwitchMlSwitch::values(std::uint32_t job, int slot, int set) const {
  const Service& service = jobs_.at(job);
  const auto n = static_cast<std::size_t>(service.values);
  return {service.sums.data() + (2 * static_cast<std::size_t>(slot) + static_cast<std::size_t>(set)) * n, n};
}

void SwitchMlSwitch::receive(Endpoint from, Bytes packet, Time, Outbox& out) {
  count(Count::received);
  const Senders::Sender* const sender = senders_.find(from);
  if (sender == nullptr) return count(Count::unknown_sender);
  Service& service = *jobs_.find(sender->job);
  if (packet.size() != service.reply.size() || packet[0] != service.kind) return count(Count::malformed);
  const Packet head = Packet::read(packet.data());
  if (head.job != static_cast<std::uint8_t>(service.id)) return count(Count::unknown_sender);
  if (head.slot >= static_cast<int>(service.slots.size())) return count(Count::out_of_range);
  if (sender->child == JobParties::kParent) return settle(service, head, packet, out);
  if (service.published_rule) return contribute_as_published(service, sender->child, head, packet, out);
  contribute(service, sender->child, head, packet, out);
}

void SwitchMlSwitch::contribute(Service& service, int child, const Packet& head, Bytes packet, Outbox& out) {
  Slot& slot = service.slots[static_cast<std::size_t>(head.slot)];
  const std::size_t set = head.set, other = 1 - set;
  if (slot.latest < 0) {
    const std::uint32_t first = service.first + static_cast<std::uint32_t>(head.slot);
    if (head.id != first) return count(Packet::wrong_id(first, head.id));
    slot.id[other] = first - static_cast<std::uint32_t>(service.slots.size());
    slot.settled[other] = true;
  } else if (head.id == slot.id[set]) {
    const bool seen = (slot.seen[set] >> child & 1) != 0;
    if (!seen && slot.missing[set] > 0) return add(service, child, head, packet, out);
    if (!seen) return count(Count::stale);  // the child has gone on: a duplicate that was long on its way
    if (slot.settled[set]) {
      count(Count::answered);
      return send(service, head.slot, head.set, service.parties.one(child), out);
    }
    count(Count::duplicate);
    if (slot.missing[set] > 0) return;
    // The sum of the parent does not come: either way may have lost a packet.
    count(Count::resent);
    return send(service, head.slot, head.set, service.parties.above(), out);
  } else {
    const auto latest = static_cast<std::size_t>(slot.latest);
    const std::uint32_t next = slot.id[latest] + static_cast<std::uint32_t>(service.slots.size());
    if (head.id != next) return count(Packet::wrong_id(slot.id[latest], head.id));
    if (set == latest || !slot.settled[latest]) return count(Count::future);
  }
  slot.latest = static_cast<std::int8_t>(set);
  slot.id[set] = head.id;
  slot.missing[set] = static_cast<std::uint8_t>(service.parties.size());
  slot.settled[set] = false;
  add(service, child, head, packet, out);
}

void SwitchMlSwitch::contribute_as_published(Service& service, int child, const Packet& head, Bytes packet, Outbox& out) {
  Slot& slot = service.slots[static_cast<std::size_t>(head.slot)];
  const std::size_t set = head.set;
  if ((slot.seen[set] >> child & 1) != 0) {
    count(slot.missing[set] == 0 ? Count::answered : Count::duplicate);
    if (slot.missing[set] > 0) return;
    return send(service, head.slot, head.set, service.parties.one(child), out);
  }
  slot.latest = static_cast<std::int8_t>(set);
  slot.id[set] = head.id;
  slot.settled[set] = false;
  if (slot.missing[set] == 0) slot.missing[set] = static_cast<std::uint8_t>(service.parties.size());
  add(service, child, head, packet, out);
}

void SwitchMlSwitch::add(Service& service, int child, const Packet& head, Bytes packet, Outbox& out) {
  Slot& slot = service.slots[static_cast<std::size_t>(head.slot)];
  const std::size_t set = head.set;
  const std::uint8_t* from = packet.data() + Packet::kHead;
  std::int32_t* sum = service.at(head.slot, head.set);
  const auto n = static_cast<std::size_t>(service.values);
  if (adder_ == Adder::fpisa) {
    add_float(service, head, from, slot.seen[set] == 0, slot.missing[set] == 1);
  } else if (slot.seen[set] == 0) {
    load_values(from, sum, n);
    slot.exponents[set] = head.exponents;
  } else {
    add_values(from, sum, n);
    for (std::size_t i = 0; i < 2; ++i) slot.exponents[set][i] = std::max(slot.exponents[set][i], head.exponents[i]);
  }
  count(Count::aggregated);
  slot.seen[set] |= std::uint32_t{1} << child;
  slot.seen[1 - set] &= ~(std::uint32_t{1} << child);
  if (--slot.missing[set] > 0) return;
  count(Count::completed);
  count(Count::sent);
  slot.settled[set] = service.parties.root();
  if (slot.settled[set]) return send(service, head.slot, head.set, service.parties.children(), out);
  send(service, head.slot, head.set, service.parties.above(), out);
}

void SwitchMlSwitch::add_float(Service& service, const Packet& head, const std::uint8_t* from, bool first, bool last) {
  const auto n = static_cast<std::size_t>(service.values);
  std::int32_t* sum = service.at(head.slot, head.set);  // until the last one, room for the values of the packet
  std::int32_t* exponents = service.floats.data() + 2 * (sum - service.sums.data());
  if (first) numerics::fpisa_clear(exponents, exponents + n, n);
  load_values(from, sum, n);
  const numerics::FpisaCounts counts = numerics::fpisa_add(service.form, exponents, exponents + n, sum, n);
  counters_[Count::saturated] += static_cast<std::uint64_t>(counts.overflowed);
  counters_[Count::evicted] += static_cast<std::uint64_t>(counts.overwritten);
  if (last) numerics::fpisa_read(service.form, exponents, exponents + n, sum, n, true);
}

void SwitchMlSwitch::settle(Service& service, const Packet& head, Bytes packet, Outbox& out) {
  Slot& slot = service.slots[static_cast<std::size_t>(head.slot)];
  const std::size_t set = head.set;
  if (slot.latest < 0 || head.id != slot.id[set]) {
    return count(Packet::wrong_id(slot.latest < 0 ? head.id - 1 : slot.id[set], head.id));
  }
  if (slot.settled[set]) return count(Count::stale);
  if (slot.missing[set] > 0) return count(Count::future);  // a sum without what is summed here
  load_values(packet.data() + Packet::kHead, service.at(head.slot, head.set), static_cast<std::size_t>(service.values));
  slot.exponents[set] = head.exponents;
  slot.settled[set] = true;
  count(Count::forwarded);
  send(service, head.slot, head.set, service.parties.children(), out);
}

void SwitchMlSwitch::send(Service& service, int slot, bool set, std::span<const Endpoint> to, Outbox& out) {
  const Slot& from = service.slots[static_cast<std::size_t>(slot)];
  Packet{service.kind, static_cast<std::uint8_t>(service.id), from.id[set], set, slot, from.exponents[set]}.write(
      service.reply.data());
  store_values(service.at(slot, set), service.reply.data() + Packet::kHead, static_cast<std::size_t>(service.values));
  out.send(to, service.reply);
}

void SwitchMlSwitch::save(Time, StateWriter& state) const {
  for (const auto& [id, service] : jobs_) {
    state << id;
    for (const Slot& slot : service.slots) {
      state << slot.latest;
      for (std::size_t set = 0; slot.latest >= 0 && set < 2; ++set) {
        state << slot.id[set] << slot.seen[set] << slot.missing[set] << static_cast<std::uint8_t>(slot.settled[set]);
        if (slot.seen[set] == 0) continue;  // nobody may ask for this sum any more
        for (std::int8_t exponent : slot.exponents[set]) state << exponent;
        const std::int32_t* sum =
            service.sums.data() + (2 * static_cast<std::size_t>(&slot - service.slots.data()) + set) *
                                      static_cast<std::size_t>(service.values);
        state.put(sum, static_cast<std::size_t>(service.values));
        if (service.floats.empty()) continue;
        state.put(service.floats.data() + 2 * (sum - service.sums.data()), 2 * static_cast<std::size_t>(service.values));
      }
    }
  }
}

}  // namespace coppice::aggregation
