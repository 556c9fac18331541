#include "emulated_gpu/reference.h"

#include <algorithm>
#include <bitset>
#include <map>
#include <set>

namespace coppice::emulated_gpu::testing {
namespace {

constexpr std::size_t kMostNodes = 2048;

using Numbers = std::vector<int>;

// What a node does to memory: copies of cells and fills of them, in no order, or reads into the log.
struct Node {
  std::vector<std::pair<int, int>> copies{};
  int filled = -1, value = 0;
  int read = -1;        // a cell,
  int into = -1;        // to this place in the log
  int raised = -1;      // a flag, to `value`
  int awaited = -1;     // a flag, until it is at least `value`
  int staged = -1;      // a cell that a later node writes to its target, read now
  int from_stage = -1;  // the node that read it
  Numbers after{};
  Place place{};
};

// A graph: nodes whose dependencies are numbers within it.
struct Graph {
  std::vector<Node> nodes;
};

class Building {
 public:
  explicit Building(const Program& program) {
    for (const Step& step : program) {
      host_step(step);
      ++step_;
    }
    // The host ends with all devices.
    Numbers after{host_};
    for (int stream = 0; stream < kStreams; ++stream) after.push_back(last_[stream]);
    add({}, after);
  }

  std::vector<Node> nodes;
  int log = 0;

 private:
  int add(Node node, Numbers after) {
    std::erase(after, -1);
    node.after = std::move(after);
    node.place.step = step_;
    nodes.push_back(std::move(node));
    return static_cast<int>(nodes.size()) - 1;
  }

  int host(Node node = {}, Numbers after = {}) {
    after.push_back(host_);
    return host_ = add(std::move(node), std::move(after));
  }

  // The rule of streams: after what was issued to the stream before; the legacy stream of a device also after all of
  // its blocking streams, and these after the legacy stream.
  Numbers before(int stream) const {
    Numbers after{host_, last_[stream]};
    if (stream == 0) {
      for (int other = 1; other < kStreams; ++other) {
        if (device_of(other) == 0 && is_blocking(other)) after.push_back(last_[other]);
      }
    } else if (is_blocking(stream) && device_of(stream) == 0) {
      after.push_back(last_[0]);
    }
    return after;
  }

  int issue(int stream, Node node, const Numbers& also = {}) {
    Numbers after = before(stream);
    after.insert(after.end(), also.begin(), also.end());
    return last_[stream] = add(std::move(node), std::move(after));
  }

  // What one operation of a stream does.
  Node work(const Step& step) {
    Node node;
    switch (step.kind) {
      case Step::copy: node.copies = step.cells; break;
      case Step::fill: node.filled = step.cells[0].second, node.value = step.value; break;
      case Step::raise: node.raised = step.event, node.value = step.value; break;
      case Step::await: node.awaited = step.event, node.value = step.value; break;
      case Step::callback: node.read = step.cells[0].first; break;
      default: break;
    }
    return node;
  }

  void copy(const Step& step, int stream, bool now) {
    const auto [from, to] = step.cells[0];
    Node node = work({.kind = Step::copy, .cells = step.cells});
    if (kWhere[from] == Where::pageable) {  // read while the call lasts
      host({.staged = from});
      node.copies.clear();
      node.from_stage = host_;
      node.copies = {{-1, to}};
    }
    const int copied = issue(stream, node);
    const auto on_device = [](int cell) { return kWhere[cell] == Where::device0 || kWhere[cell] == Where::device1; };
    if (kWhere[to] == Where::pageable || (now && !(on_device(from) && on_device(to)))) host({}, {copied});
  }

