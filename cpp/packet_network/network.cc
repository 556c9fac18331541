#include "packet_network/network.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/hash.h"

namespace coppice::aggregation {

namespace {

constexpr std::int64_t kPerNs = 1000;  // picoseconds

std::int64_t ps(Time ns) { return ns > kNever / kPerNs ? kNever : ns * kPerNs; }

}  // namespace

Traffic& Traffic::operator+=(const Traffic& other) {
  packets += other.packets, bytes += other.bytes;
  dropped += other.dropped, overflowed += other.overflowed;
  duplicated += other.duplicated, reordered += other.reordered;
  return *this;
}

class Network::Post final : public Outbox {
 public:
  Post(Network& network, Endpoint from) : network_(network), from_(from) {}
  using Outbox::send;
  void send(std::span<const Endpoint> to, Bytes bytes) override {
    if (network_.nodes_[static_cast<std::size_t>(from_)].stopped) return;
    for (Endpoint each : to) network_.forward(from_, network_.new_packet(from_, each, bytes));
  }
  std::int64_t queued(Endpoint to) const override {
    const std::int32_t at = network_.way(from_, to);
    if (at < 0) return 0;
    const Way& way = network_.links_[static_cast<std::size_t>(at)];
    return static_cast<std::int64_t>(static_cast<double>(std::max<std::int64_t>(way.free - network_.now_, 0)) /
                                     way.ps_per_byte);
  }

 private:
  Network& network_;
  Endpoint from_;
};

Endpoint Network::add(std::unique_ptr<Node> node, double packets_per_s) {
  Place place;
  place.node = std::move(node);
  place.handling = packets_per_s > 0 ? std::llround(1e12 / packets_per_s) : 0;
  nodes_.push_back(std::move(place));
  links_of_.emplace_back();
  return static_cast<Endpoint>(nodes_.size()) - 1;
}

void Network::join(Endpoint a, Endpoint b, const Link& link) {
  const double ps_per_byte = 1e12 / link.bytes_per_s;
  for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    links_of_[static_cast<std::size_t>(from)].push_back(static_cast<std::int32_t>(links_.size()));
    links_.push_back({to, link, ps_per_byte, 0, {}});
  }
  next_.clear();
}

void Network::find_ways() {
  const std::size_t n = nodes_.size();
  next_.assign(n * n, -1);
  for (std::size_t from = 0; from < n; ++from) {
    // From each neighbour outwards; on a tree there is one way only.
    std::vector<std::pair<Endpoint, std::int32_t>> open;
    for (std::int32_t link : links_of_[from]) open.emplace_back(links_[static_cast<std::size_t>(link)].to, link);
    while (!open.empty()) {
      const auto [at, first] = open.back();
      open.pop_back();
      std::int32_t& entry = next_[from * n + static_cast<std::size_t>(at)];
      if (entry >= 0 || at == static_cast<Endpoint>(from)) continue;
      entry = first;
      for (std::int32_t link : links_of_[static_cast<std::size_t>(at)]) {
        open.emplace_back(links_[static_cast<std::size_t>(link)].to, first);
      }
    }
  }
}

std::int32_t Network::way(Endpoint from, Endpoint to) const {
  return next_[static_cast<std::size_t>(from) * nodes_.size() + static_cast<std::size_t>(to)];
}

void Network::push(std::int64_t at, Kind kind, Endpoint node, std::uint32_t what) {
  events_.push_back({at, order_++, what, node, kind});
  std::push_heap(events_.begin(), events_.end());
}

std::uint32_t Network::new_packet(Endpoint from, Endpoint to, Bytes bytes) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<std::uint32_t>(packets_.size()));
    packets_.emplace_back();
  }
  const std::uint32_t at = unused_.back();
  unused_.pop_back();
  Packet& packet = packets_[at];
  packet.from = from, packet.to = to;
  packet.size = static_cast<std::uint32_t>(bytes.size());
  packet.bytes.resize(std::max(packet.bytes.size(), bytes.size()));
  std::copy(bytes.begin(), bytes.end(), packet.bytes.begin());
  ++under_way_;
  return at;
}

double Network::chance() {
  random_ += 0x9E3779B97F4A7C15u;
  return static_cast<double>(mixed(random_) >> 11) * 0x1p-53;
}

