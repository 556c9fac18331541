#include "tasks/tasks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <stdexcept>
#include <utility>

namespace coppice {

std::span<const std::int32_t> Tasks::predecessors(std::size_t task) const {
  return after.subspan(static_cast<std::size_t>(after_start[task]),
                       static_cast<std::size_t>(after_start[task + 1] - after_start[task]));
}

namespace {

constexpr double kFull = 1e-12;   // a link is full within this share: rounding of its loads
constexpr double kSpent = 1e-9;   // credit below this share of it is none: rounding of sums

double on_grid(double seconds) {
  constexpr double kUnits = static_cast<double>(std::int64_t{1} << 34);
  return std::nearbyint(seconds * kUnits) / kUnits;
}

void check_windows(const Tasks& tasks) {
  const std::size_t n = tasks.size();
  if (tasks.window.empty() && tasks.window_bytes.empty() && tasks.returns.empty()) return;
  if (tasks.window.size() != n || tasks.window_bytes.size() != n || tasks.returns.size() != n)
    throw std::invalid_argument("columns of windows differ in length");
  for (double credit : tasks.credit)
    if (!(credit > 0) || std::isinf(credit)) throw std::invalid_argument("credit out of range");
  std::vector<std::uint8_t> returned(n, 0);
  for (std::size_t t = 0; t < n; ++t) {
    if (tasks.window[t] < -1 || tasks.window[t] >= static_cast<std::int32_t>(tasks.credit.size()))
      throw std::invalid_argument("no such window");
    if (tasks.window[t] >= 0 && tasks.stream[t] < 0) throw std::invalid_argument("a task of a window without a stream");
    if (!(tasks.window_bytes[t] >= 0) || std::isinf(tasks.window_bytes[t]))
      throw std::invalid_argument("bytes of a window out of range");
    const std::int32_t of = tasks.returns[t];
    if (of < 0) continue;
    if (static_cast<std::size_t>(of) >= n || tasks.window[of] < 0 || returned[of]++)
      throw std::invalid_argument("credit comes back once, of a task of a window");
  }
}

void check(const Tasks& tasks) {
  const std::size_t n = tasks.size();
  const auto rows = [&](std::span<const std::int64_t> start, std::size_t entries) {
    if (start.size() != n + 1 || start[0] != 0 || start[n] != static_cast<std::int64_t>(entries)) return false;
    return std::is_sorted(start.begin(), start.end());
  };
  if (tasks.num_streams < 0 || tasks.num_links < 0) throw std::invalid_argument("fewer than no streams or links");
  if (tasks.seconds.size() != n || tasks.priority.size() != n || !rows(tasks.after_start, tasks.after.size()))
    throw std::invalid_argument("columns of tasks differ in length");
  if (n >= (std::size_t{1} << 31)) throw std::invalid_argument("too many tasks");
  for (std::size_t t = 0; t < n; ++t) {
    if (tasks.stream[t] < -1 || tasks.stream[t] >= tasks.num_streams) throw std::invalid_argument("no such stream");
    if (!(tasks.seconds[t] >= 0) || std::isinf(tasks.seconds[t])) throw std::invalid_argument("seconds out of range");
  }
  for (std::int32_t t : tasks.after)
    if (t < 0 || static_cast<std::size_t>(t) >= n) throw std::invalid_argument("no such task to wait for");
  check_windows(tasks);
  if (tasks.load_start.empty() && tasks.load_link.empty() && tasks.load.empty()) return;
  if (!rows(tasks.load_start, tasks.load_link.size()) || tasks.load.size() != tasks.load_link.size())
    throw std::invalid_argument("columns of loads differ in length");
  for (std::int32_t link : tasks.load_link)
    if (link < 0 || link >= tasks.num_links) throw std::invalid_argument("no such link");
  for (double load : tasks.load)
    if (!(load > 0) || std::isinf(load)) throw std::invalid_argument("loads out of range");
}

/// Who waits for each task: waiters of t are in after[start[t] .. start[t + 1]).
struct Successors {
  std::vector<std::int64_t> start;
  std::vector<std::int32_t> task;

