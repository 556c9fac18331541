// Links that serve one message at a time.
#include <algorithm>

#include "simulator_loop.h"

namespace coppice {

namespace {

class FifoNetwork : public SimulatorLoop<FifoNetwork> {
 public:
  FifoNetwork(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options, Simulation& out)
      : SimulatorLoop(traffic, fabric, options, out),
        free_(fabric.num_links(), 0),
        last_(fabric.num_links(), -1),
        at_(traffic.size(), 0) {
    if (!options.keep_hops) return;
    hop_start_.reserve(traffic.size());
    std::int64_t hops = 0;
    for (std::int32_t route : traffic.route) {
      hop_start_.push_back(hops);
      hops += static_cast<std::int64_t>(fabric.links(route).size());
    }
    out.hop_begin.assign(static_cast<std::size_t>(hops), -1);
    out.hop_behind.assign(static_cast<std::size_t>(hops), -1);
  }

  void head(Message m) {
    const auto links = fabric_.links(traffic_.route[m]);
    const std::int32_t hop = at_[m]++;
    const std::int32_t link = links[hop];
    const double bytes = static_cast<double>(traffic_.bytes[m]);
    const double begin = std::max(now_, free_[link]), busy = on_grid(bytes / fabric_.rate[link]);
    if (options_.keep_hops) {
      out_.hop_begin[hop_start_[m] + hop] = begin;
      if (begin > now_) out_.hop_behind[hop_start_[m] + hop] = last_[link];
    }
    free_[link] = begin + busy;
    last_[link] = m;
    out_.link_busy[link] += busy;
    out_.link_bytes[link] += bytes;
    // Until the message has arrived, this is when its last byte comes to the next node.
    double& tail = out_.arrived[m];
    tail = std::max(begin + busy, tail) + latency_[link];
    if (static_cast<std::size_t>(hop) + 1 == links.size()) return events_.push(Event(tail, EventKind::kArrived, m));
    events_.push(Event(options_.store_and_forward ? tail : begin + latency_[link], EventKind::kHead, m));
  }

  void drained(Message) {}
  void settle() {}

 private:
  std::vector<double> free_;             // per link: end of the last message on it
  std::vector<Message> last_;            // per link: that message
  std::vector<std::int32_t> at_;         // per message: hops that it has begun
  std::vector<std::int64_t> hop_start_;  // per message: its first hop in the columns of hops
};

}  // namespace

Simulation simulate_fifo(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options,
                         const StopFlag& stop) {
  Simulation out = empty_simulation(traffic, fabric, options);
  FifoNetwork(traffic, fabric, options, out).run(stop);
  return out;
}

}  // namespace coppice
