// The channels of a network by their ends: what is the same for all attempts of the matching in tacos.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
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
    }
  }

  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
  std::span<const std::int32_t> ports(Channel k) const {
    return network.port.subspan(at(network.port_start[at(k)]),
                                at(network.port_start[at(k) + 1] - network.port_start[at(k)]));
  }

 private:
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
};

}  // namespace coppice::tacos