  explicit Successors(const Tasks& tasks) : start(tasks.size() + 1, 0), task(tasks.after.size()) {
    for (std::int32_t before : tasks.after) ++start[static_cast<std::size_t>(before) + 1];
    for (std::size_t t = 0; t < tasks.size(); ++t) start[t + 1] += start[t];
    std::vector<std::int64_t> next(start.begin(), start.end() - 1);
    for (std::size_t t = 0; t < tasks.size(); ++t)
      for (std::int32_t before : tasks.predecessors(t)) task[next[before]++] = static_cast<std::int32_t>(t);
  }
  std::span<const std::int32_t> of(std::int32_t t) const {
    return std::span(task).subspan(static_cast<std::size_t>(start[t]), static_cast<std::size_t>(start[t + 1] - start[t]));
  }
};

class Run {
 public:
  Run(const Tasks& tasks, TaskTimes& out)
      : tasks_(tasks),
        out_(out),
        successors_(tasks),
        missing_(tasks.size()),
        ready_(static_cast<std::size_t>(tasks.num_streams)),
        busy_(static_cast<std::size_t>(tasks.num_streams), 0),
        last_(static_cast<std::size_t>(tasks.num_streams), -1),
        changed_mark_(static_cast<std::size_t>(tasks.num_streams), 0),
        credit_(tasks.credit.begin(), tasks.credit.end()),
        held_(tasks.credit.size()),
        returned_by_(tasks.credit.size(), -1) {
    const std::size_t n = tasks.size();
    out.start.assign(n, -1);
    out.finish.assign(n, -1);
    out.cause.assign(n, -1);
    if (!tasks.load_start.empty()) {
      flow_of_.assign(n, -1);
      users_.resize(static_cast<std::size_t>(tasks.num_links));
      link_mark_.assign(static_cast<std::size_t>(tasks.num_links), 0);
      left_.assign(static_cast<std::size_t>(tasks.num_links), 0);
      growing_.assign(static_cast<std::size_t>(tasks.num_links), 0);
    }
  }

  void run(const StopFlag& stop) {
    for (std::size_t t = 0; t < tasks_.size(); ++t)
      missing_[t] = static_cast<std::int32_t>(tasks_.after_start[t + 1] - tasks_.after_start[t]);
    for (std::size_t t = 0; t < tasks_.size(); ++t)
      if (tasks_.after_start[t] == tasks_.after_start[t + 1]) now_ready(static_cast<std::int32_t>(t), -1);
    settle();
    std::int64_t count = 0;
    while (!events_.empty()) {
      if (++count % kEventsPerPoll == 0) poll(stop);
      now_ = events_.top().time;
      while (!events_.empty() && events_.top().time == now_) {
        const Event event = events_.top();
        events_.pop();
        if (is_flow(event.task) && (flow_of_[event.task] < 0 || flows_[flow_of_[event.task]].version != event.version)) continue;
        finish(event.task);
      }
      settle();
    }
  }

 private:
  static constexpr std::int64_t kEventsPerPoll = 1 << 14;

  struct Event {
    double time;
    std::int32_t task;
    std::int32_t version;  // of a task on links; an older one is stale
    bool operator>(const Event& other) const { return time != other.time ? time > other.time : task > other.task; }
  };
  struct Waiting {
    std::int64_t priority;
    std::int64_t order;  // the task, or its turn of admission
    std::int32_t task;
    bool operator>(const Waiting& other) const {
      return priority != other.priority ? priority > other.priority : order > other.order;
    }
  };
  using Queue = std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>>;
  struct Flow {
    std::int32_t task;
    std::int32_t version = 0;
    double left;   // seconds at full speed that remain at `since`
    double since;
    double speed;  // 0: none yet
    bool settled = false;
    std::int64_t mark = 0;
  };

