#include "udp/connection.h"

#include <algorithm>
#include <cstdio>
#include <random>

namespace coppice::udp {

using aggregation::Count;
using aggregation::kNever;

namespace {

constexpr Time kAskAgain = 50 * kMillisecond;
constexpr Time kProbeAfter = 100 * kMillisecond;
constexpr Time kGoneAfter = kSecond;       // where the system says that nothing listens
constexpr Time kDeserted = 2 * kSecond;    // no progress although a worker has left
// A switch does not answer those whose secret is not its own.
constexpr const char* kUnanswered = ": it is out of reach, or its secret is not this worker's";

std::string seconds(Time time) {
  char words[32];
  std::snprintf(words, sizeof words, "%.1f s", static_cast<double>(time) / 1e9);
  return words;
}

}  // namespace

std::uint64_t nonce_from(std::uint64_t seed) {
  if (seed != 0) {
    const std::uint8_t nothing[1] = {0};
    return siphash(Key{seed, 1}, nothing) | 1;
  }
  std::random_device source;
  return (static_cast<std::uint64_t>(source()) << 32 | source()) | 1;
}

Connection::Connection(ConnectionSettings settings)
    : settings_(std::move(settings)), control_(control_key(master_key(settings_.secret))),
      protocol_(hash_of(settings_.join.protocol)), peers_(static_cast<std::size_t>(settings_.join.member_count())) {
  settings_.join.nonce = nonce_from(settings_.seed);
  settings_.join.cookie = 0;
  query_ = settings_.join.nonce;
  (void)encoded(settings_.join);  // fits
}

void Connection::control(Kind kind, Bytes body, Wire& out) {
  std::uint8_t* packet = out.room(kHeader + body.size());
  std::copy(body.begin(), body.end(), packet + kHeader);
  seal(packet, body.size(),
       {kind, settings_.join.job.id, settings_.epoch, static_cast<std::uint16_t>(settings_.worker), protocol_}, control_);
  out.send({&settings_.above, 1});
}

void Connection::ask_to_join(Time now, Wire& out) {
  control(Kind::join, encoded(settings_.join), out);
  next_ = now + kAskAgain;
}

void Connection::start(Time now, Wire& out) {
  started_ = true;
  heard_ = progress_ = now;
  ask_to_join(now, out);
}

void Connection::probe(Time now, Wire& out, std::uint8_t leaving, const std::string& why) {
  Writer text;
  text.put(++query_).put(settings_.join.nonce).put(leaving).put(std::string_view(why).substr(0, kMostWords));
  text.bytes.resize(kAsking);
  control(Kind::probe, text.bytes, out);
  next_ = now + kProbeAfter;
}

void Connection::send(Bytes body, Wire& out) {
  std::uint8_t* packet = out.room(kHeader + body.size());
  std::copy(body.begin(), body.end(), packet + kHeader);
  seal(packet, body.size(),
       {Kind::data, settings_.join.job.id, settings_.epoch, static_cast<std::uint16_t>(settings_.worker), protocol_}, job_);
  out.send({&settings_.above, 1});
  ++counters_[Count::sent];
}

Bytes Connection::receive(Bytes packet, Time now, Wire& out) {
  ++counters_[Count::received];
  const auto refused = [&](Count why) {
    ++counters_[why];
    return Bytes{};
  };
  const std::optional<Envelope> envelope = opened(packet);
  if (!envelope || envelope->protocol != protocol_) return refused(Count::malformed);
  if (envelope->job != settings_.join.job.id) return refused(Count::unknown_sender);
  if (envelope->epoch != settings_.epoch) return refused(Count::bad_epoch);
  if (envelope->kind == Kind::result) {
    if (!ready_ || !sealed_with(packet, job_)) return refused(Count::bad_tag);
    heard_ = progress_ = now;
    unreachable_ = false;
    if (busy_) next_ = now + kProbeAfter;
    return body_of(packet);
  }
  if (envelope->worker != settings_.worker) return refused(Count::out_of_range);
  if (!sealed_with(packet, control_)) return refused(Count::bad_tag);
  answered_ = true;
  Reader text(body_of(packet));
  const std::uint64_t about = text.take<std::uint64_t>();
  if (envelope->kind == Kind::state) {
    if (about != query_) return refused(Count::stale);
    heard_ = now;
    unreachable_ = false;
    understand_state(text, now);
    return {};
  }
  if (about != settings_.join.nonce || !failure_.empty()) return refused(Count::stale);
  heard_ = now;
  unreachable_ = false;
  if (ready_) return {};
  switch (envelope->kind) {
    case Kind::challenge:
      settings_.join.cookie = text.take<std::uint64_t>();
      ask_to_join(now, out);
      break;
    case Kind::waiting:
      for (Peer& each : peers_) {
        const std::uint8_t said = text.take<std::uint8_t>();
        each.joined = said == 1;
        each.locked_out = said == 2;
      }
      break;
    case Kind::ready: {
      const std::uint64_t nonce = text.take<std::uint64_t>();
      beat_every_ = static_cast<Time>(text.take<std::uint32_t>()) * kMillisecond;
      if (text.broken || beat_every_ == 0) return refused(Count::malformed);
      job_ = job_key(master_key(settings_.secret), settings_.join.job.id, settings_.epoch, nonce);
      beat_.resize(kHeader);
      seal(beat_.data(), 0,
           {Kind::beat, settings_.join.job.id, settings_.epoch, static_cast<std::uint16_t>(settings_.worker), protocol_},
           job_);
      for (Peer& each : peers_) each.joined = true;
      ready_ = true;
      next_ = kNever;
      break;
    }
    case Kind::refused:
      failure_ = text.take_text(kMostWords);
      if (failure_.empty()) failure_ = "the switch refused the job";
      break;
    default:
      return refused(Count::malformed);
  }
  return {};
}

void Connection::understand_state(Reader& text, Time now) {
  const std::uint8_t known = text.take<std::uint8_t>();
  const std::string words = text.take_text(kMostWords);
  if (left_ || failure_.empty() == false) return;
  if (known == 0) {
    left_ = true;
    failure_ = words.empty() ? "the switch at " + settings_.above.text() + " does not know job " +
                                   std::to_string(settings_.join.job.id) + " in epoch " +
                                   std::to_string(settings_.epoch) + ": it was started anew, so join again"
                             : words;
    return;
  }
  bool deserted = false;
  for (Peer& each : peers_) {
    const std::uint8_t flags = text.take<std::uint8_t>();
    const Time silent = static_cast<Time>(text.take<std::uint32_t>()) * kMillisecond;
    if (text.broken) return;
    each = {(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, silent, each.locked_out};
    if (each.left && &each != &peers_[static_cast<std::size_t>(settings_.worker)]) deserted = true;
    if (each.left && &each == &peers_[static_cast<std::size_t>(settings_.worker)]) left_ = true;
  }
  if (busy_ && deserted && now - progress_ > kDeserted) failure_ = missing();
}

std::string Connection::missing() const {
  if (!answered_) return "the switch at " + settings_.above.text() + " has not answered" + kUnanswered;
  std::string words;
  for (std::size_t at = 0; at < peers_.size(); ++at) {
    const Peer& each = peers_[at];
    if (static_cast<int>(at) == settings_.worker) continue;
    std::string own;
    if (!each.joined) own = each.locked_out ? " asks with another secret than the switch's" : " has not joined";
    else if (each.left) own = " has left the job";
    else if (each.silent >= kSecond) own = " has been silent for " + seconds(each.silent);
    else if (each.awaited) own = " has not contributed";
    if (!own.empty()) words += (words.empty() ? "worker " : ", worker ") + std::to_string(at) + own;
  }
  return words;
}

void Connection::busy(bool is, Time now) {
  busy_ = is;
  heard_ = progress_ = now;
  unreachable_ = false;
  if (ready_) next_ = is ? now + kProbeAfter : kNever;
}

void Connection::unreachable(Time) { unreachable_ = true; }

void Connection::leave(const std::string& why, Time now, Wire& out) {
  if (started_ && !left_) probe(now, out, why.empty() ? 1 : 2, why);
}

Time Connection::deadline() const { return started_ && failure_.empty() ? next_ : kNever; }

void Connection::wake(Time now, Wire& out) {
  if (!started_ || now < next_ || !failure_.empty()) return;
  const bool gone = ready_ && unreachable_ && now - heard_ > std::min(kGoneAfter, settings_.silence);
  if (gone || now - heard_ > settings_.silence) {
    failure_ = unreachable_ ? "nothing listens at " + settings_.above.text() + ": start the switch there"
                            : "the switch at " + settings_.above.text() + " has not answered for " + seconds(now - heard_);
    if (!unreachable_ && !answered_) failure_ += kUnanswered;
    return;
  }
  if (!ready_) ask_to_join(now, out);
  else if (busy_) probe(now, out, 0, {});
}

}  // namespace coppice::udp
