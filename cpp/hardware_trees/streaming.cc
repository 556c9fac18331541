#include "hardware_trees/streaming.h"

#include <algorithm>
#include <stdexcept>

namespace coppice::aggregation {

namespace {

enum Type : std::uint8_t { kValues = 1, kSum = 2, kPause = 3, kResume = 4, kMissing = 5 };

bool well_formed(const FrameHead& head, int values) {
  const bool carries = head.type == kValues || head.type == kSum;
  return head.type >= kValues && head.type <= kMissing && head.tree == 0 && head.extra == 0 &&
         head.words == (carries ? values : 0);
}

std::uint32_t first_of(const Job& job) { return static_cast<std::uint32_t>(job.setting("first", 0)); }

void check(const Job& job) {
  check_job(job);
  const double first = job.setting("first", 0);
  require(first >= 0 && first < 0x1p32, "expected a first number of 0 to 2^32 - 1");
  const double headroom = job.setting("headroom", 0);
  require(headroom >= 0 && headroom < job.slots, "expected a headroom of 0 and more, less than the job's slots");
}

}  // namespace

void StreamingSwitch::open(const Job& job, std::span<const Endpoint> children, Endpoint parent) {
  check(job);
  jobs_.expect_new(job.id, job.slots);
  Service service;
  service.job = job;
  service.headroom = static_cast<int>(job.setting("headroom", 0));
  service.parties = JobParties(children, parent);
  service.ports.resize(children.size());
  for (Port& port : service.ports) port.next = first_of(job);
  service.added = first_of(job);
  service.queues.resize(children.size() * service.depth() * service.values());
  service.kept.resize(std::bit_ceil(static_cast<std::size_t>(job.window)));
  service.sums.resize(service.kept.size() * service.values());
  service.frame = FrameBuffer(job.values);
  jobs_.open(job.id, std::move(service), job.slots);
}

void StreamingSwitch::close(std::uint32_t job) { jobs_.close(job); }

std::int64_t StreamingSwitch::slots_in_use() const {
  return jobs_.total([](const Service& service) {
    std::int64_t used = std::count(service.kept.begin(), service.kept.end(), partial);
    for (std::size_t port = 0; port < service.ports.size(); ++port) used += service.queued(port);
    return used;
  });
}

// Whose queues are empty while others' are not.
std::vector<int> StreamingSwitch::waits_for(std::uint32_t job) const {
  std::vector<int> empty;
  const Service* const service = jobs_.find(job);
  if (service == nullptr) return empty;
  for (std::size_t port = 0; port < service->ports.size(); ++port) {
    if (service->queued(port) == 0) empty.push_back(static_cast<int>(port));
  }
  return empty.size() == service->ports.size() ? std::vector<int>{} : empty;
}

std::int64_t StreamingSwitch::memory(std::uint32_t job) const {
  const Service& service = jobs_.at(job);
  return static_cast<std::int64_t>(sizeof(Word) * (service.queues.size() + service.sums.size()));
}

void StreamingSwitch::receive(Endpoint from, Bytes packet, Time now, Outbox& out) {
  count(Count::received);
  FrameHead head;
  if (!FrameHead::read(packet, head)) return count(Count::malformed);
  const auto [service, child] = jobs_.sender(head.job, from);
  if (service == nullptr) return count(Count::unknown_sender);
  if (!well_formed(head, service->job.values) || (child >= 0) != (head.type == kValues)) return count(Count::malformed);
  if (child < 0) return from_parent(*service, head, packet, now, out);
  from_child(*service, static_cast<std::size_t>(child), head, packet, now, out);
}

void StreamingSwitch::from_child(Service& service, std::size_t child, const FrameHead& head, Bytes packet, Time now,
                                 Outbox& out) {
  Port& port = service.ports[child];
  const std::int32_t step = after(head.number, port.next);
  if (step < 0) {
    again(service, child, head.number, now, out);
    add(service, now, out);  // where a pause of the parent has ended
  } else if (step > 0) {
    count(Count::future);
    if (!port.told) send(service, kMissing, port.next, service.parties.one(child), out);
    port.told = true;
  } else if (service.queued(child) == service.job.slots) {
    count(Count::over_quota);
    port.paused = port.told = port.overflowed = true;
    send(service, kPause, port.next, service.parties.one(child), out);
    add(service, now, out);
  } else {
    count(Count::aggregated);
    load_words(&service.queues[service.at(child, port.next)], packet);
    ++port.next;
    port.told = false;
    service.most_queued = std::max(service.most_queued, service.queued(child));
    add(service, now, out);
    if (!port.paused && service.queued(child) >= service.job.slots - service.headroom) {
      port.paused = true;
      send(service, kPause, port.next, service.parties.one(child), out);
    }
  }
}

void StreamingSwitch::again(Service& service, std::size_t child, std::uint32_t number, Time now, Outbox& out) {
  const std::int32_t behind = after(service.added, number);
  if (behind <= 0) {
    count(Count::duplicate);
  } else if (behind > service.job.window || service.kept[service.place(number)] == nothing) {
    count(Count::stale);
  } else if (service.kept[service.place(number)] == result) {
    count(Count::answered);
    send(service, kSum, number, service.parties.one(child), out);
  } else {
    count(Count::duplicate);
    if (now < service.parent_paused_until) return;
    count(Count::resent);
    send(service, kValues, number, service.parties.above(), out);
  }
}

void StreamingSwitch::from_parent(Service& service, const FrameHead& head, Bytes packet, Time now, Outbox& out) {
  const std::int32_t behind = after(service.added, head.number);
  switch (head.type) {
    case kPause:
      service.parent_paused_until = later(now, service.job.timeout);
      return;
    case kResume:
      service.parent_paused_until = 0;
      add(service, now, out);
      return;
    case kMissing:
      if (behind <= 0 || behind > service.job.window) return count(Count::stale);
      for (std::uint32_t number = head.number; number != service.added; ++number) {
        if (service.kept[service.place(number)] != partial) continue;
        count(Count::resent);
        send(service, kValues, number, service.parties.above(), out);
      }
      return;
    default: break;
  }
  if (behind <= 0) {
    count(Count::future);
  } else if (behind > service.job.window) {
    count(Count::stale);
  } else if (service.kept[service.place(head.number)] != partial) {
    count(Count::duplicate);
  } else {
    count(Count::completed);
    load_words(service.sum(head.number).data(), packet);
    service.kept[service.place(head.number)] = result;
    send(service, kSum, head.number, service.parties.children(), out);
    add(service, now, out);
  }
}

// Adds the heads of the queues as long as all queues have one.
void StreamingSwitch::add(Service& service, Time now, Outbox& out) {
  const bool root = service.parties.root();
  const std::size_t ports = service.ports.size();
  const auto waits = [&](std::size_t port) { return service.queued(port) == 0; };
  bool added = false;
  while (true) {
    bool ready = root || (now >= service.parent_paused_until && service.kept[service.place(service.added)] != partial);
    for (std::size_t port = 0; ready && port < ports; ++port) ready = !waits(port);
    if (!ready) break;
    const std::uint32_t number = service.added;
    const std::span<Word> sum = service.sum(number);
    std::copy_n(&service.queues[service.at(0, number)], sum.size(), sum.data());
    for (std::size_t port = 1; port < ports; ++port) {
      add_words(service.job.element, sum.data(), &service.queues[service.at(port, number)], sum.size());
    }
    service.kept[service.place(number)] = root ? result : partial;
    ++service.added;
    added = true;
    if (root) {
      count(Count::completed);
      send(service, kSum, number, service.parties.children(), out);
    } else {
      count(Count::forwarded);
      send(service, kValues, number, service.parties.above(), out);
    }
  }
  if (!added) return;
  for (std::size_t port = 0; port < ports; ++port) {
    if (!service.ports[port].paused || 2 * service.queued(port) > service.job.slots - service.headroom) continue;
    service.ports[port].paused = false;
      send(service, kResume, service.ports[port].next, service.parties.one(port), out);
    if (service.ports[port].overflowed) send(service, kMissing, service.ports[port].next, service.parties.one(port), out);
    service.ports[port].overflowed = false;
  }
}

void StreamingSwitch::send(Service& service, std::uint8_t type, std::uint32_t number, std::span<const Endpoint> to,
                           Outbox& out) {
  const bool carries = type == kValues || type == kSum;
  const FrameHead head{.type = type, .job = service.job.id, .number = number};
  out.send(to, service.frame.with(head, carries ? std::span<const Word>(service.sum(number)) : std::span<const Word>()));
}

void StreamingSwitch::save(Time now, StateWriter& state) const {
  for (const auto& [id, service] : jobs_) {
    state << id << service.added << std::max<Time>(service.parent_paused_until - now, 0);
    for (const Port& port : service.ports) state << port.next << port.told << port.paused << port.overflowed;
    state << service.kept;
    for (std::size_t port = 0; port < service.ports.size(); ++port) {
      for (std::uint32_t number = service.added; number != service.ports[port].next; ++number) {
        for (std::size_t i = 0; i < service.values(); ++i) state << service.queues[service.at(port, number) + i];
      }
    }
    for (std::size_t place = 0; place < service.kept.size(); ++place) {
      if (service.kept[place] == nothing) continue;
      for (std::size_t i = 0; i < service.values(); ++i) state << service.sums[place * service.values() + i];
    }
  }
}

StreamingWorker::StreamingWorker(const Job& job, int index, Endpoint above)
    : WindowWorker(job, index, above, first_of(job)), words_(static_cast<std::size_t>(job.values)), frame_(job.values) {
  check(job);
}

void StreamingWorker::begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) {
  require(done(), "expected the all-reduce before to be done");
  input_ = static_cast<const Word*>(input);
  output_ = static_cast<Word*>(output);
  count_ = count;
  start((count + words_.size() - 1) / words_.size(), now, out);
}

