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
constexpr Time kCookieLife = 10 * kSecond;
constexpr std::size_t kMostGraves = 1024;

}  // namespace

struct Gate::Life {
  Join wanted;
  std::uint32_t epoch = 0;
  std::uint64_t nonce = 0;
  Key key;
  bool open = false;
  std::vector<Seat> seats;
  Endpoint first = 0;
  std::unique_ptr<Member> uplink;
  std::uint32_t host = 0;  // of who joined first

  std::uint32_t job() const { return wanted.job.id; }
  std::size_t workers() const { return seats.size(); }
  std::string name() const { return "job " + std::to_string(job()) + ", epoch " + std::to_string(epoch); }
};

// What a machine sends, as sealed packets: to workers, to the switch above, or to the machine beside it.
class Gate::Out final : public aggregation::Outbox {
 public:
  Out(Gate& gate, Wire& wire) : gate_(gate), wire_(wire) {}
  using Outbox::send;
  void send(std::span<const Endpoint> to, Bytes packet) override {
    gate_.addresses_.clear();
    Life* life = nullptr;
    for (const Endpoint each : to) {
      if (each < 0 || static_cast<std::size_t>(each) >= gate_.routes_.size()) continue;
      const Route route = gate_.routes_[static_cast<std::size_t>(each)];
      if (route.life == nullptr) continue;
      if (static_cast<std::size_t>(route.worker) < route.life->workers()) {
        life = route.life;
        gate_.addresses_.push_back(life->seats[static_cast<std::size_t>(route.worker)].address);
      } else if (route.life->uplink) {
        route.life->uplink->send(packet, wire_);
      } else {
        gate_.inside_.emplace_back(each, std::vector<std::uint8_t>(packet.begin(), packet.end()));
      }
    }
    if (life == nullptr) return;
    std::uint8_t* room = wire_.room(kHeader + packet.size());
    std::copy(packet.begin(), packet.end(), room + kHeader);
    seal(room, packet.size(), {Kind::result, life->job(), life->epoch, kSwitch, gate_.protocol_}, life->key);
    wire_.send(gate_.addresses_);
  }

 private:
  Gate& gate_;
  Wire& wire_;
};

bool Gate::Bucket::spend(double per_second, Time now) {
  const double most = std::max(64.0, per_second / 10);
  if (tokens < 0) tokens = most, at = now;
  tokens = std::min(most, tokens + static_cast<double>(now - at) * 1e-9 * per_second);
  at = now;
  if (tokens < 1) return false;
  tokens -= 1;
  return true;
}

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

Gate::Life* Gate::life_of(std::uint32_t job) {
  if (last_ != nullptr && last_->job() == job) return last_;
  const auto found = lives_.find(job);
  return found == lives_.end() ? nullptr : last_ = found->second.get();
}

aggregation::Counters Gate::protocol_counters() const {
  aggregation::Counters all = switch_->counters();
  if (server_) {
    for (std::size_t at = 0; at < aggregation::kCounts; ++at) all.values[at] += server_->counters().values[at];
  }
  return all;
}

void Gate::receive(Address from, Bytes packet, Time now, Wire& out) {
  ++counters_[Count::received];
  const std::optional<Envelope> envelope = opened(packet);
  if (!envelope || envelope->protocol != protocol_) {
    ++counters_[Count::malformed];
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
        ++counters_[Count::malformed];
      }
  }
}

// Whether a question is answered: its host asks no more than it may, and knows the secret.
bool Gate::may_ask(Address from, const Envelope& envelope, Bytes packet, Time now) {
  const std::uint8_t host[4] = {static_cast<std::uint8_t>(from.host >> 24), static_cast<std::uint8_t>(from.host >> 16),
                                static_cast<std::uint8_t>(from.host >> 8), static_cast<std::uint8_t>(from.host)};
  if (!hosts_[siphash(cookies_, host) % hosts_.size()].spend(settings_.most_control_per_second, now)) {
    ++counters_[Count::over_quota];
    return false;
  }
  if (sealed_with(packet, control_)) return true;
  ++counters_[Count::bad_tag];
  // The others are told, since they would wait for a worker that seems not to come.
  Life* const life = envelope.kind == Kind::join ? life_of(envelope.job) : nullptr;
  if (life != nullptr && envelope.epoch == life->epoch && envelope.worker < life->workers()) {
    life->seats[envelope.worker].forged = true;
  }
  return false;
}