  bool is_flow(std::int32_t t) const {
    return !flow_of_.empty() && tasks_.load_start[t + 1] > tasks_.load_start[t] && tasks_.seconds[t] > 0;
  }
  std::span<const std::int32_t> links(std::int32_t t) const {
    return tasks_.load_link.subspan(static_cast<std::size_t>(tasks_.load_start[t]),
                                    static_cast<std::size_t>(tasks_.load_start[t + 1] - tasks_.load_start[t]));
  }
  const double* loads(std::int32_t t) const { return tasks_.load.data() + tasks_.load_start[t]; }

  /// All that `t` waits for has ended, `by` last. What takes no time and no stream ends at once.
  void now_ready(std::int32_t t, std::int32_t by) {
    barriers_.emplace_back(t, by);
    if (in_barriers_) return;
    in_barriers_ = true;
    while (!barriers_.empty()) {
      const auto [task, cause] = barriers_.back();
      barriers_.pop_back();
      const std::int32_t stream = tasks_.stream[task];
      out_.cause[task] = cause;
      if (window(task) >= 0) {
        held_[window(task)].push({tasks_.priority[task], task, task});
      } else if (stream >= 0) {
        ready_[stream].push({tasks_.priority[task], task, task});
        touch(stream);
      } else if (tasks_.seconds[task] == 0) {
        out_.start[task] = out_.finish[task] = now_;
        ++out_.finished;
        return_credit(task);
        pass_on(task);
      } else {
        free_starts_.push_back(task);
      }
    }
    in_barriers_ = false;
  }

  std::int32_t window(std::int32_t t) const { return tasks_.window.empty() ? -1 : tasks_.window[t]; }

  /// Windows with credit let tasks go to their streams.
  void admit() {
    for (std::size_t w = 0; w < held_.size(); ++w) {
      while (!held_[w].empty() && credit_[w] > kSpent * tasks_.credit[w]) {
        const std::int32_t t = held_[w].top().task;
        held_[w].pop();
        credit_[w] -= tasks_.window_bytes[t];
        const std::int32_t by = out_.cause[t];
        if (returned_by_[w] >= 0 && (by < 0 ? 0 : out_.finish[by]) < now_) out_.cause[t] = returned_by_[w];
        ready_[tasks_.stream[t]].push({std::numeric_limits<std::int64_t>::min(), admitted_++, t});
        touch(tasks_.stream[t]);
      }
    }
  }

  void touch(std::int32_t stream) {
    if (changed_mark_[stream]) return;
    changed_mark_[stream] = 1;
    changed_.push_back(stream);
  }

  void pass_on(std::int32_t t) {
    for (std::int32_t next : successors_.of(t))
      if (--missing_[next] == 0) now_ready(next, t);
  }

  void return_credit(std::int32_t t) {
    const std::int32_t of = tasks_.window.empty() ? -1 : tasks_.returns[t];
    if (of < 0) return;
    credit_[window(of)] += tasks_.window_bytes[of];
    returned_by_[window(of)] = t;
  }

  void finish(std::int32_t t) {
    out_.finish[t] = now_;
    ++out_.finished;
    if (is_flow(t)) leave_links(t);
    return_credit(t);
    if (const std::int32_t stream = tasks_.stream[t]; stream >= 0) {
      busy_[stream] = 0;
      last_[stream] = t;
      touch(stream);
    }
    pass_on(t);
  }

