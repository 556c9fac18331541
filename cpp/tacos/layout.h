// The channels of a network by their ends: what is the same for all attempts of the matching in tacos.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "tacos/tacos.h"

namespace coppice::tacos {

using Rank = std::int32_t;
using Channel = std::int32_t;
using Chunk = std::int32_t;
using Time = std::int64_t;
using Word = std::uint64_t;

struct Layout {
  const ChannelNetwork& network;
  const ChunkDemand& demand;
  std::size_t words;
  std::vector<std::vector<Channel>> into;     // channels into each rank, the shortest duration first
  std::vector<std::vector<Rank>> neighbours;  // ranks that a rank's channels lead to, each once
  std::vector<std::int32_t> gate;             // per rank, a port that all channels into it take, or -1
  std::vector<std::int32_t> way_out;          // likewise of all channels out of it
  std::vector<Time> least_hold;               // per rank, for how long a chunk holds its gate at least; 0 without one
  std::vector<Rank> sender_at;                 // per port, the rank that all channels on it leave, or -1
  std::vector<std::vector<Rank>> receivers_at; // per port, the ranks that the channels on it lead to
  bool shared = false;                        // some port is on two channels, or free at another time than its chunk comes

  Layout(const ChannelNetwork& net, const ChunkDemand& wanted)
      : network(net), demand(wanted), words((wanted.source.size() + 63) / 64) {
    const auto ranks = static_cast<std::size_t>(net.num_ranks);
    into.resize(ranks);
    neighbours.resize(ranks);
    std::vector<bool> used(static_cast<std::size_t>(net.num_ports));
    for (std::size_t k = 0; k < net.src.size(); ++k) {
      into[at(net.dst[k])].push_back(static_cast<Channel>(k));
      neighbours[at(net.src[k])].push_back(net.dst[k]);
      for (auto i = net.port_start[k]; i < net.port_start[k + 1]; ++i) {
        const std::size_t port = at(net.port[at(i)]);
        shared = shared || used[port] || net.hold[at(i)] != net.duration[k];
        used[port] = true;
      }
    }
    for (auto& channels : into)
      std::stable_sort(channels.begin(), channels.end(),
                       [&](Channel a, Channel b) { return net.duration[at(a)] < net.duration[at(b)]; });
    for (auto& ends : neighbours) {
      std::sort(ends.begin(), ends.end());
      ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    }
    std::vector<std::vector<Channel>> out(ranks);
    for (std::size_t k = 0; k < net.src.size(); ++k) out[at(net.src[k])].push_back(static_cast<Channel>(k));
    for (std::size_t v = 0; v < ranks; ++v) {
      gate.push_back(common_port(into[v]));
      way_out.push_back(common_port(out[v]));
      Time least = gate.back() < 0 ? 0 : std::numeric_limits<Time>::max();
      for (Channel k : into[v])
        for (auto i = net.port_start[at(k)]; i < net.port_start[at(k) + 1]; ++i)
          if (net.port[at(i)] == gate.back()) least = std::min(least, net.hold[at(i)]);
      least_hold.push_back(least);
    }
    sender_at.assign(at(net.num_ports), kUnused);
    receivers_at.resize(at(net.num_ports));
    for (std::size_t k = 0; k < net.src.size(); ++k)
      for (std::int32_t port : ports(static_cast<Channel>(k))) {
        Rank& sender = sender_at[at(port)];
        sender = sender == kUnused || sender == net.src[k] ? net.src[k] : -1;
        auto& receivers = receivers_at[at(port)];
        if (std::find(receivers.begin(), receivers.end(), net.dst[k]) == receivers.end()) receivers.push_back(net.dst[k]);
      }
    by_ends_.resize(net.src.size());
    std::iota(by_ends_.begin(), by_ends_.end(), Channel{0});
    std::stable_sort(by_ends_.begin(), by_ends_.end(), [&](Channel a, Channel b) { return ends(a) < ends(b); });
    ends_start_.assign(ranks * ranks + 1, 0);
    for (Channel k : by_ends_) ++ends_start_[ends(k) + 1];
    std::partial_sum(ends_start_.begin(), ends_start_.end(), ends_start_.begin());
  }

  /// Channels from u to v.
  std::pair<const Channel*, const Channel*> between(Rank u, Rank v) const {
    const std::size_t pair = at(u) * into.size() + at(v);
    return {by_ends_.data() + ends_start_[pair], by_ends_.data() + ends_start_[pair + 1]};
  }

  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
  std::span<const std::int32_t> ports(Channel k) const {
    return network.port.subspan(at(network.port_start[at(k)]),
                                at(network.port_start[at(k) + 1] - network.port_start[at(k)]));
  }

 private:
  static constexpr Rank kUnused = -2;

  std::size_t ends(Channel k) const { return at(network.src[at(k)]) * into.size() + at(network.dst[at(k)]); }

  std::int32_t common_port(const std::vector<Channel>& channels) const {
    if (channels.empty()) return -1;
    for (std::int32_t port : ports(channels.front())) {
      const bool common = std::all_of(channels.begin(), channels.end(), [&](Channel k) {
        return std::find(ports(k).begin(), ports(k).end(), port) != ports(k).end();
      });
      if (common) return port;
    }
    return -1;
  }

  std::vector<Channel> by_ends_;          // channels in the order of their ends
  std::vector<std::size_t> ends_start_;   // per pair of ranks, where its channels begin there
};

}  // namespace coppice::tacos
