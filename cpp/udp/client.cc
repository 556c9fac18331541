#include "udp/client.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>

namespace coppice::udp {

using aggregation::Endpoint;

namespace {

constexpr Time kLongestWait = 20 * kMillisecond;  // so that Ctrl-C is heard soon
constexpr Time kGoodbye = 200 * kMillisecond;
constexpr Endpoint kAbove = 0;

std::string given_seconds(Time time) {
  char words[32];
  std::snprintf(words, sizeof words, "%g s", static_cast<double>(time) / 1e9);
  return words;
}

}  // namespace

// The way to one thread of the switch.
struct Client::Port {
  // What the machine sends is sealed on its way into the batch.
  struct Out final : aggregation::Outbox {
    Out(Connection& its_connection, Batch& its_batch) : connection(its_connection), batch(its_batch) {}
    using Outbox::send;
    void send(std::span<const Endpoint> to, Bytes packet) override {
      for (std::size_t at = 0; at < to.size(); ++at) connection.send(packet, batch);
    }
    Connection& connection;
    Batch& batch;
  };

  Port(ConnectionSettings settings, Address above)
      : socket(Address{}), connection(std::move(settings)), intake(socket), batch(socket, true), out(connection, batch) {
    socket.connect(above);
  }

  // What has come within `wait`, and what is due.
  void advance(Time wait) {
    bool unreachable = false;
    const Time before = now();
    if (wait > 0) {
      const Time due = std::min(connection.deadline(), worker ? worker->deadline() : aggregation::kNever);
      wait = std::clamp<Time>(due - before, kMillisecond / 10, wait);
    }
    const std::vector<Received>& packets = intake.batch(wait, unreachable);
    const Time time = now();
    for (const Received& each : packets) {
      const Bytes body = connection.receive(each.packet, time, batch);
      if (!body.empty() && worker) worker->receive(kAbove, body, time, out);
    }
    if (worker && time >= worker->deadline()) worker->wake(time, out);
    connection.wake(time, batch);
    batch.flush(unreachable);
    if (unreachable) connection.unreachable(time);
  }

  Socket socket;
  Connection connection;
  Intake intake;
  Batch batch;
  Out out;
  std::unique_ptr<aggregation::Worker> worker;
  std::string failure;
};

Client::Client(ClientSettings settings) : settings_(std::move(settings)) {
  const Address first = resolved(settings_.host, settings_.port);
  if (settings_.threads < 1 || first.port + settings_.threads - 1 > 65535) {
    throw std::invalid_argument("expected `threads` of 1 or more, and ports up to 65535, found " +
                                std::to_string(settings_.threads) + " from port " + std::to_string(first.port));
  }
  const aggregation::Job& job = settings_.connection.join.job;
  const int members = settings_.connection.join.member_count();
  if (settings_.connection.worker < 0 || settings_.connection.worker >= members || members > job.workers) {
    throw std::invalid_argument("expected a worker of 0 to " + std::to_string(members - 1) + " at the switch, found " +
                                std::to_string(settings_.connection.worker));
  }
  for (int at = 0; at < settings_.threads; ++at) {
    ConnectionSettings own = settings_.connection;
    own.above = {first.host, static_cast<std::uint16_t>(first.port + at)};
    own.join.threads = settings_.threads;
    own.join.thread = at;
    ports_.push_back(std::make_unique<Port>(own, own.above));
    ports_.back()->worker = settings_.make_worker(job, settings_.index, kAbove);
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
  for (const auto& port : ports_) {
    bool unreachable = false;
    port->connection.start(now(), port->batch);
    port->batch.flush(unreachable);
  }
  for (const auto& port : ports_) {
    while (!port->connection.ready()) {
      for (const auto& each : ports_) each->advance(each == port ? kLongestWait : 0);
      for (const auto& each : ports_) {
        if (!each->connection.failure().empty()) fail(each->connection.failure());
      }
      if (stop && stop()) {
        close("it was interrupted");
        throw Cancelled{};
      }
      if (now() > until) {
        const std::string missing = port->connection.missing();
        fail("after " + given_seconds(timeout) + ", " + (missing.empty() ? "the job has not begun" : missing));
      }
    }
  }
  joined_ = true;
  beating_ = std::thread([this] { beat(); });
}

void Client::beat() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::nanoseconds(ports_.front()->connection.beat_every()), [&] { return ending_; })) {
    for (const auto& port : ports_) {
      const std::vector<std::uint8_t>& packet = port->connection.beat();
      (void)::send(port->socket.descriptor(), packet.data(), packet.size(), MSG_DONTWAIT);
    }
  }
}

void Client::reduce(Port& port, Time until, const StopFlag& stop) {
  while (!port.worker->done()) {
    port.advance(kLongestWait);
    if (port.worker->done()) return;
    port.failure = !port.connection.failure().empty() ? port.connection.failure() : port.worker->failure();
    if (!port.failure.empty()) return;
    poll(stop);
    if (now() > until) {
      const std::string missing = port.connection.missing();
      port.failure = missing.empty() ? "the sum is not complete" : missing;
      return;
    }
  }
}

void Client::all_reduce(const void* input, void* output, std::size_t count, Time timeout, const StopFlag& stop) {
  if (!failure_.empty()) throw Failed(failure_);
  if (!joined_ || closed_) throw std::invalid_argument("expected a worker that has joined and is not closed");
  if (count == 0) return;
  const Time until = now() + timeout;
  const std::size_t values = static_cast<std::size_t>(settings_.connection.join.job.values);
  const std::size_t chunks = (count + values - 1) / values, threads = ports_.size();
  std::vector<Port*> parts;
  for (std::size_t at = 0; at < threads; ++at) {
    const std::size_t first = std::min(count, chunks * at / threads * values);
    const std::size_t last = std::min(count, chunks * (at + 1) / threads * values);
    if (first == last) continue;
    Port& port = *ports_[at];
    bool unreachable = false;
    const Time time = now();
    port.connection.busy(true, time);
    port.worker->begin(static_cast<const std::uint8_t*>(input) + 4 * first, static_cast<std::uint8_t*>(output) + 4 * first,
                       last - first, time, port.out);
    port.batch.flush(unreachable);
    parts.push_back(&port);
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
  for (Port* port : parts) port->connection.busy(false, now());
  if (interrupted) {
    failure_ = "it was interrupted";
    close(failure_);
    throw Cancelled{};
  }
  for (const Port* port : parts) {
    if (!port->failure.empty() && port->failure != "it was interrupted") fail(port->failure);
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
    return std::all_of(ports_.begin(), ports_.end(), [](const auto& port) { return port->connection.left(); });
  };
  bool unreachable = false;
  for (Time next = 0; !unreachable && !all_left() && now() < until;) {
    for (const auto& port : ports_) {
      if (now() >= next) port->connection.leave(why, now(), port->batch);
      port->batch.flush(unreachable);
      const Time time = now();
      for (const Received& each : port->intake.batch(10 * kMillisecond, unreachable)) {
        port->connection.receive(each.packet, time, port->batch);
      }
    }
    if (now() >= next) next = now() + 40 * kMillisecond;
  }
}

aggregation::Counters Client::counters() const {
  aggregation::Counters all;
  for (const auto& port : ports_) {
    for (std::size_t at = 0; at < aggregation::kCounts; ++at) {
      all.values[at] += port->connection.counters().values[at];
      if (port->worker) all.values[at] += port->worker->counters().values[at];
    }
  }
  return all;
}

}  // namespace coppice::udp