  /// Streams that are free choose, links are shared out anew.
  void settle() {
    admit();
    std::sort(free_starts_.begin(), free_starts_.end());
    for (std::int32_t t : free_starts_) begin(t);
    free_starts_.clear();
    std::sort(changed_.begin(), changed_.end());
    for (std::int32_t stream : changed_) {
      changed_mark_[stream] = 0;
      if (busy_[stream] || ready_[stream].empty()) continue;
      const std::int32_t t = ready_[stream].top().task;
      ready_[stream].pop();
      busy_[stream] = 1;
      // What left the stream at this instant held it back, unless it became ready only now.
      const std::int32_t by = out_.cause[t];
      const double since = by < 0 ? 0 : out_.finish[by];
      if (last_[stream] >= 0 && since < now_ && out_.finish[last_[stream]] == now_) out_.cause[t] = last_[stream];
      begin(t);
    }
    changed_.clear();
    share_links();
  }

  void begin(std::int32_t t) {
    out_.start[t] = now_;
    if (!is_flow(t)) {
      events_.push({now_ + on_grid(tasks_.seconds[t]), t, 0});
      return;
    }
    flow_of_[t] = static_cast<std::int32_t>(flows_.size());
    if (!unused_.empty()) {
      flow_of_[t] = unused_.back();
      unused_.pop_back();
    } else {
      flows_.emplace_back();
    }
    Flow& flow = flows_[flow_of_[t]];
    flow = {.task = t, .version = flow.version + 1, .left = on_grid(tasks_.seconds[t]), .since = now_, .speed = 0, .mark = 0};
    for (std::int32_t link : links(t)) users_[link].push_back(t);
    disturbed_.push_back(t);
  }

  void leave_links(std::int32_t t) {
    for (std::int32_t link : links(t)) {
      auto& users = users_[link];
      users.erase(std::find(users.begin(), users.end(), t));
      disturbed_links_.push_back(link);
    }
    flows_[flow_of_[t]].version += 1;
    unused_.push_back(flow_of_[t]);
    flow_of_[t] = -1;
  }

  /// Speeds of all tasks that share links with those that came or went.
  void share_links() {
    if (disturbed_.empty() && disturbed_links_.empty()) return;
    ++mark_;
    component_.clear();
    component_links_.clear();
    const auto reach_task = [&](std::int32_t t) {
      Flow& flow = flows_[flow_of_[t]];
      if (flow.mark == mark_) return;
      flow.mark = mark_;
      flow.settled = false;
      component_.push_back(t);
    };
    const auto reach_link = [&](std::int32_t link) {
      if (link_mark_[link] == mark_) return;
      link_mark_[link] = mark_;
      component_links_.push_back(link);
      for (std::int32_t t : users_[link]) reach_task(t);
    };
    for (std::int32_t t : disturbed_)
      if (flow_of_[t] >= 0) reach_task(t);
    for (std::int32_t link : disturbed_links_) reach_link(link);
    for (std::size_t k = 0; k < component_.size(); ++k)
      for (std::int32_t link : links(component_[k])) reach_link(link);
    disturbed_.clear();
    disturbed_links_.clear();
    fill();
  }

  /// Progressive filling over the component; a task whose speed stays as it is keeps its event.
  void fill() {
    for (std::int32_t link : component_links_) {
      left_[link] = 1;
      growing_[link] = 0;
      const auto& users = users_[link];
      for (std::int32_t t : users) growing_[link] += load_on(t, link);
    }
    std::size_t open = component_.size();
    std::sort(component_.begin(), component_.end());
    while (open > 0) {
      double level = 1;
      for (std::int32_t link : component_links_)
        if (growing_[link] > 0) level = std::min(level, left_[link] / growing_[link]);
      bool any = false;
      for (std::int32_t link : component_links_) {
        if (!(growing_[link] > 0) || left_[link] / growing_[link] > level * (1 + kFull)) continue;
        for (std::int32_t t : users_[link]) any |= fix(t, level, open);
        growing_[link] = 0;
      }
      if (level >= 1 || !any)
        for (std::int32_t t : component_) fix(t, level, open);
    }
  }

  double load_on(std::int32_t t, std::int32_t link) const {
    const auto own = links(t);
    return loads(t)[std::find(own.begin(), own.end(), link) - own.begin()];
  }

