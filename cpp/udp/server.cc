#include "udp/server.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace coppice::udp {

namespace {

constexpr Time kLongestSleep = 50 * kMillisecond;  // so that a switch ends soon when asked to
constexpr Time kReportEvery = 20 * kMillisecond;
constexpr int kTries = 50;  // to find neighbouring ports that are free

// Replies that are lost, doubled or late.
class Troubled final : public Wire {
 public:
  Troubled(Wire& wire, Faults& faults) : wire_(wire), faults_(faults) {}
  std::uint8_t* room(std::size_t bytes) override {
    packet_.resize(bytes);
    return packet_.data();
  }
  void send(std::span<const Address> to) override {
    for (const Address& each : to) faults_.give(each, packet_, pass());
  }
  void idle() { faults_.idle(pass()); }

 private:
  std::function<void(Address, Bytes)> pass() {
    return [this](Address to, Bytes packet) {
      std::copy(packet.begin(), packet.end(), wire_.room(packet.size()));
      wire_.send({&to, 1});
    };
  }
  Wire& wire_;
  Faults& faults_;
  std::vector<std::uint8_t> packet_;
};

std::vector<std::unique_ptr<Socket>> sockets_of(Address first, int threads) {
  for (int tried = 1;; ++tried) {
    std::vector<std::unique_ptr<Socket>> found;
    found.push_back(std::make_unique<Socket>(first));
    try {
      for (int thread = 1; thread < threads; ++thread) {
        const int port = found[0]->own().port + thread;
        if (port > 65535) throw std::runtime_error("cannot listen on ports above 65535: take a lower port");
        found.push_back(std::make_unique<Socket>(Address{first.host, static_cast<std::uint16_t>(port)}));
      }
      return found;
    } catch (const std::runtime_error&) {
      if (first.port != 0 || tried == kTries) throw;
    }
  }
}

std::vector<std::string> protocols_in(const std::string& text) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    names.push_back(text.substr(at, end - at));
    if (std::count(names.begin(), names.end(), names.back()) > 1) {
      throw std::invalid_argument("expected each protocol once, found " + text);
    }
    at = end + 1;
  }
  return names;
}

void add(aggregation::Counters& all, const aggregation::Counters& more) {
  for (std::size_t at = 0; at < aggregation::kCounts; ++at) all.values[at] += more.values[at];
}

}  // namespace

// The one that the packet is marked for; what no protocol is marked for is the first one's to count.
Gate& Server::Port::gate_of(Bytes packet) {
  if (gates.size() > 1 && packet.size() >= kHeader) {
    const auto marked = aggregation::load<std::uint16_t>(packet.data() + 22);
    for (std::size_t at = 0; at < gates.size(); ++at) {
      if (protocols[at] == marked) return *gates[at];
    }
  }
  return *gates.front();
}

Server::Server(ServerSettings settings) : settings_(std::move(settings)) {
  const int threads = settings_.threads;
  if (threads < 1 || threads > 64) throw std::invalid_argument("expected 1 to 64 `threads`, found " + std::to_string(threads));
  if (settings_.gate.slots < threads) {
    throw std::invalid_argument("expected a slot for each of " + std::to_string(threads) + " threads, found " +
                                std::to_string(settings_.gate.slots));
  }
  const std::vector<std::string> names = protocols_in(settings_.gate.protocol);
  const Address first = resolved(settings_.host, settings_.port);
  std::vector<std::unique_ptr<Socket>> sockets = sockets_of(first, threads);
  for (int at = 0; at < threads; ++at) {
    GateSettings own = settings_.gate;
    own.thread = at;
    own.threads = threads;
    own.slots = settings_.gate.slots / threads;
    own.most_slots = settings_.gate.most_slots / threads;
    if (own.parent) own.parent->address.port = static_cast<std::uint16_t>(own.parent->address.port + at);
    auto port = std::make_unique<Port>();
    port->socket = std::move(sockets[static_cast<std::size_t>(at)]);
    for (const std::string& name : names) {
      own.protocol = name;
      own.spoken = settings_.gate.protocol;
      port->protocols.push_back(hash_of(name));
      port->gates.push_back(std::make_unique<Gate>(own));
      const std::string where = (names.size() == 1 ? "" : " (" + name + ")") +
                                (threads == 1 ? "" : " (thread " + std::to_string(at) + ")");
      port->gates.back()->log = [this, where](const std::string& line) {
        const std::lock_guard lock(events_mutex_);
        events_.push_back(line + where);
      };
    }
    ports_.push_back(std::move(port));
  }
  for (std::size_t at = 0; at < ports_.size(); ++at) {
    Port& port = *ports_[at];
    port.thread = std::thread([this, &port, at] { serve(port, at); });
  }
}

Server::~Server() { stop(); }

void Server::stop() {
  stopping_ = true;
  for (const auto& port : ports_) {
    if (port->thread.joinable()) port->thread.join();
  }
}

void Server::serve(Port& port, std::size_t number) {
  FaultSettings own = settings_.faults;
  own.seed = own.seed * 64 + number;
  Faults in(own, 0), out(own, 1);
  const bool troubled = own.any();
  Intake intake(*port.socket);
  Batch batch(*port.socket, false);
  Troubled trouble(batch, out);
  Wire& wire = troubled ? static_cast<Wire&>(trouble) : batch;
  Time told = 0;
  bool nobody = false;
  const auto tell = [&] {
    const std::lock_guard lock(port.mutex);
    port.report = {{}, {}, batch.packets(), batch.lost(), in.dropped + out.dropped, in.duplicated + out.duplicated,
                   in.reordered + out.reordered, 0, 0};
    for (const auto& gate : port.gates) {
      add(port.report.gate, gate->counters());
      add(port.report.protocol, gate->protocol_counters());
      port.report.jobs += gate->jobs();
      port.report.slots_in_use += gate->slots_in_use();
    }
  };
  Time time = 0;
  const auto take = [&](Address from, Bytes packet) { port.gate_of(packet).receive(from, packet, time, wire); };
  while (!stopping_.load(std::memory_order_relaxed)) {
    const Time before = now();
    Time due = aggregation::kNever;
    for (const auto& gate : port.gates) due = std::min(due, gate->deadline());
    Time wait = std::min(kLongestSleep, std::max<Time>(due - before, kMillisecond / 10));
    if (in.holds() || out.holds()) wait = std::min(wait, 2 * kMillisecond);
    const std::vector<Received>& packets = intake.batch(wait, nobody);
    time = now();
    if (packets.empty() && troubled) {
      in.idle(take);
      trouble.idle();
    }
    for (const Received& each : packets) {
      if (troubled) in.give(each.from, each.packet, take);
      else take(each.from, each.packet);
    }
    for (const auto& gate : port.gates) {
      if (time >= gate->deadline()) gate->wake(time, wire);
    }
    batch.flush(nobody);
    if (time - told >= kReportEvery) {
      told = time;
      tell();
    }
  }
  tell();
}

ServerReport Server::report() const {
  ServerReport all;
  for (const auto& port : ports_) {
    const std::lock_guard lock(port->mutex);
    const ServerReport& own = port->report;
    add(all.gate, own.gate);
    add(all.protocol, own.protocol);
    all.sent += own.sent, all.lost += own.lost;
    all.dropped += own.dropped, all.duplicated += own.duplicated, all.reordered += own.reordered;
    all.jobs = std::max(all.jobs, own.jobs), all.slots_in_use += own.slots_in_use;
  }
  return all;
}

std::vector<std::string> Server::events() {
  const std::lock_guard lock(events_mutex_);
  return std::exchange(events_, {});
}

}  // namespace coppice::udp
