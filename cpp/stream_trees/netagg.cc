#include "stream_trees/netagg.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "aggregation/bytes.h"
#include "aggregation/state.h"

namespace coppice::aggregation {

using namespace netagg;

namespace {

constexpr std::size_t kMostOutgoing = 64;

}  // namespace

NetAgg::Application::Application(const Job& job, const Options& with, JobParties of)
    : ServedJob{job.id, std::move(of)}, options(with), up(job, with, parties.parent(), with.fallbacks), slots(with.places) {
  for (Endpoint each : parties.children()) {
    children.push_back({.at = each,
                        .window = ReceiveWindow(with.first),
                        .down = SendWindow({each}, with.window, with.most_bytes, with.first, job.timeout, job.give_up_timeout)});
    children.back().standby = children.size() + static_cast<std::size_t>(with.standby) > parties.size();
    children.back().listens = !children.back().standby;
  }
  for (Slot& each : slots) each.values.reserve(2 * with.merge.most);
  share.weight = with.weight;
}

std::uint32_t NetAgg::Application::members() const {
  std::uint32_t all = options.members;
  if (all != 0) return all;
  for (const Child& each : children) {
    if (!each.standby && each.members == 0) return 0;
    if (!each.standby) all |= each.members;
  }
  return all;
}

// What to say beside these contributors: the workers below, where that is true of them.
std::uint32_t NetAgg::Application::members_of(std::uint32_t contributors) const {
  const std::uint32_t all = members();
  return (contributors & ~all) == 0 ? all : 0;
}

void NetAgg::open(const Job& job, std::span<const Endpoint> children, Endpoint parent) {
  const Options options(job);
  if (children.size() <= static_cast<std::size_t>(options.standby)) {
    throw std::invalid_argument("expected at least 1 child that is not on standby, found none");
  }
  applications_.expect_new(job.id, options.places);
  applications_.open(job.id, Application(job, options, JobParties(children, parent)), options.places);
}

void NetAgg::close(std::uint32_t job) {
  applications_.close(job);  // a task of it that runs takes its time
}

std::int64_t NetAgg::slots_in_use() const {
  return applications_.total([](const Application& app) { return app.open; });
}

std::vector<int> NetAgg::waits_for(std::uint32_t job) const {
  std::vector<int> found;
  const Application* const app = applications_.find(job);
  if (app == nullptr) return found;
  for (std::size_t child = 0; child < app->children.size(); ++child) {
    const Child& each = app->children[child];
    const bool late = std::ranges::any_of(app->slots, [&](const Slot& slot) {
      return slot.state == Slot::State::open && (each.members == 0 || (each.members & ~slot.merged) != 0);
    });
    if (late && !each.standby) found.push_back(static_cast<int>(child));
  }
  return found;
}

void NetAgg::receive(Endpoint from, Bytes packet, Time now, Outbox& out) {
  count(Count::received);
  if (packet.size() < kHeartbeatBytes || packet[0] < kPartial || packet[0] > kHeartbeat) return count(Count::malformed);
  Application* const found = applications_.find(load<std::uint32_t>(packet.data() + 4));
  if (found == nullptr) return count(Count::out_of_range);
  Application& app = *found;
  const int child = app.parties.find(from);
  ReceiveWindow* const above = app.up.window_of(from);
  if (child < 0 && above == nullptr) return count(Count::unknown_sender);
  if (above != nullptr) app.up.heard(from, now);
  if (packet[0] == kAcknowledgement) return acknowledged(app, from, packet, now, out);
  if (packet[0] == kHeartbeat) {
    if (packet.size() != kHeartbeatBytes || load<std::uint32_t>(packet.data()) != std::uint32_t{kHeartbeat} << 24) {
      count(Count::malformed);
    }
    return;
  }
  if (packet.size() < kHeadBytes || !valid(read_head(packet.data()), packet, app.options)) {
    return count(Count::malformed);
  }
  if (packet[0] == kPartial && child >= 0) return from_child(app, static_cast<std::size_t>(child), packet, now, out);
  if (packet[0] == kResult && above != nullptr) return from_above(app, *above, from, packet, now, out);
  count(Count::unknown_sender);
}

void NetAgg::from_child(Application& app, std::size_t index, Bytes packet, Time now, Outbox& out) {
  Child& child = app.children[index];
  const Head head = read_head(packet.data());
  const Arrival arrival = child.window.look(head.sequence);
  const Slot& slot = app.slot(head.request);
  if (arrival == Arrival::future) return count(Count::future);
  if (arrival == Arrival::duplicate) {
    count(Count::duplicate);
  } else if (slot.state == Slot::State::open && slot.request == head.request &&
             !app.options.merge.fits(slot.values.size(), head.count)) {
    return count(Count::out_of_range);
  } else if (app.outgoing.size() >= kMostOutgoing || app.tasks.size() >= 2 * app.slots.size() * app.children.size()) {
    count(Count::over_quota);
    child.refused = true;
    return;
  } else {
    child.window.take(head.sequence);
    child.listens = true;
    if (app.options.rate == 0) {
      merge(app, index, packet, now, out);
    } else {
      if (app.tasks.empty()) app.share.wait(clock_);
      app.tasks.emplace_back(index, std::vector<std::uint8_t>(packet.begin(), packet.end()));
      start_task(now);
    }
    if (app.beat == kNever && app.options.heartbeat != 0) app.beat = now + app.options.heartbeat;
  }
  send_acknowledgement(child.at, app.id, child.window, false, out);
}

// One message into its request.
void NetAgg::merge(Application& app, std::size_t index, Bytes packet, Time now, Outbox& out) {
  const Head head = read_head(packet.data());
  const bool root = !app.up.exists();
  Child& child = app.children[index];
  Slot& slot = app.slot(head.request);
  if (!head.alone() && head.members != 0) child.members = head.members;
  const std::int32_t after = slot.state == Slot::State::empty ? 1 : distance(head.request, slot.request);
  if (after < 0) return count(Count::stale);
  if (after == 0 && slot.state == Slot::State::done) {
    count(Count::answered);
    send_result(app, child, slot, now, out);
    return;
  }
  if (head.alone() && !root) {
    count(Count::forwarded);
    send_up(app, packet, now, out);
    return;
  }
  if (after > 0) {
    if (slot.state == Slot::State::open) {
      count(Count::evicted);  // its sum came to be without this box, or it would not be the turn of this one
      app.asked -= slot.sent != 0 ? 1 : 0;
    } else {
      ++app.open;
    }
    slot.state = Slot::State::open;
    slot.request = head.request;
    slot.sent = 0;
    slot.values.resize(head.count);
    keep(slot.values.data(), packet.data() + kHeadBytes, head.count);
    if (app.options.straggler != 0 && !root) app.stragglers.emplace_back(now + app.options.straggler, head.request);
    slot.merged = head.contributors;
  } else if ((head.contributors & slot.merged) != 0) {
    const bool known = (head.contributors & ~slot.merged) == 0;
    count(known ? Count::duplicate : Count::collided);
  } else if (!app.options.merge.fits(slot.values.size(), head.count)) {
    count(Count::out_of_range);
  } else {
    count(Count::aggregated);
    app.options.merge(slot.values, packet.data() + kHeadBytes, head.count);
    slot.merged |= head.contributors;
    if (slot.sent != 0) {
      // The rest was not waited for.
      count(Count::forwarded);
      slot.sent |= head.contributors;
      message_.assign(packet.begin(), packet.end());
      store(message_.data() + 20, app.members_of(head.contributors));
      send_up(app, message_, now, out);
    }
  }
  const std::uint32_t members = app.members();
  if (slot.sent == 0 && members != 0 && (members & ~slot.merged) == 0) complete(app, slot, now, out);
}

void NetAgg::complete(Application& app, Slot& slot, Time now, Outbox& out) {
  count(Count::completed);
  if (app.up.exists()) return pass_on(app, slot, now, out);
  slot.state = Slot::State::done;
  --app.open;
  for (Child& each : app.children) {
    if (each.listens) send_result(app, each, slot, now, out);
  }
}

// What is merged so far goes up.
void NetAgg::pass_on(Application& app, Slot& slot, Time now, Outbox& out) {
  if (slot.sent == 0 && app.asked++ == 0) app.up.watch(now);
  slot.sent = slot.merged;
  message_.resize(kHeadBytes + 4 * slot.values.size());
  write_head(message_.data(),
             {kPartial, static_cast<std::uint8_t>(app.options.merge.kind), 0, 0, app.id, 0, slot.request, slot.merged,
              app.members_of(slot.merged), static_cast<std::uint16_t>(slot.values.size()), 0});
  put(message_.data() + kHeadBytes, slot.values.data(), slot.values.size());
  send_up(app, message_, now, out);
}

void NetAgg::send_up(Application& app, Bytes message, Time now, Outbox& out) {
  if (app.up.stream().room() && app.outgoing.empty()) return put_up(app, message, now, out);
  app.outgoing.emplace_back(message.begin(), message.end());
}

void NetAgg::put_up(Application& app, Bytes message, Time now, Outbox& out) {
  SendWindow& stream = app.up.stream();
  std::uint8_t* place = stream.place(stream.next());
  std::copy(message.begin(), message.end(), place);
  store(place + 8, stream.next());
  stream.send(stream.next(), message.size(), now, out, counters_);
}

// To one child, when its stream has room.
void NetAgg::send_result(Application& app, Child& child, const Slot& slot, Time now, Outbox& out) {
  SendWindow& stream = child.down;
  if (!stream.room()) {
    const bool known = std::find(child.owed.begin(), child.owed.end(), slot.request) != child.owed.end();
    if (!known) child.owed.push_back(slot.request);
    return;
  }
  std::uint8_t* place = stream.place(stream.next());
  write_head(place, {kResult, static_cast<std::uint8_t>(app.options.merge.kind), 0, 0, app.id, stream.next(), slot.request,
                     slot.merged, 0, static_cast<std::uint16_t>(slot.values.size()), 0});
  put(place + kHeadBytes, slot.values.data(), slot.values.size());
  stream.send(stream.next(), kHeadBytes + 4 * slot.values.size(), now, out, counters_);
}

void NetAgg::from_above(Application& app, ReceiveWindow& window, Endpoint from, Bytes packet, Time now, Outbox& out) {
  const Head head = read_head(packet.data());
  const Arrival arrival = window.look(head.sequence);
  if (arrival == Arrival::future) return count(Count::future);
  Slot& slot = app.slot(head.request);
  const std::int32_t after = slot.state == Slot::State::empty ? 1 : distance(head.request, slot.request);
  if (arrival == Arrival::fresh) window.take(head.sequence);
  if (arrival == Arrival::duplicate || (after == 0 && slot.state == Slot::State::done)) {
    count(Count::duplicate);
  } else if (after < 0) {
    count(Count::stale);
  } else {
    if (slot.state == Slot::State::open) {
      --app.open;
      app.asked -= slot.sent != 0 ? 1 : 0;
    }
    slot.state = Slot::State::done;
    slot.request = head.request;
    slot.merged = slot.sent = head.contributors;
    slot.values.resize(head.count);
    keep(slot.values.data(), packet.data() + kHeadBytes, head.count);
    for (Child& each : app.children) {
      if (each.listens) send_result(app, each, slot, now, out);
    }
  }
  send_acknowledgement(from, app.id, window, false, out);
}

void NetAgg::acknowledged(Application& app, Endpoint from, Bytes packet, Time now, Outbox& out) {
  if (packet.size() != kAcknowledgementBytes || packet[1] > 1 || packet[2] != 0 || packet[3] != 0) {
    return count(Count::malformed);
  }
  const int child = app.parties.find(from);
  if (child < 0 && from != app.up.now_at()) {
    count(Count::stale);  // of a parent that was given up
    return;
  }
  SendWindow& stream = child >= 0 ? app.children[static_cast<std::size_t>(child)].down : app.up.stream();
  if (stream.acknowledge(0, load<std::uint32_t>(packet.data() + 8), load<std::uint64_t>(packet.data() + 12), packet[1] != 0,
                         now, out, counters_) == Acknowledged::impossible) {
    count(Count::out_of_range);
  }
  if (child >= 0) pay(app, app.children[static_cast<std::size_t>(child)], now, out);
  proceed(app, now, out);
}

// Sends a child the results that had no room. A copy is kept until no child can be without it, but for a child that had
// died: nobody waits for what is not kept any more.
void NetAgg::pay(Application& app, Child& child, Time now, Outbox& out) {
  while (!child.owed.empty() && child.down.room()) {
    const Slot& slot = app.slot(child.owed.front());
    const bool kept = slot.state == Slot::State::done && slot.request == child.owed.front();
    child.owed.pop_front();
    if (kept) send_result(app, child, slot, now, out);
  }
}

// Sends up what had no room, and asks again for what was refused.
void NetAgg::proceed(Application& app, Time now, Outbox& out) {
  while (!app.outgoing.empty() && app.up.stream().room()) {
    put_up(app, app.outgoing.front(), now, out);
    app.outgoing.pop_front();
  }
  // Half of the room has to be free, and one child is asked at a time.
  if (app.outgoing.size() >= kMostOutgoing / 2 || app.tasks.size() >= app.slots.size() * app.children.size()) return;
  for (std::size_t step = 1; step <= app.children.size(); ++step) {
    const std::size_t which = (app.asked_child + step) % app.children.size();
    Child& child = app.children[which];
    if (!child.refused) continue;
    child.refused = false;
    app.asked_child = which;
    send_acknowledgement(child.at, app.id, child.window, true, out);
    break;
  }
}

void NetAgg::start_task(Time now) {
  if (task_end_ != kNever) return;
  Application* chosen = nullptr;
  for (auto& [id, app] : applications_) {
    if (app.tasks.empty()) continue;
    if (chosen == nullptr || app.share.after_next() < chosen->share.after_next()) chosen = &app;
  }
  if (chosen == nullptr) return;
  served_ = chosen->id;
  clock_ = chosen->share.used;
  task_start_ = now;
  const auto bytes = static_cast<std::int64_t>(chosen->tasks.front().second.size());
  task_end_ = now + chosen->options.latency + bytes * 1'000'000'000 / chosen->options.rate;
}

void NetAgg::finish_task(Time now, Outbox& out) {
  task_end_ = kNever;
  Application* const found = applications_.find(served_);
  if (found == nullptr || found->tasks.empty()) return start_task(now);  // closed meanwhile
  Application& app = *found;
  const auto [child, packet] = std::move(app.tasks.front());
  app.tasks.pop_front();
  app.share.charge(now - task_start_);
  merge(app, child, packet, now, out);
  proceed(app, now, out);
  start_task(now);
}

// The parent is dead: all that is open goes to the next one.
void NetAgg::fail_over(Application& app, Time now, Outbox& out) {
  app.up.fail_over(now);
  app.outgoing.clear();
  std::vector<Slot*> open;
  for (Slot& each : app.slots) {
    if (each.state == Slot::State::open && each.sent != 0) open.push_back(&each);
  }
  std::sort(open.begin(), open.end(), [](const Slot* a, const Slot* b) { return distance(a->request, b->request) < 0; });
  for (Slot* each : open) pass_on(app, *each, now, out);
}

Time NetAgg::deadline() const {
  Time first = task_end_;
  for (const auto& [id, app] : applications_) {
    first = std::min({first, app.up.stream().deadline(), app.up.suspicion(app.asked != 0), app.beat});
    if (!app.stragglers.empty()) first = std::min(first, app.stragglers.front().first);
    for (const Child& each : app.children) first = std::min(first, each.down.deadline());
  }
  return first;
}

void NetAgg::wake(Time now, Outbox& out) {
  if (now >= task_end_) finish_task(now, out);
  for (auto& [id, app] : applications_) {
    app.up.stream().wake(now, out, counters_);
    for (Child& each : app.children) each.down.wake(now, out, counters_);
    for (; !app.stragglers.empty() && now >= app.stragglers.front().first; app.stragglers.pop_front()) {
      Slot& slot = app.slot(app.stragglers.front().second);
      const bool waits = slot.state == Slot::State::open && slot.request == app.stragglers.front().second && slot.sent == 0;
      if (waits) pass_on(app, slot, now, out);
    }
    if (now >= app.up.suspicion(app.asked != 0)) fail_over(app, now, out);
    if (now < app.beat) continue;
    bool awaited = app.open != 0 || !app.tasks.empty();
    for (const Child& each : app.children) awaited = awaited || each.down.deadline() != kNever;
    app.beat = awaited ? now + app.options.heartbeat : kNever;
    std::uint8_t packet[kHeartbeatBytes] = {kHeartbeat};
    store(packet + 4, app.id);
    for (const Child& each : app.children) {
      if (each.listens) out.send(each.at, packet);
    }
  }
}

void NetAgg::save(Time now, StateWriter& state) const {
  state.until(task_end_, now) << (task_end_ == kNever ? 0 : task_start_ - now) << served_;
  for (const auto& [id, app] : applications_) {
    state << id << app.share.used - clock_ << app.share.mean << app.asked_child;
    state.until(app.beat, now);
    for (const Child& each : app.children) {
      state << each.members << each.refused << each.listens;
      each.window.save(state);
      each.down.save(now, state);
      state << each.owed.size();
      for (std::uint32_t request : each.owed) state << request;
    }
    app.up.save(now, state);
    for (const Slot& each : app.slots) {
      state << each.state;
      if (each.state == Slot::State::empty) continue;
      state << each.request << each.merged << each.sent << each.values;
    }
    for (const auto& [time, request] : app.stragglers) state << time - now << request;
    for (const auto& each : app.outgoing) state << each;
    for (const auto& [child, packet] : app.tasks) state << child << packet;
  }
}

}  // namespace coppice::aggregation
