#include "udp/gate.h"

#include <algorithm>
#include <stdexcept>

namespace coppice::udp {

using aggregation::Count;
using aggregation::Endpoint;
using aggregation::kNever;

namespace {

constexpr Time kSweep = 100 * kMillisecond;
constexpr Time kPendingSilence = 3 * kSecond;  // of a worker that asked to join, until its place is free again

}  // namespace

// What a machine sends, as sealed packets: to workers, to the switch above, or to the machine beside it.
class Gate::Out final : public aggregation::Outbox {
 public:
  Out(Gate& gate, Wire& wire) : gate_(gate), wire_(wire) {}
  using Outbox::send;
  void send(std::span<const Endpoint> to, Bytes packet) override {
    gate_.addresses_.clear();
    Session* session = nullptr;
    for (const Endpoint each : to) {
      if (each < 0 || static_cast<std::size_t>(each) >= gate_.routes_.size()) continue;
      const Route route = gate_.routes_[static_cast<std::size_t>(each)];
      if (route.session == nullptr) continue;
      if (static_cast<std::size_t>(route.worker) < route.session->workers()) {
        session = route.session;
        gate_.addresses_.push_back(session->members[static_cast<std::size_t>(route.worker)].address);
      } else if (route.session->uplink) {
        route.session->uplink->send(packet, wire_);
      } else {
        gate_.inside_.emplace_back(each, std::vector<std::uint8_t>(packet.begin(), packet.end()));
      }
    }
    if (session == nullptr) return;
    std::uint8_t* room = wire_.room(kHeader + packet.size());
    std::copy(packet.begin(), packet.end(), room + kHeader);
    seal(room, packet.size(), {Kind::result, session->job(), session->epoch, kSwitch, gate_.protocol_}, session->key);
    wire_.send(gate_.addresses_);
  }

