#include "udp/client.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

namespace coppice::udp {

using aggregation::Endpoint;

namespace {

constexpr Time kLongestWait = 20 * kMillisecond;  // so that Ctrl-C is heard soon
constexpr Time kGoodbye = 200 * kMillisecond;
constexpr Endpoint kAbove = 0;

std::string seconds(Time time) {
  char words[32];
  std::snprintf(words, sizeof words, "%g s", static_cast<double>(time) / 1e9);
  return words;
}

}  // namespace

struct Client::Lane {
  // What the machine sends is sealed on its way into the batch.
  struct Out final : aggregation::Outbox {
    Out(Member& its_member, Batch& its_batch) : member(its_member), batch(its_batch) {}
    using Outbox::send;
    void send(std::span<const Endpoint> to, Bytes packet) override {
      for (std::size_t at = 0; at < to.size(); ++at) member.send(packet, batch);
    }
    Member& member;
    Batch& batch;
  };

  Lane(MemberSettings settings, Address above)
      : socket(Address{}), member(std::move(settings)), intake(socket), batch(socket, true), out(member, batch) {
    socket.connect(above);
  }

  // What has come within `wait`, and what is due.
  void turn(Time wait) {
    bool unreachable = false;
    const Time before = now();
    if (wait > 0) {
      const Time due = std::min(member.deadline(), worker ? worker->deadline() : aggregation::kNever);
      wait = std::clamp<Time>(due - before, kMillisecond / 10, wait);
    }
    const std::vector<Received>& packets = intake.batch(wait, unreachable);
    const Time time = now();
    for (const Received& each : packets) {
      const Bytes body = member.receive(each.packet, time, batch);
      if (!body.empty() && worker) worker->receive(kAbove, body, time, out);
    }
    if (worker && time >= worker->deadline()) worker->wake(time, out);
    member.wake(time, batch);
    batch.flush(unreachable);
    if (unreachable) member.unreachable(time);
  }

  Socket socket;
  Member member;
  Intake intake;
  Batch batch;
  Out out;
  std::unique_ptr<aggregation::Worker> worker;
  std::string failure;
};

Client::Client(ClientSettings settings) : settings_(std::move(settings)) {
  const Address first = resolved(settings_.host, settings_.port);
  if (settings_.lanes < 1 || first.port + settings_.lanes - 1 > 65535) {
    throw std::invalid_argument("expected `threads` of 1 or more, and ports up to 65535, found " +
                                std::to_string(settings_.lanes) + " from port " + std::to_string(first.port));
  }
  const aggregation::Job& job = settings_.member.join.job;
  const int seats = settings_.member.join.seats();
  if (settings_.member.worker < 0 || settings_.member.worker >= seats || seats > job.workers) {
    throw std::invalid_argument("expected a worker of 0 to " + std::to_string(seats - 1) + " at the switch, found " +
                                std::to_string(settings_.member.worker));
  }
  for (int at = 0; at < settings_.lanes; ++at) {
    MemberSettings own = settings_.member;
    own.above = {first.host, static_cast<std::uint16_t>(first.port + at)};
    own.join.lanes = settings_.lanes;
    own.join.lane = at;
    lanes_.push_back(std::make_unique<Lane>(own, own.above));
    lanes_.back()->worker = settings_.make_worker(job, settings_.index, kAbove);
  }
}

Client::~Client() { close(); }

void Client::fail(const std::string& why) {
  failure_ = why;
  close(why);
  throw Failed(why);
}

void Client::join(Time timeout, const StopFlag& stop) {
  if (joined_) return;
  const Time until = now() + timeout;
  for (const auto& lane : lanes_) {
    bool unreachable = false;
    lane->member.start(now(), lane->batch);
    lane->batch.flush(unreachable);
  }
  for (const auto& lane : lanes_) {
    while (!lane->member.ready()) {
      for (const auto& each : lanes_) each->turn(each == lane ? kLongestWait : 0);
      for (const auto& each : lanes_) {
        if (!each->member.failure().empty()) fail(each->member.failure());
      }
      if (stop && stop()) {
        close("it was interrupted");
        throw Cancelled{};
      }
      if (now() > until) {
        const std::string missing = lane->member.missing();
        fail("after " + seconds(timeout) + ", " + (missing.empty() ? "the job has not begun" : missing));
      }
    }
  }
  joined_ = true;
  beating_ = std::thread([this] { beat(); });
}

void Client::beat() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::nanoseconds(lanes_.front()->member.beat_every()), [&] { return ending_; })) {
    for (const auto& lane : lanes_) {
      const std::vector<std::uint8_t>& packet = lane->member.beat();
      (void)::send(lane->socket.descriptor(), packet.data(), packet.size(), MSG_DONTWAIT);
    }
  }
}