  void host_step(const Step& step) {
    host();
    switch (step.kind) {
      case Step::copy: copy(step, step.stream, false); break;
      case Step::copy_now: copy(step, 0, true); break;
      case Step::batch: {
        Numbers copies;
        const Numbers after = before(step.stream);
        for (std::size_t i = 0; i < step.cells.size(); ++i) {
          copies.push_back(add({.copies = {step.cells[i]}, .place = {-1, static_cast<int>(i)}}, after));
        }
        issue(step.stream, {}, copies);
        break;
      }
      case Step::callback: {
        Node node = work(step);
        node.into = log++;
        issue(step.stream, node);
        break;
      }
      case Step::fill:
      case Step::raise:
      case Step::await:
      case Step::kernel: issue(step.stream, work(step)); break;
      case Step::record: events_[step.event] = issue(step.stream, {}); break;
      case Step::wait: issue(step.stream, {}, {events_.contains(step.event) ? events_[step.event] : -1}); break;
      case Step::sync_stream: host({}, {step.stream == 0 ? issue(0, {}) : last_[step.stream]}); break;
      case Step::sync_event: host({}, {events_.contains(step.event) ? events_[step.event] : -1}); break;
      case Step::sync_device: {
        Numbers after;
        for (int stream = 0; stream < kStreams; ++stream) {
          if (device_of(stream) == step.value) after.push_back(last_[stream]);
        }
        host({}, after);
        break;
      }
      case Step::host_write: host({.filled = step.cells[0].second, .value = step.value}); break;
      case Step::host_read: host({.read = step.cells[0].first, .into = log++}); break;
      case Step::capture: graphs_[step.value] = captured(step); break;
      case Step::launch: launch(step); break;
    }
  }

  // Capture: a stream's next node depends on the last one of the stream, and on what an event stands for that the
  // stream waited for. Only what is left of that matters: waits make no nodes.
  Graph captured(const Step& whole) {
    Graph graph;
    std::map<int, std::set<int>> frontier, events;
    for (std::size_t i = 0; i < whole.inside.size(); ++i) {
      const Step& step = whole.inside[i];
      if (step.kind == Step::record) {
        events[step.event] = frontier[step.stream];
      } else if (step.kind == Step::wait) {
        frontier[step.stream].insert(events[step.event].begin(), events[step.event].end());
      } else {
        Node node = work(step);
        node.place.inside = static_cast<int>(i);
        node.after.assign(frontier[step.stream].begin(), frontier[step.stream].end());
        graph.nodes.push_back(node);
        frontier[step.stream] = {static_cast<int>(graph.nodes.size()) - 1};
      }
    }
    return graph;
  }

  // A launch comes after the stream and after the graph's launch before; the stream goes on after all of it.
  void launch(const Step& step) {
    const Graph& graph = graphs_[step.value];
    const int begin = issue(step.stream, {}, {launched_.contains(step.value) ? launched_[step.value] : -1});
    Numbers all{begin}, placed;
    for (const Node& each : graph.nodes) {
      Node node = each;
      if (node.read >= 0) node.into = log++;
      Numbers after{begin};
      for (int before : each.after) after.push_back(placed[static_cast<std::size_t>(before)]);
      placed.push_back(add(std::move(node), std::move(after)));
      all.push_back(placed.back());
    }
    launched_[step.value] = issue(step.stream, {}, all);
  }

  int host_ = -1, step_ = 0;
  int last_[kStreams] = {-1, -1, -1, -1, -1, -1};
  std::map<int, int> events_, launched_;
  std::map<int, Graph> graphs_;
};

Numbers in_order(const std::vector<Node>& nodes) {
  Numbers missing(nodes.size()), ordered;
  std::vector<Numbers> next(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    missing[i] = static_cast<int>(nodes[i].after.size());
    for (int each : nodes[i].after) next[static_cast<std::size_t>(each)].push_back(static_cast<int>(i));
    if (!missing[i]) ordered.push_back(static_cast<int>(i));
  }
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    for (int each : next[static_cast<std::size_t>(ordered[i])]) {
      if (--missing[static_cast<std::size_t>(each)] == 0) ordered.push_back(each);
    }
  }
  return ordered;
}

using Before = std::vector<std::bitset<kMostNodes>>;

Before before_all(const std::vector<Node>& nodes, const Numbers& ordered) {
  Before before(nodes.size());
  for (int at : ordered) {
    for (int each : nodes[static_cast<std::size_t>(at)].after) {
      before[static_cast<std::size_t>(at)] |= before[static_cast<std::size_t>(each)];
      before[static_cast<std::size_t>(at)].set(static_cast<std::size_t>(each));
    }
  }
  return before;
}

// The rule of flags: whoever waits comes after the first write that is enough. False where it is open which that is.
bool add_flags(std::vector<Node>& nodes, const Before& before) {
  for (int flag = 0; flag < kAllFlags; ++flag) {
    Numbers writes;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].raised == flag) writes.push_back(static_cast<int>(i));
    }
    for (int one : writes) {
      for (int other : writes) {
        if (one >= other) continue;
        const bool forth = before[static_cast<std::size_t>(other)][static_cast<std::size_t>(one)];
        const bool back = before[static_cast<std::size_t>(one)][static_cast<std::size_t>(other)];
        if (!forth && !back) return false;
        const Node& first = nodes[static_cast<std::size_t>(forth ? one : other)];
        const Node& second = nodes[static_cast<std::size_t>(forth ? other : one)];
        if (first.value > second.value) return false;
      }
    }
    std::sort(writes.begin(), writes.end(), [&](int one, int other) {
      return before[static_cast<std::size_t>(other)][static_cast<std::size_t>(one)];
    });
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].awaited != flag) continue;
      const auto enough = std::find_if(writes.begin(), writes.end(), [&](int each) {
        return nodes[static_cast<std::size_t>(each)].value >= nodes[i].value;
      });
      // Nobody raises it that far: the wait depends on itself.
      nodes[i].after.push_back(enough == writes.end() ? static_cast<int>(i) : *enough);
    }
  }
  return true;
}