 private:
  Gate& gate_;
  Wire& wire_;
};

namespace {

std::unique_ptr<aggregation::Aggregator> server_of(const GateSettings& settings) {
  const aggregation::Protocol& found = aggregation::protocol(settings.protocol);
  return found.make_server == nullptr || settings.parent ? nullptr : found.make_server();
}

}  // namespace

Gate::Gate(GateSettings settings)
    : Gate(settings, aggregation::protocol(settings.protocol).make_switch(settings.slots), server_of(settings)) {}

Gate::Gate(GateSettings settings, std::unique_ptr<aggregation::Aggregator> machine,
           std::unique_ptr<aggregation::Aggregator> server)
    : settings_(std::move(settings)), switch_(std::move(machine)), server_(std::move(server)) {
  master_ = master_key(settings_.secret);
  control_ = control_key(master_);
  protocol_ = hash_of(settings_.protocol);
  nonces_ = nonce_from(settings_.seed);
  cookies_ = {nonces_, nonce_from(settings_.seed == 0 ? 0 : settings_.seed + 1)};
  if (settings_.most_slots == 0) settings_.most_slots = settings_.slots;
}

Gate::~Gate() = default;

Session* Gate::session_of(std::uint32_t job) {
  if (last_ != nullptr && last_->job() == job) return last_;
  const auto found = sessions_.find(job);
  return found == sessions_.end() ? nullptr : last_ = found->second.get();
}

aggregation::Counters Gate::protocol_counters() const {
  aggregation::Counters all = switch_->counters();
  if (server_) {
    for (std::size_t at = 0; at < aggregation::kCounts; ++at) all.values[at] += server_->counters().values[at];
  }
  return all;
}

void Gate::receive(Address from, Bytes packet, Time now, Wire& out) {
  count(Count::received);
  const std::optional<Envelope> envelope = opened(packet);
  if (!envelope || envelope->protocol != protocol_) {
    count(Count::malformed);
    if (!envelope || envelope->kind != Kind::join || !may_ask(from, *envelope, packet, now)) return;
    const std::optional<Join> wanted = decoded(body_of(packet), envelope->job);
    if (!wanted) return;
    const std::string& spoken = settings_.spoken.empty() ? settings_.protocol : settings_.spoken;
    return refuse(from, *envelope, wanted->nonce, "the switch speaks " + spoken + ", the worker " + wanted->protocol, out);
  }
  switch (envelope->kind) {
    case Kind::data:
    case Kind::beat:
      from_member(from, *envelope, packet, now, out);
      return;
    case Kind::join:
    case Kind::probe:
    case Kind::status:
      if (!may_ask(from, *envelope, packet, now)) return;
      if (envelope->kind == Kind::join) join(from, *envelope, packet, now, out);
      else if (envelope->kind == Kind::probe) probe(from, *envelope, packet, now, out);
      else status(from, *envelope, packet, out);
      return;
    default:
      if (settings_.parent && from == settings_.parent->address) {
        from_above(packet, *envelope, now, out);
      } else {
        count(Count::malformed);
      }
  }
}

void Gate::from_member(Address from, const Envelope& envelope, Bytes packet, Time now, Wire& out) {
  Session* session = session_of(envelope.job);
  if (session == nullptr || !session->open) return count(Count::unknown_sender);
  if (envelope.epoch != session->epoch) return count(Count::bad_epoch);
  if (envelope.worker >= session->workers()) return count(Count::out_of_range);
  Member& member = session->members[envelope.worker];
  if (!(member.address == from) || member.left) return count(Count::unknown_sender);
  if (settings_.most_per_second > 0 && !member.packets.spend(settings_.most_per_second, now)) {
    return count(Count::over_quota);
  }
  if (!sealed_with(packet, session->key)) return count(Count::bad_tag);
  member.heard = now;
  if (envelope.kind == Kind::beat) return;
  Out box(*this, out);
  switch_->receive(session->first + envelope.worker, body_of(packet), now, box);
  if (!inside_.empty()) deliver(now, out);
}

void Gate::deliver(Time now, Wire& out) {
  Out box(*this, out);
  while (!inside_.empty()) {
    const auto [to, packet] = std::move(inside_.front());
    inside_.pop_front();
    const Route route = routes_[static_cast<std::size_t>(to)];
    if (route.session == nullptr || !server_) continue;
    const Endpoint above = route.session->first + static_cast<Endpoint>(route.session->workers());
    if (to == above) server_->receive(above + 1, packet, now, box);
    else switch_->receive(above, packet, now, box);
  }
}

void Gate::answer(Address to, Kind kind, const Envelope& about, Bytes body, Wire& out) {
  std::uint8_t* room = out.room(kHeader + body.size());
  std::copy(body.begin(), body.end(), room + kHeader);
  seal(room, body.size(), {kind, about.job, about.epoch, about.worker, about.protocol}, control_);
  out.send({&to, 1});
}

void Gate::refuse(Address to, const Envelope& about, std::uint64_t nonce, const std::string& why, Wire& out) {
  Writer text;
  text.put(nonce).put(std::string_view(why).substr(0, kMostWords));
  answer(to, Kind::refused, about, text.bytes, out);
}

void Gate::all_joined(Session& session, Time now, Wire& out) {
  if (!settings_.parent) return open(session, now, out);
  ConnectionSettings above;
  above.join = session.wanted;
  above.join.members = settings_.parent->siblings;
  above.worker = settings_.parent->index;
  above.epoch = session.epoch;
  above.secret = settings_.secret;
  above.above = settings_.parent->address;
  above.seed = settings_.seed == 0 ? 0 : siphash(cookies_, body_of(Bytes(encoded(session.wanted))));
  session.uplink = std::make_unique<Connection>(std::move(above));
  session.uplink->start(now, out);
}

void Gate::open(Session& session, Time now, Wire& out) {
  const std::size_t length = session.workers() + 2;  // above, and the switch itself
  std::vector<Endpoint>& old = free_[length];
  if (old.empty()) {
    session.first = static_cast<Endpoint>(routes_.size());
    routes_.resize(routes_.size() + length);
  } else {
    session.first = old.back();
    old.pop_back();
  }
  std::vector<Endpoint> children;
  for (std::size_t at = 0; at < length; ++at) {
    const Endpoint endpoint = session.first + static_cast<Endpoint>(at);
    routes_[static_cast<std::size_t>(endpoint)] = {&session, static_cast<int>(at)};
    if (at < session.workers()) children.push_back(endpoint);
  }
  const Endpoint above = session.first + static_cast<Endpoint>(session.workers());
  session.open = true;
  try {
    switch_->open(session.wanted.job, children, server_ || session.uplink ? above : aggregation::kNobody);
    if (server_) server_->open(session.wanted.job, children, above + 1);
  } catch (const std::invalid_argument& error) {
    const std::string why = "the switch cannot serve job " + std::to_string(session.job()) + ": " + error.what();
    count(Count::over_quota);
    for (std::size_t at = 0; at < session.workers(); ++at) {
      const Envelope about{Kind::refused, session.job(), session.epoch, static_cast<std::uint16_t>(at), protocol_};
      refuse(session.members[at].address, about, session.members[at].nonce, why, out);
    }
    return close(session, why, now, out);
  }
  const std::uint8_t count[1] = {0};
  nonces_ = siphash({nonces_, cookies_.second}, count);
  session.nonce = nonces_;
  session.key = job_key(master_, session.job(), session.epoch, session.nonce);
  for (Member& each : session.members) each.heard = now;
  for (std::size_t at = 0; at < session.workers(); ++at) tell_ready(session, at, out);
  say(session.name() + " begins with " + std::to_string(session.workers()) + " workers and " +
      std::to_string(session.wanted.job.slots) + " slots");
}

void Gate::tell_ready(const Session& session, std::size_t worker, Wire& out) {
  const Member& member = session.members[worker];
  Writer text;
  text.put(member.nonce).put(session.nonce);
  text.put(static_cast<std::uint32_t>(std::max<Time>(1, settings_.silence / 8 / kMillisecond)));
  const Envelope about{Kind::ready, session.job(), session.epoch, static_cast<std::uint16_t>(worker), protocol_};
  answer(member.address, Kind::ready, about, text.bytes, out);
}

void Gate::probe(Address from, const Envelope& envelope, Bytes packet, Time now, Wire& out) {
  Reader text(body_of(packet));
  const std::uint64_t query = text.take<std::uint64_t>(), nonce = text.take<std::uint64_t>();
  const std::uint8_t leaving = text.take<std::uint8_t>();
  const std::string words = text.take_text(kMostWords);
  if (text.broken || packet.size() != kHeader + kAsking || leaving > 2 || !text.at_padding()) {
    return count(Count::malformed);
  }
  Session* session = session_of(envelope.job);
  if (session != nullptr && (session->epoch != envelope.epoch || envelope.worker >= session->workers())) session = nullptr;
  if (session != nullptr) {
    Member& member = session->members[envelope.worker];
    if (!member.taken || !(member.address == from) || member.nonce != nonce) return count(Count::unknown_sender);
    member.heard = now;
    if (leaving == 2) {
      close(*session, "worker " + std::to_string(envelope.worker) + " gave up: " + words, now, out);
      session = nullptr;
    } else if (leaving == 1 && !session->open) {
      member = {};
    } else if (leaving == 1) {
      member.left = true;
      if (session->all_left()) {
        close(*session, "all workers left", now, out);
        session = nullptr;
      }
    }
  }
  Writer reply;
  reply.put(query);
  if (session == nullptr) {
    std::string why;
    if (const Tombstone* const found = tombstones_.find(envelope.job, envelope.epoch)) {
      why = "job " + std::to_string(envelope.job) + " has ended: " + found->why;
    }
    reply.put(std::uint8_t{0}).put(std::string_view(why).substr(0, kMostWords));
  } else {
    reply.put(static_cast<std::uint8_t>(session->open ? 2 : 1)).put(std::string_view());
    std::vector<bool> awaited(session->workers());
    if (session->open) {
      for (const int each : switch_->waits_for(session->job())) awaited.at(static_cast<std::size_t>(each)) = true;
    }
    for (std::size_t at = 0; at < session->workers(); ++at) {
      if (reply.bytes.size() + 5 > kAsking) break;
      const Member& each = session->members[at];
      const Time silent = std::min<Time>((now - each.heard) / kMillisecond, 0xFFFFFFFF);
      reply.put(static_cast<std::uint8_t>((each.taken ? 1 : 0) | (each.left ? 2 : 0) | (awaited[at] ? 4 : 0)));
      reply.put(static_cast<std::uint32_t>(each.taken ? silent : 0));
    }
  }
  answer(from, Kind::state, envelope, reply.bytes, out);
}

void Gate::status(Address from, const Envelope& envelope, Bytes packet, Wire& out) {
  if (packet.size() != kHeader + kAskingStatus) return count(Count::malformed);
  Reader asked(body_of(packet));
  std::string words = "{\"jobs\":" + std::to_string(jobs()) + ",\"slots_in_use\":" + std::to_string(slots_in_use());
  const auto counts = [&](const char* name, const aggregation::Counters& all) {
    words += std::string(",\"") + name + "\":{";
    bool first = true;
    for (std::size_t at = 0; at < aggregation::kCounts; ++at) {
      if (all.values[at] == 0) continue;
      words += std::string(first ? "\"" : ",\"") + std::string(aggregation::kCountNames[at]) +
               "\":" + std::to_string(all.values[at]);
      first = false;
    }
    words += "}";
  };
  counts("gate", counters_);
  counts("protocol", protocol_counters());
  Writer reply;
  reply.put(asked.take<std::uint64_t>()).put(words + "}");
  if (reply.bytes.size() <= kAskingStatus) answer(from, Kind::report, envelope, reply.bytes, out);
}

void Gate::from_above(Bytes packet, const Envelope& envelope, Time now, Wire& out) {
  Session* session = session_of(envelope.job);
  if (session == nullptr || !session->uplink) return count(Count::unknown_sender);
  const Bytes body = session->uplink->receive(packet, now, out);
  if (!body.empty() && session->open) {
    Out box(*this, out);
    switch_->receive(session->first + static_cast<Endpoint>(session->workers()), body, now, box);
  } else if (session->uplink->ready() && !session->open) {
    session->uplink->busy(true, now);
    const bool all = session->all_taken();
    if (all) open(*session, now, out);
    else close(*session, "its workers went away before it began", now, out);
  }
}

void Gate::close(Session& session, const std::string& why, Time now, Wire& out) {
  const bool good = session.all_left();
  if (session.uplink) session.uplink->leave(good ? "" : why, now, out);
  if (session.open) {
    switch_->close(session.job());
    if (server_) server_->close(session.job());
    const std::size_t length = session.workers() + 2;
    for (std::size_t at = 0; at < length; ++at) routes_[static_cast<std::size_t>(session.first) + at] = {};
    free_[length].push_back(session.first);
    say(session.name() + " ends: " + why);
    tombstones_.put(session.job(), {session.epoch, why});
  }
  last_ = nullptr;
  sessions_.erase(session.job());
}

Time Gate::deadline() const {
  Time first = std::min(switch_->deadline(), server_ ? server_->deadline() : kNever);
  if (!sessions_.empty()) first = std::min(first, sweep_ + kSweep);
  return first;
}

void Gate::wake(Time now, Wire& out) {
  Out box(*this, out);
  if (now >= switch_->deadline()) switch_->wake(now, box);
  if (server_ && now >= server_->deadline()) server_->wake(now, box);
  if (!inside_.empty()) deliver(now, out);
  if (now < sweep_ + kSweep) return;
  sweep_ = now;
  std::vector<std::pair<Session*, std::string>> over;
  for (const auto& each : sessions_) {
    Session& session = *each.second;
    std::string why;
    if (session.uplink) {
      session.uplink->wake(now, out);
      if (!session.uplink->failure().empty()) why = "above this switch, " + session.uplink->failure();
    }
    for (std::size_t at = 0; at < session.workers() && why.empty(); ++at) {
      Member& member = session.members[at];
      if (!session.open && member.taken && now - member.heard > kPendingSilence) member = {};
      if (session.open && !member.left && now - member.heard > settings_.silence) {
        why = "worker " + std::to_string(at) + " has been silent for " +
              std::to_string((now - member.heard) / kSecond) + " s";
      }
    }
    const bool nobody = std::ranges::none_of(session.members, &Member::taken);
    if (why.empty() && nobody) why = "its workers went away before it began";
    if (!why.empty()) over.emplace_back(&session, why);
  }
  for (const auto& [session, why] : over) close(*session, why, now, out);
}

}  // namespace coppice::udp
