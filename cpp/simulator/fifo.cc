// Links that serve one message at a time.
#include <algorithm>
#include <deque>
#include <functional>
#include <limits>

#include "simulator/loop.h"

namespace coppice {

namespace {

class FifoNetwork : public SimulatorLoop<FifoNetwork> {
 public:
  FifoNetwork(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options, Simulation& out)
      : SimulatorLoop(traffic, fabric, options, out, !options.store_and_forward),
        burst_(fabric.num_links(), 0),
        free_(fabric.num_links(), 0),
        spent_(fabric.num_links(), 0),
        last_(fabric.num_links(), -1),
        queues_(traffic.wave.empty() ? 0 : fabric.num_links()),
        at_(traffic.size(), 0) {
    for (std::size_t link = 0; link < fabric.burst.size(); ++link) {
      burst_[link] = on_grid(fabric.burst[link]);
      spent_[link] = -burst_[link];
    }
    if (options.give_up < std::numeric_limits<double>::infinity()) count_load();
    if (!options.keep_hops) return;
    hop_start_.reserve(traffic.size());
    std::int64_t hops = 0;
    for (std::int32_t route : traffic.route) {
      hop_start_.push_back(hops);
      hops += static_cast<std::int64_t>(fabric.links(route).size());
    }
    out.hop_begin.assign(static_cast<std::size_t>(hops), -1);
    out.hop_behind.assign(static_cast<std::size_t>(hops), -1);
    if (!fabric.burst.empty()) out.hop_end.assign(static_cast<std::size_t>(hops), -1);
  }

  void head(Message m) {
    if (traffic_.wave.empty()) return serve(m, now_);
    Queue& queue = queues_[fabric_.links(traffic_.route[m])[at_[m]]];
    const std::int32_t link = static_cast<std::int32_t>(&queue - queues_.data());
    if (free_[link] <= now_ && queue.turns.empty()) return serve(m, now_);
    if (queue.turns.empty()) events_.push(Event(free_[link], EventKind::kFree, link));
    const std::int32_t job = job_of(m);
    if (queue.waiting.size() <= static_cast<std::size_t>(job)) queue.waiting.resize(static_cast<std::size_t>(job) + 1);
    auto& waiting = queue.waiting[job];
    waiting.push_back({traffic_.wave[m], m, arrivals_++, now_});
    std::push_heap(waiting.begin(), waiting.end(), std::greater<>());
    queue.turns.push_back(job);
  }

  void free(std::int32_t link) {
    Queue& queue = queues_[link];
    auto& waiting = queue.waiting[queue.turns.front()];
    queue.turns.pop_front();
    std::pop_heap(waiting.begin(), waiting.end(), std::greater<>());
    const Waiting next = waiting.back();
    waiting.pop_back();
    serve(next.message, next.since);
    if (!queue.turns.empty()) events_.push(Event(free_[link], EventKind::kFree, link));
  }

  void drained(Message) {}
  void end_instant() {}

 private:
  static constexpr double kRounding = 1e-9;  // what sums of durations above 2^33 ns may be off by

  struct Waiting {
    std::int32_t wave;
    Message message;
    std::int64_t arrival;  // number of arrivals before
    double since;
    bool operator>(const Waiting& other) const { return wave != other.wave ? wave > other.wave : arrival > other.arrival; }
  };

  /// What waits for a link, with waves. A job has a turn for each of its messages and takes its best one when it comes.
  struct Queue {
    std::deque<std::int32_t> turns;             // jobs in the order in which their messages came
    std::vector<std::vector<Waiting>> waiting;  // per job: a heap, the next one on top
  };

  /// What each link has to serve, so that it shows early if it cannot in time.
  void count_load() {
    load_.assign(fabric_.num_links(), 0);
    for (std::size_t m = 0; m < traffic_.size(); ++m)
      for (std::int32_t link : fabric_.links(traffic_.route[m])) load_[link] += busy_on(link, static_cast<Message>(m));
  }

  /// For how long a link is busy with a message.
  double busy_on(std::int32_t link, Message m) const { return on_grid(static_cast<double>(traffic_.bytes[m]) / fabric_.rate[link]); }

  std::int32_t job_of(Message m) const { return traffic_.job.empty() ? 0 : traffic_.job[m]; }

  /// The message whose head came at `since` takes the link, once that is free.
  void serve(Message m, double since) {
    const auto links = fabric_.links(traffic_.route[m]);
    const std::int32_t hop = at_[m]++;
    const std::int32_t link = links[hop];
    const double bytes = static_cast<double>(traffic_.bytes[m]);
    const double begin = std::max(now_, free_[link]), busy = busy_on(link, m);
    spent_[link] = std::max(begin - burst_[link], spent_[link]) + busy;
    if (!load_.empty()) {
      load_[link] -= busy;
      hopeless_ = hopeless_ || spent_[link] + load_[link] > options_.give_up * (1 + kRounding);
    }
    const double end = std::max(begin, spent_[link]);
    if (options_.keep_hops) {
      out_.hop_begin[hop_start_[m] + hop] = begin;
      if (!out_.hop_end.empty()) out_.hop_end[hop_start_[m] + hop] = end;
      if (begin > since) out_.hop_behind[hop_start_[m] + hop] = last_[link];
    }
    free_[link] = end;
    last_[link] = m;
    out_.link_busy[link] += end - begin;
    out_.link_bytes[link] += bytes;
    // Until the message has arrived, this is when its last byte comes to the next node.
    double& tail = out_.arrived[m];
    tail = std::max(end, tail);
    if (hop == 0) left(m, tail);
    tail += latency_[link];
    if (static_cast<std::size_t>(hop) + 1 == links.size()) {
      tail += flight(m);
      if (starts_.at_switch(m)) events_.push(Event(begin + latency_[link] + flight(m), EventKind::kStream, m));
      return events_.push(Event(tail, EventKind::kArrived, m));
    }
    events_.push(Event(options_.store_and_forward ? tail : begin + latency_[link], head_of(m), m));
  }

  std::vector<double> burst_;            // per link: time in which what it lets through at once comes at its rate
  std::vector<double> free_;             // per link: end of the last message on it
  std::vector<double> spent_;            // per link: end of the last message if its bucket had been empty all the time
  std::vector<double> load_;             // per link: ns of all that it has still to serve; empty: nobody gives up
  std::vector<Message> last_;            // per link: that message
  std::vector<Queue> queues_;            // per link, with waves
  std::int64_t arrivals_ = 0;            // messages that had to wait so far
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
