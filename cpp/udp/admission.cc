// Admission to a job: whose questions a switch answers, what it objects to, and who joins.
#include <algorithm>

#include "udp/gate.h"

namespace coppice::udp {

using aggregation::Count;

namespace {

constexpr Time kCookieLife = 10 * kSecond;

}  // namespace

// Whether a question is answered: its host asks no more than it may, and knows the secret.
bool Gate::may_ask(Address from, const Envelope& envelope, Bytes packet, Time now) {
  const std::uint8_t host[4] = {static_cast<std::uint8_t>(from.host >> 24), static_cast<std::uint8_t>(from.host >> 16),
                                static_cast<std::uint8_t>(from.host >> 8), static_cast<std::uint8_t>(from.host)};
  if (!hosts_[siphash(cookies_, host) % hosts_.size()].spend(settings_.most_control_per_second, now)) {
    count(Count::over_quota);
    return false;
  }
  if (sealed_with(packet, control_)) return true;
  count(Count::bad_tag);
  // The others are told, since they would wait for a worker that seems not to come.
  Session* const session = envelope.kind == Kind::join ? session_of(envelope.job) : nullptr;
  if (session != nullptr && envelope.epoch == session->epoch && envelope.worker < session->workers()) {
    session->members[envelope.worker].forged = true;
  }
  return false;
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
  if (const Tombstone* const found = tombstones_.find(envelope.job, envelope.epoch)) {
    count(Count::bad_epoch);
    return "epoch " + std::to_string(envelope.epoch) + " of job " + std::to_string(envelope.job) + " is over (" +
           found->why + "): join with an epoch above " + std::to_string(found->epoch);
  }
  const auto quota = [&](const std::string& words) {
    count(Count::over_quota);
    return words;
  };
  if (settings_.workers != 0 && wanted.member_count() != settings_.workers) {
    return quota("the switch serves jobs of " + std::to_string(settings_.workers) + " workers, found " +
                 std::to_string(wanted.member_count()));
  }
  if (envelope.worker >= wanted.member_count()) {
    count(Count::out_of_range);
    return "expected a worker of 0 to " + std::to_string(wanted.member_count() - 1) + ", found " + std::to_string(envelope.worker);
  }
  if (wanted.threads > settings_.threads || wanted.thread != settings_.thread) {
    return quota("the switch has " + std::to_string(settings_.threads) + " threads and this is thread " +
                 std::to_string(settings_.thread) + ", found thread " + std::to_string(wanted.thread) + " of " +
                 std::to_string(wanted.threads));
  }
  if (job.slots > settings_.most_slots) {
    return quota("a job may have " + std::to_string(settings_.most_slots) + " slots, found " + std::to_string(job.slots));
  }
  const Session* session = session_of(envelope.job);
  if (session != nullptr && envelope.epoch < session->epoch) {
    count(Count::bad_epoch);
    return "job " + std::to_string(envelope.job) + " is in epoch " + std::to_string(session->epoch) + ", found epoch " +
           std::to_string(envelope.epoch);
  }
  if (session != nullptr && envelope.epoch == session->epoch) {
    if (const std::string words = difference(session->wanted, wanted); !words.empty()) return words;
    const Member& member = session->members[envelope.worker];
    if (!member.taken) return {};
    count(Count::unknown_sender);
    return "worker " + std::to_string(envelope.worker) + " of " + session->name() + " has joined already, from " +
           member.address.text();
  }
  if (session == nullptr && static_cast<int>(sessions_.size()) >= settings_.most_jobs) {
    return quota("the switch serves " + std::to_string(settings_.most_jobs) + " jobs already");
  }
  const auto pending = std::count_if(sessions_.begin(), sessions_.end(), [&](const auto& each) {
    return !each.second->open && each.second->host == from.host;
  });
  if (pending >= settings_.most_pending) {
    return quota(std::to_string(pending) + " jobs of this host wait for workers already");
  }
  return {};
}

void Gate::join(Address from, const Envelope& envelope, Bytes packet, Time now, Wire& out) {
  const std::optional<Join> wanted = decoded(body_of(packet), envelope.job);
  if (!wanted) return count(Count::malformed);
  Session* session = session_of(envelope.job);
  const auto place = [&]() -> Member& { return session->members[envelope.worker]; };
  const bool again = session != nullptr && envelope.epoch == session->epoch && envelope.worker < session->workers() &&
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
    session = session_of(envelope.job);
    if (session != nullptr && envelope.epoch > session->epoch) {
      close(*session, "epoch " + std::to_string(envelope.epoch) + " replaced it", now, out);
      session = nullptr;
    }
    if (session == nullptr) {
      auto made = std::make_unique<Session>();
      made->wanted = *wanted;
      made->epoch = envelope.epoch;
      made->members.resize(static_cast<std::size_t>(wanted->member_count()));
      made->host = from.host;
      session = made.get();
      sessions_[envelope.job] = std::move(made);
    }
    place() = {from, wanted->nonce, true, false, now, {}};
    if (session->all_taken()) {
      return all_joined(*session, now, out);
    }
  }
  place().heard = now;
  if (session->open) return tell_ready(*session, envelope.worker, out);
  Writer text;
  text.put(wanted->nonce);
  for (const Member& each : session->members) text.put(static_cast<std::uint8_t>(each.taken ? 1 : each.forged ? 2 : 0));
  answer(from, Kind::waiting, envelope, text.bytes, out);
}

}  // namespace coppice::udp