void StreamingWorker::write(std::uint32_t number, Outbox& out) {
  const std::size_t at = static_cast<std::size_t>(number - first_) * words_.size();
  const std::size_t count = std::min(words_.size(), count_ - at);
  std::copy_n(input_ + at, count, words_.begin());
  std::fill(words_.begin() + static_cast<std::ptrdiff_t>(count), words_.end(), Word{0});
  out.send(above_, frame_.with({.type = kValues, .job = job_.id, .number = number}, words_));
}

void StreamingWorker::receive(Endpoint from, Bytes packet, Time now, Outbox& out) {
  FrameHead head;
  if (!read(from, packet, head)) return;
  if (!well_formed(head, job_.values) || head.type == kValues) {
    count(Count::malformed);
  } else if (head.type == kPause) {
    if (!done()) paused_until_ = later(now, job_.timeout);
  } else if (head.type == kResume) {
    paused_until_ = 0;
    proceed(out);
  } else if (head.type == kMissing) {
    if (after(head.number, base_) < 0) {
      count(Count::stale);
    } else if (after(head.number, sent_) >= 0) {
      count(Count::future);
    } else {
      send_again(head.number, out);
    }
  } else if (awaited(head.number)) {
    load_words(words_.data(), packet);
    const std::size_t at = static_cast<std::size_t>(head.number - first_) * words_.size();
    std::copy_n(words_.begin(), std::min(words_.size(), count_ - at), output_ + at);
    take(head.number, now, out);
  }
}

}  // namespace coppice::aggregation