  bool fix(std::int32_t t, double speed, std::size_t& open) {
    Flow& flow = flows_[flow_of_[t]];
    if (flow.settled) return false;
    flow.settled = true;
    --open;
    const auto own = links(t);
    for (std::size_t k = 0; k < own.size(); ++k) {
      left_[own[k]] = std::max(0.0, left_[own[k]] - loads(t)[k] * speed);
      growing_[own[k]] = std::max(0.0, growing_[own[k]] - loads(t)[k]);
      if (growing_[own[k]] < kFull) growing_[own[k]] = 0;
    }
    if (flow.speed == speed) return true;
    flow.left = std::max(0.0, flow.left - flow.speed * (now_ - flow.since));
    flow.since = now_;
    flow.speed = speed;
    ++flow.version;
    events_.push({now_ + on_grid(flow.left / speed), t, flow.version});
    return true;
  }

  const Tasks& tasks_;
  TaskTimes& out_;
  Successors successors_;
  double now_ = 0;
  std::vector<std::int32_t> missing_;  // per task: how many it still waits for
  std::vector<Queue> ready_;           // per stream
  std::vector<std::uint8_t> busy_;     // per stream
  std::vector<std::int32_t> last_;     // per stream: what ran last
  std::vector<std::int32_t> changed_;  // streams that may choose
  std::vector<std::uint8_t> changed_mark_;
  std::vector<std::int32_t> free_starts_;  // ready, without a stream
  std::vector<std::pair<std::int32_t, std::int32_t>> barriers_;
  bool in_barriers_ = false;
  std::vector<double> credit_;             // per window: what is left
  std::vector<Queue> held_;                // per window: tasks that are ready and not admitted
  std::vector<std::int32_t> returned_by_;  // per window: whose end gave credit back last
  std::int64_t admitted_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;

  std::vector<Flow> flows_;  // tasks on links that run
  std::vector<std::int32_t> unused_;
  std::vector<std::int32_t> flow_of_;             // per task; -1: it is not running on links
  std::vector<std::vector<std::int32_t>> users_;  // per link: tasks that run on it
  std::vector<std::int32_t> disturbed_, disturbed_links_;
  std::vector<std::int32_t> component_, component_links_;
  std::int64_t mark_ = 0;
  std::vector<std::int64_t> link_mark_;
  std::vector<double> left_, growing_;  // per link: capacity that is not settled, load of tasks that still grow
};

}  // namespace

TaskTimes run_tasks(const Tasks& tasks, const StopFlag& stop) {
  check(tasks);
  TaskTimes out;
  Run(tasks, out).run(stop);
  return out;
}

PathLengths path_lengths(const Tasks& tasks) {
  check(tasks);
  const std::size_t n = tasks.size();
  const Successors successors(tasks);
  std::vector<std::int32_t> missing(n), order;
  order.reserve(n);
  for (std::size_t t = 0; t < n; ++t) {
    missing[t] = static_cast<std::int32_t>(tasks.predecessors(t).size());
    if (missing[t] == 0) order.push_back(static_cast<std::int32_t>(t));
  }
  PathLengths out{std::vector<double>(n, 0), std::vector<double>(n, 0)};
  for (std::size_t k = 0; k < order.size(); ++k) {
    const std::int32_t t = order[k];
    for (std::int32_t next : successors.of(t)) {
      out.head[next] = std::max(out.head[next], out.head[t] + on_grid(tasks.seconds[t]));
      if (--missing[next] == 0) order.push_back(next);
    }
  }
  if (order.size() < n) return {};
  for (std::size_t k = n; k-- > 0;) {
    const std::int32_t t = order[k];
    for (std::int32_t next : successors.of(t)) out.tail[t] = std::max(out.tail[t], out.tail[next]);
    out.tail[t] += on_grid(tasks.seconds[t]);
  }
  return out;
}

}  // namespace coppice