void Network::forward(Endpoint at, std::uint32_t which) {
  const Packet& packet = packets_[which];
  if (next_.empty()) find_ways();
  const auto gone = [&] { unused_.push_back(which), --under_way_; };
  const std::int32_t link_at =
      packet.to >= 0 && packet.to < static_cast<Endpoint>(nodes_.size()) ? way(at, packet.to) : -1;
  if (link_at < 0) return gone();
  Way& way = links_[static_cast<std::size_t>(link_at)];
  const Link& link = way.link;
  const std::int64_t size = packet.size + link.overhead_bytes;
  const std::int64_t start = std::max(now_, way.free);
  if (link.queue_bytes > 0 &&
      static_cast<double>(start - now_) / way.ps_per_byte + static_cast<double>(size) >
          static_cast<double>(link.queue_bytes)) {
    ++way.traffic.overflowed;
    return gone();
  }
  way.free = start + std::llround(static_cast<double>(size) * way.ps_per_byte);
  ++way.traffic.packets;
  way.traffic.bytes += size;
  if (link.drop > 0 && chance() < link.drop) {
    ++way.traffic.dropped;
    return gone();
  }
  std::uint32_t copy = which;
  const bool twice = link.duplicate > 0 && chance() < link.duplicate;
  if (twice) {
    ++way.traffic.duplicated;
    const std::vector<std::uint8_t> bytes(packet.bytes.begin(), packet.bytes.begin() + packet.size);
    copy = new_packet(packet.from, packet.to, bytes);
  }
  for (std::uint32_t each : {which, copy}) {
    std::int64_t arrival = way.free + ps(link.latency);
    if (link.reorder > 0 && chance() < link.reorder) {
      ++way.traffic.reordered;
      arrival += static_cast<std::int64_t>(chance() * static_cast<double>(ps(link.reorder_delay)));
    }
    push(arrival, Kind::arrival, way.to, each);
    if (!twice) break;
  }
}

void Network::deliver(Endpoint at, std::uint32_t which) {
  Packet& packet = packets_[which];
  Place& place = nodes_[static_cast<std::size_t>(at)];
  if (!place.stopped) {
    // The packet stays apart while the node sends: new ones may move those that there are.
    std::vector<std::uint8_t> bytes;
    bytes.swap(packet.bytes);
    const Endpoint from = packet.from;
    const Bytes body{bytes.data(), packet.size};
    Post post(*this, at);
    place.node->receive(from, body, now(), post);
    packets_[which].bytes.swap(bytes);
    ++delivered_;
    watch(at);
  }
  unused_.push_back(which);
  --under_way_;
}

// Sees to it that the node is woken in time. A node whose deadline moved on is woken early, and looked at again.
void Network::watch(Endpoint at, std::int64_t earliest) {
  Place& place = nodes_[static_cast<std::size_t>(at)];
  const Time deadline = place.stopped ? kNever : place.node->deadline();
  if (deadline == kNever) return;
  const std::int64_t due = std::max(ps(deadline), std::max(now_, earliest));
  if (place.waking >= 0 && place.waking <= due) return;
  place.waking = due;
  push(due, Kind::waking, at, 0);
}

void Network::drive(Endpoint at, const std::function<void(Node&, Time, Outbox&)>& work) {
  if (nodes_[static_cast<std::size_t>(at)].stopped) return;
  if (next_.empty()) find_ways();
  Post post(*this, at);
  work(node(at), now(), post);
  watch(at);
}

void Network::replace(Endpoint at, std::unique_ptr<Node> node) {
  Place& place = nodes_[static_cast<std::size_t>(at)];
  place.node = std::move(node);
  place.stopped = false;
  watch(at);
}

void Network::stop(Endpoint at) { nodes_[static_cast<std::size_t>(at)].stopped = true; }

void Network::call(Time when, std::function<void()> work) {
  calls_.push_back(std::move(work));
  push(std::max(ps(when), now_), Kind::call, kNobody, static_cast<std::uint32_t>(calls_.size() - 1));
}

Endpoint Network::step() {
  if (events_.empty()) return kOver;
  if (next_.empty()) find_ways();
  std::pop_heap(events_.begin(), events_.end());
  const Event event = events_.back();
  events_.pop_back();
  now_ = event.at;
  switch (event.kind) {
    case Kind::arrival: {
      if (packets_[event.what].to != event.node) {
        forward(event.node, event.what);
        return kNobody;
      }
      Place& place = nodes_[static_cast<std::size_t>(event.node)];
      if (place.handling > 0) {
        place.free = std::max(place.free, now_) + place.handling;
        push(place.free, Kind::handling, event.node, event.what);
        return kNobody;
      }
      [[fallthrough]];
    }
    case Kind::handling:
      deliver(event.node, event.what);
      return event.node;
    case Kind::waking: {
      Place& place = nodes_[static_cast<std::size_t>(event.node)];
      if (place.waking != event.at) return kNobody;  // an earlier one took its place
      place.waking = -1;
      if (place.stopped) return kNobody;
      if (place.node->deadline() <= now()) {
        Post post(*this, event.node);
        place.node->wake(now(), post);
      }
      watch(event.node, now_ + kPerNs);  // time goes on, whatever a node wants
      return event.node;
    }
    case Kind::call: {
      const std::function<void()> work = std::move(calls_[event.what]);
      work();
      return kNobody;
    }
  }
  return kNobody;
}

}  // namespace coppice::aggregation