void Client::reduce(Lane& lane, Time until, const StopFlag& stop) {
  while (!lane.worker->done()) {
    lane.turn(kLongestWait);
    if (lane.worker->done()) return;
    lane.failure = !lane.member.failure().empty() ? lane.member.failure() : lane.worker->failure();
    if (!lane.failure.empty()) return;
    poll(stop);
    if (now() > until) {
      const std::string missing = lane.member.missing();
      lane.failure = missing.empty() ? "the sum is not complete" : missing;
      return;
    }
  }
}

void Client::all_reduce(const void* input, void* output, std::size_t count, Time timeout, const StopFlag& stop) {
  if (!failure_.empty()) throw Failed(failure_);
  if (!joined_ || closed_) throw std::invalid_argument("expected a worker that has joined and is not closed");
  if (count == 0) return;
  const Time until = now() + timeout;
  const std::size_t values = static_cast<std::size_t>(settings_.member.join.job.values);
  const std::size_t chunks = (count + values - 1) / values, lanes = lanes_.size();
  std::vector<Lane*> parts;
  for (std::size_t at = 0; at < lanes; ++at) {
    const std::size_t first = std::min(count, chunks * at / lanes * values);
    const std::size_t last = std::min(count, chunks * (at + 1) / lanes * values);
    if (first == last) continue;
    Lane& lane = *lanes_[at];
    bool unreachable = false;
    const Time time = now();
    lane.member.busy(true, time);
    lane.worker->begin(static_cast<const std::uint8_t*>(input) + 4 * first, static_cast<std::uint8_t*>(output) + 4 * first,
                       last - first, time, lane.out);
    lane.batch.flush(unreachable);
    parts.push_back(&lane);
  }
  std::atomic<bool> cancelled{false};
  const StopFlag told = [&] { return cancelled.load(std::memory_order_relaxed); };
  std::vector<std::thread> others;
  for (std::size_t at = 1; at < parts.size(); ++at) {
    others.emplace_back([&, at] {
      try {
        reduce(*parts[at], until, told);
      } catch (const Cancelled&) {
        parts[at]->failure = "it was interrupted";
      }
      if (!parts[at]->failure.empty()) cancelled = true;
    });
  }
  bool interrupted = false;
  try {
    reduce(*parts[0], until, [&] { return (interrupted = stop && stop()) || cancelled; });
  } catch (const Cancelled&) {
  }
  if (interrupted || !parts[0]->failure.empty()) cancelled = true;
  for (std::thread& each : others) each.join();
  for (Lane* lane : parts) lane->member.busy(false, now());
  if (interrupted) {
    failure_ = "it was interrupted";
    close(failure_);
    throw Cancelled{};
  }
  for (const Lane* lane : parts) {
    if (!lane->failure.empty() && lane->failure != "it was interrupted") fail(lane->failure);
  }
}

void Client::close(const std::string& why) {
  if (closed_) return;
  closed_ = true;
  if (beating_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    beating_.join();
  }
  const Time until = now() + kGoodbye;
  const auto all_left = [&] {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->member.left(); });
  };
  bool unreachable = false;
  for (Time next = 0; !unreachable && !all_left() && now() < until;) {
    for (const auto& lane : lanes_) {
      if (now() >= next) lane->member.leave(why, now(), lane->batch);
      lane->batch.flush(unreachable);
      const Time time = now();
      for (const Received& each : lane->intake.batch(10 * kMillisecond, unreachable)) {
        lane->member.receive(each.packet, time, lane->batch);
      }
    }
    if (now() >= next) next = now() + 40 * kMillisecond;
  }
}

aggregation::Counters Client::counters() const {
  aggregation::Counters all;
  for (const auto& lane : lanes_) {
    for (std::size_t at = 0; at < aggregation::kCounts; ++at) {
      all.values[at] += lane->member.counters().values[at];
      if (lane->worker) all.values[at] += lane->worker->counters().values[at];
    }
  }
  return all;
}

}  // namespace coppice::udp