struct Access {
  int node, cell;
  bool write;
};

std::vector<Access> accesses(const std::vector<Node>& nodes) {
  std::vector<Access> all;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    const int at = static_cast<int>(i);
    for (const auto& [from, to] : node.copies) {
      if (from >= 0) all.push_back({at, from, false});
      all.push_back({at, to, true});
    }
    if (node.filled >= 0) all.push_back({at, node.filled, true});
    if (node.read >= 0) all.push_back({at, node.read, false});
    if (node.staged >= 0) all.push_back({at, node.staged, false});
  }
  return all;
}

std::pair<int, int> a_race(const std::vector<Node>& nodes, const Before& before) {
  const std::vector<Access> all = accesses(nodes);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      const auto [one, other] = std::pair{all[i], all[j]};
      if (one.cell != other.cell || !(one.write || other.write) || one.node == other.node) continue;
      const auto a = static_cast<std::size_t>(one.node), b = static_cast<std::size_t>(other.node);
      if (!before[a][b] && !before[b][a]) return {one.node, other.node};
    }
  }
  return {-1, -1};
}

Cell filled(int byte) {
  Cell cell;
  cell.fill(0x0101010101010101ull * static_cast<std::uint64_t>(byte));
  return cell;
}

Result carried_out(const std::vector<Node>& nodes, const Numbers& ordered, int log) {
  Result result{first_values(), std::vector<Cell>(static_cast<std::size_t>(log))};
  std::map<int, Cell> staged;
  for (int at : ordered) {
    const Node& node = nodes[static_cast<std::size_t>(at)];
    for (const auto& [from, to] : node.copies) {
      result.cells[static_cast<std::size_t>(to)] =
          from < 0 ? staged[node.from_stage] : result.cells[static_cast<std::size_t>(from)];
    }
    if (node.filled >= 0) result.cells[static_cast<std::size_t>(node.filled)] = filled(node.value);
    if (node.staged >= 0) staged[at] = result.cells[static_cast<std::size_t>(node.staged)];
    if (node.read >= 0)
      result.read[static_cast<std::size_t>(node.into)] = result.cells[static_cast<std::size_t>(node.read)];
  }
  return result;
}

}  // namespace

std::array<Cell, kCells> first_values() {
  std::array<Cell, kCells> cells;
  for (std::uint64_t i = 0; i < kCells; ++i) {
    for (std::uint64_t j = 0; j < kWords; ++j) cells[i][j] = (i + 1) << 32 | j;
  }
  return cells;
}

Judgement judge(const Program& program) {
  Building built(program);
  std::vector<Node>& nodes = built.nodes;
  if (nodes.size() > kMostNodes) return {Judgement::stands_still};
  Numbers ordered = in_order(nodes);
  if (!add_flags(nodes, before_all(nodes, ordered))) return {Judgement::open_flag};
  ordered = in_order(nodes);
  if (ordered.size() != nodes.size()) return {Judgement::stands_still};
  const Before before = before_all(nodes, ordered);
  if (const auto [one, other] = a_race(nodes, before); one >= 0) {
    return {
        Judgement::races, {}, nodes[static_cast<std::size_t>(one)].place, nodes[static_cast<std::size_t>(other)].place};
  }
  return {Judgement::sound, carried_out(nodes, ordered, built.log)};
}

}  // namespace coppice::emulated_gpu::testing