void Gate::from_member(Address from, const Envelope& envelope, Bytes packet, Time now, Wire& out) {
  Life* life = life_of(envelope.job);
  const auto refused = [&](Count why) { ++counters_[why]; };
  if (life == nullptr || !life->open) return refused(Count::stranger);
  if (envelope.epoch != life->epoch) return refused(Count::bad_epoch);
  if (envelope.worker >= life->workers()) return refused(Count::out_of_range);
  Seat& seat = life->seats[envelope.worker];
  if (!(seat.address == from) || seat.left) return refused(Count::stranger);
  if (settings_.most_per_second > 0 && !seat.packets.spend(settings_.most_per_second, now)) {
    return refused(Count::over_quota);
  }
  if (!sealed_with(packet, life->key)) return refused(Count::bad_tag);
  seat.heard = now;
  if (envelope.kind == Kind::beat) return;
  Out box(*this, out);
  switch_->receive(life->first + envelope.worker, body_of(packet), now, box);
  if (!inside_.empty()) deliver(now, out);
}

void Gate::deliver(Time now, Wire& out) {
  Out box(*this, out);
  while (!inside_.empty()) {
    const auto [to, packet] = std::move(inside_.front());
    inside_.pop_front();
    const Route route = routes_[static_cast<std::size_t>(to)];
    if (route.life == nullptr || !server_) continue;
    const Endpoint above = route.life->first + static_cast<Endpoint>(route.life->workers());
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

std::uint64_t Gate::cookie(Address from, const Envelope& envelope, std::uint64_t nonce, Time now, int ago) const {
  Writer text;
  text.put(from.number()).put(envelope.job).put(envelope.epoch).put(envelope.worker).put(nonce);
  text.put(static_cast<std::uint64_t>(now / kCookieLife - ago));
  return siphash(cookies_, text.bytes);
}

// Why a join cannot be, in words; nothing where it can.
std::string Gate::objection(Address from, const Envelope& envelope, const Join& wanted) {
  const aggregation::Job& job = wanted.job;
  const auto found = graves_.find(envelope.job);
  if (found != graves_.end() && envelope.epoch <= found->second.epoch) {
    ++counters_[Count::bad_epoch];
    return "epoch " + std::to_string(envelope.epoch) + " of job " + std::to_string(envelope.job) + " is over (" +
           found->second.why + "): join with an epoch above " + std::to_string(found->second.epoch);
  }
  const auto quota = [&](const std::string& words) {
    ++counters_[Count::over_quota];
    return words;
  };
  if (settings_.workers != 0 && wanted.seats() != settings_.workers) {
    return quota("the switch serves jobs of " + std::to_string(settings_.workers) + " workers, found " +
                 std::to_string(wanted.seats()));
  }
  if (envelope.worker >= wanted.seats()) {
    ++counters_[Count::out_of_range];
    return "expected a worker of 0 to " + std::to_string(wanted.seats() - 1) + ", found " + std::to_string(envelope.worker);
  }
  if (wanted.lanes > settings_.lanes || wanted.lane != settings_.lane) {
    return quota("the switch has " + std::to_string(settings_.lanes) + " lanes and this is lane " +
                 std::to_string(settings_.lane) + ", found lane " + std::to_string(wanted.lane) + " of " +
                 std::to_string(wanted.lanes));
  }
  if (job.slots > settings_.most_slots) {
    return quota("a job may have " + std::to_string(settings_.most_slots) + " slots, found " + std::to_string(job.slots));
  }
  const Life* life = life_of(envelope.job);
  if (life != nullptr && envelope.epoch < life->epoch) {
    ++counters_[Count::bad_epoch];
    return "job " + std::to_string(envelope.job) + " is in epoch " + std::to_string(life->epoch) + ", found epoch " +
           std::to_string(envelope.epoch);
  }
  if (life != nullptr && envelope.epoch == life->epoch) {
    if (const std::string words = difference(life->wanted, wanted); !words.empty()) return words;
    const Seat& seat = life->seats[envelope.worker];
    if (!seat.taken) return {};
    ++counters_[Count::stranger];
    return "worker " + std::to_string(envelope.worker) + " of " + life->name() + " has joined already, from " +
           seat.address.text();
  }
  if (life == nullptr && static_cast<int>(lives_.size()) >= settings_.most_jobs) {
    return quota("the switch serves " + std::to_string(settings_.most_jobs) + " jobs already");
  }
  const auto pending = std::count_if(lives_.begin(), lives_.end(), [&](const auto& each) {
    return !each.second->open && each.second->host == from.host;
  });
  if (pending >= settings_.most_pending) {
    return quota(std::to_string(pending) + " jobs of this host wait for workers already");
  }
  return {};
}

void Gate::join(Address from, const Envelope& envelope, Bytes packet, Time now, Wire& out) {
  const std::optional<Join> wanted = decoded(body_of(packet), envelope.job);
  if (!wanted) {
    ++counters_[Count::malformed];
    return;
  }
  Life* life = life_of(envelope.job);
  const auto place = [&]() -> Seat& { return life->seats[envelope.worker]; };
  const bool again = life != nullptr && envelope.epoch == life->epoch && envelope.worker < life->workers() &&
                     place().taken && place().address == from && place().nonce == wanted->nonce;
  if (!again) {
    const std::string why = objection(from, envelope, *wanted);
    if (!why.empty()) return refuse(from, envelope, wanted->nonce, why, out);
    const bool there = wanted->cookie == cookie(from, envelope, wanted->nonce, now, 0) ||
                       wanted->cookie == cookie(from, envelope, wanted->nonce, now, 1);
    if (!there) {
      Writer text;
      text.put(wanted->nonce).put(cookie(from, envelope, wanted->nonce, now, 0));
      return answer(from, Kind::challenge, envelope, text.bytes, out);
    }
    life = life_of(envelope.job);
    if (life != nullptr && envelope.epoch > life->epoch) {
      close(*life, "epoch " + std::to_string(envelope.epoch) + " replaced it", now, out);
      life = nullptr;
    }
    if (life == nullptr) {
      auto made = std::make_unique<Life>();
      made->wanted = *wanted;
      made->epoch = envelope.epoch;
      made->seats.resize(static_cast<std::size_t>(wanted->seats()));
      made->host = from.host;
      life = made.get();
      lives_[envelope.job] = std::move(made);
    }
    place() = {from, wanted->nonce, true, false, now, {}};
    if (std::all_of(life->seats.begin(), life->seats.end(), [](const Seat& each) { return each.taken; })) {
      return all_joined(*life, now, out);
    }
  }
  place().heard = now;
  if (life->open) return tell_ready(*life, envelope.worker, out);
  Writer text;
  text.put(wanted->nonce);
  for (const Seat& each : life->seats) text.put(static_cast<std::uint8_t>(each.taken ? 1 : each.forged ? 2 : 0));
  answer(from, Kind::waiting, envelope, text.bytes, out);
}

void Gate::all_joined(Life& life, Time now, Wire& out) {
  if (!settings_.parent) return open(life, now, out);
  MemberSettings above;
  above.join = life.wanted;
  above.join.members = settings_.parent->siblings;
  above.worker = settings_.parent->index;
  above.epoch = life.epoch;
  above.secret = settings_.secret;
  above.above = settings_.parent->address;
  above.seed = settings_.seed == 0 ? 0 : siphash(cookies_, body_of(Bytes(encoded(life.wanted))));
  life.uplink = std::make_unique<Member>(std::move(above));
  life.uplink->start(now, out);
}

void Gate::open(Life& life, Time now, Wire& out) {
  const std::size_t length = life.workers() + 2;  // above, and the switch itself
  std::vector<Endpoint>& old = free_[length];
  if (old.empty()) {
    life.first = static_cast<Endpoint>(routes_.size());
    routes_.resize(routes_.size() + length);
  } else {
    life.first = old.back();
    old.pop_back();
  }
  std::vector<Endpoint> children;
  for (std::size_t at = 0; at < length; ++at) {
    const Endpoint endpoint = life.first + static_cast<Endpoint>(at);
    routes_[static_cast<std::size_t>(endpoint)] = {&life, static_cast<int>(at)};
    if (at < life.workers()) children.push_back(endpoint);
  }
  const Endpoint above = life.first + static_cast<Endpoint>(life.workers());
  life.open = true;
  try {
    switch_->open(life.wanted.job, children, server_ || life.uplink ? above : aggregation::kNobody);
    if (server_) server_->open(life.wanted.job, children, above + 1);
  } catch (const std::invalid_argument& error) {
    const std::string why = "the switch cannot serve job " + std::to_string(life.job()) + ": " + error.what();
    ++counters_[Count::over_quota];
    for (std::size_t at = 0; at < life.workers(); ++at) {
      const Envelope about{Kind::refused, life.job(), life.epoch, static_cast<std::uint16_t>(at), protocol_};
      refuse(life.seats[at].address, about, life.seats[at].nonce, why, out);
    }
    return close(life, why, now, out);
  }
  const std::uint8_t count[1] = {0};
  nonces_ = siphash({nonces_, cookies_.second}, count);
  life.nonce = nonces_;
  life.key = job_key(master_, life.job(), life.epoch, life.nonce);
  for (Seat& each : life.seats) each.heard = now;
  for (std::size_t at = 0; at < life.workers(); ++at) tell_ready(life, at, out);
  say(life.name() + " begins with " + std::to_string(life.workers()) + " workers and " +
      std::to_string(life.wanted.job.slots) + " slots");
}

void Gate::tell_ready(const Life& life, std::size_t worker, Wire& out) {
  const Seat& seat = life.seats[worker];
  Writer text;
  text.put(seat.nonce).put(life.nonce);
  text.put(static_cast<std::uint32_t>(std::max<Time>(1, settings_.silence / 8 / kMillisecond)));
  const Envelope about{Kind::ready, life.job(), life.epoch, static_cast<std::uint16_t>(worker), protocol_};
  answer(seat.address, Kind::ready, about, text.bytes, out);
}

void Gate::probe(Address from, const Envelope& envelope, Bytes packet, Time now, Wire& out) {
  Reader text(body_of(packet));
  const std::uint64_t query = text.take<std::uint64_t>(), nonce = text.take<std::uint64_t>();
  const std::uint8_t leaving = text.take<std::uint8_t>();
  const std::string words = text.take_text(kMostWords);
  if (text.broken || packet.size() != kHeader + kAsking || leaving > 2 || !text.at_padding()) {
    ++counters_[Count::malformed];
    return;
  }
  Life* life = life_of(envelope.job);
  if (life != nullptr && (life->epoch != envelope.epoch || envelope.worker >= life->workers())) life = nullptr;
  if (life != nullptr) {
    Seat& seat = life->seats[envelope.worker];
    if (!seat.taken || !(seat.address == from) || seat.nonce != nonce) {
      ++counters_[Count::stranger];
      return;
    }
    seat.heard = now;
    if (leaving == 2) {
      close(*life, "worker " + std::to_string(envelope.worker) + " gave up: " + words, now, out);
      life = nullptr;
    } else if (leaving == 1 && !life->open) {
      seat = {};
    } else if (leaving == 1) {
      seat.left = true;
      if (std::all_of(life->seats.begin(), life->seats.end(), [](const Seat& each) { return each.left; })) {
        close(*life, "all workers left", now, out);
        life = nullptr;
      }
    }
  }
  Writer reply;
  reply.put(query);
  if (life == nullptr) {
    const auto found = graves_.find(envelope.job);
    std::string why;
    if (found != graves_.end() && envelope.epoch <= found->second.epoch) {
      why = "job " + std::to_string(envelope.job) + " has ended: " + found->second.why;
    }
    reply.put(std::uint8_t{0}).put(std::string_view(why).substr(0, kMostWords));
  } else {
    reply.put(static_cast<std::uint8_t>(life->open ? 2 : 1)).put(std::string_view());
    std::vector<bool> awaited(life->workers());
    if (life->open) {
      for (const int each : switch_->waits_for(life->job())) awaited.at(static_cast<std::size_t>(each)) = true;
    }
    for (std::size_t at = 0; at < life->workers(); ++at) {
      if (reply.bytes.size() + 5 > kAsking) break;
      const Seat& each = life->seats[at];
      const Time silent = std::min<Time>((now - each.heard) / kMillisecond, 0xFFFFFFFF);
      reply.put(static_cast<std::uint8_t>((each.taken ? 1 : 0) | (each.left ? 2 : 0) | (awaited[at] ? 4 : 0)));
      reply.put(static_cast<std::uint32_t>(each.taken ? silent : 0));
    }
  }
  answer(from, Kind::state, envelope, reply.bytes, out);
}

void Gate::status(Address from, const Envelope& envelope, Bytes packet, Wire& out) {
  if (packet.size() != kHeader + kAskingStatus) {
    ++counters_[Count::malformed];
    return;
  }
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
  Life* life = life_of(envelope.job);
  if (life == nullptr || !life->uplink) {
    ++counters_[Count::stranger];
    return;
  }
  const Bytes body = life->uplink->receive(packet, now, out);
  if (!body.empty() && life->open) {
    Out box(*this, out);
    switch_->receive(life->first + static_cast<Endpoint>(life->workers()), body, now, box);
  } else if (life->uplink->ready() && !life->open) {
    life->uplink->busy(true, now);
    const bool all = std::all_of(life->seats.begin(), life->seats.end(), [](const Seat& each) { return each.taken; });
    if (all) open(*life, now, out);
    else close(*life, "its workers went away before it began", now, out);
  }
}

void Gate::close(Life& life, const std::string& why, Time now, Wire& out) {
  const bool good = std::all_of(life.seats.begin(), life.seats.end(), [](const Seat& each) { return each.left; });
  if (life.uplink) life.uplink->leave(good ? "" : why, now, out);
  if (life.open) {
    switch_->close(life.job());
    if (server_) server_->close(life.job());
    const std::size_t length = life.workers() + 2;
    for (std::size_t at = 0; at < length; ++at) routes_[static_cast<std::size_t>(life.first) + at] = {};
    free_[length].push_back(life.first);
    say(life.name() + " ends: " + why);
    if (graves_.find(life.job()) == graves_.end()) graves_in_order_.push_back(life.job());
    graves_[life.job()] = {life.epoch, why};
    if (graves_in_order_.size() > kMostGraves) {
      graves_.erase(graves_in_order_.front());
      graves_in_order_.pop_front();
    }
  }
  last_ = nullptr;
  lives_.erase(life.job());
}

Time Gate::deadline() const {
  Time first = std::min(switch_->deadline(), server_ ? server_->deadline() : kNever);
  if (!lives_.empty()) first = std::min(first, sweep_ + kSweep);
  return first;
}

void Gate::wake(Time now, Wire& out) {
  Out box(*this, out);
  if (now >= switch_->deadline()) switch_->wake(now, box);
  if (server_ && now >= server_->deadline()) server_->wake(now, box);
  if (!inside_.empty()) deliver(now, out);
  if (now < sweep_ + kSweep) return;
  sweep_ = now;
  std::vector<std::pair<Life*, std::string>> over;
  for (const auto& each : lives_) {
    Life& life = *each.second;
    std::string why;
    if (life.uplink) {
      life.uplink->wake(now, out);
      if (!life.uplink->failure().empty()) why = "above this switch, " + life.uplink->failure();
    }
    for (std::size_t at = 0; at < life.workers() && why.empty(); ++at) {
      Seat& seat = life.seats[at];
      if (!life.open && seat.taken && now - seat.heard > kPendingSilence) seat = {};
      if (life.open && !seat.left && now - seat.heard > settings_.silence) {
        why = "worker " + std::to_string(at) + " has been silent for " +
              std::to_string((now - seat.heard) / kSecond) + " s";
      }
    }
    const bool nobody = std::none_of(life.seats.begin(), life.seats.end(), [](const Seat& seat) { return seat.taken; });
    if (why.empty() && nobody) why = "its workers went away before it began";
    if (!why.empty()) over.emplace_back(&life, why);
  }
  for (const auto& [life, why] : over) close(*life, why, now, out);
}

}  // namespace coppice::udp
