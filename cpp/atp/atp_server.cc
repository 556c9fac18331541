#include "atp/atp_server.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "aggregation/state.h"

namespace coppice::aggregation {

using namespace atp;

void AtpServer::open(const Job& job, std::span<const Endpoint> children, Endpoint parent) {
  check(job);
  const std::vector<Endpoint> through(static_cast<std::size_t>(job.workers), parent);
  const Ways ways(parent == kNobody ? children : std::span<const Endpoint>(through));
  if (children.size() > static_cast<std::size_t>(kMostWorkers) || ways.mask != everybody(job.workers)) {
    throw std::invalid_argument("job " + std::to_string(job.id) + " cannot be opened in this server of atp: expected " +
                                "a way to each of " + std::to_string(job.workers) + " workers");
  }
  jobs_.expect_new(job.id);
  jobs_.open(job.id, {{job.id, {}}, job.workers, job.slots, job.element, ways, std::vector<Chunk>(kChunks)});
}

void AtpServer::close(std::uint32_t job) { jobs_.close(job); }

std::int64_t AtpServer::slots_in_use() const {
  return jobs_.total([](const Served& job) {
    return std::ranges::count_if(job.chunks, [](const Chunk& chunk) {
      return chunk.state == State::open || chunk.state == State::floats;
    });
  });
}

std::vector<int> AtpServer::waits_for(std::uint32_t job) const {
  const Served* const served = jobs_.find(job);
  if (served == nullptr) return {};
  std::uint32_t late = 0;
  for (const Chunk& chunk : served->chunks) {
    if (chunk.state == State::open || chunk.state == State::floats) late |= ~chunk.bitmap;
  }
  return served->ways.list(late);
}

void AtpServer::receive(Endpoint from, Bytes packet, Time, Outbox& out) {
  count(Count::received);
  Header header;
  if (!read(packet, header)) return count(Count::malformed);
  Served* const found = jobs_.find(header.application);
  if (found == nullptr || !found->ways.own(from, header.bitmap)) return count(Count::unknown_sender);
  Served& job = *found;
  const bool one = std::has_single_bit(header.bitmap);
  if (header.workers != job.workers || (header.has(kOverflow) && (job.element != Element::float32 || !one)) ||
      (header.has(kOverflow | kAck) && !header.has(kResend))) {
    return count(Count::malformed);
  }
  if (std::max(header.aggregator, header.next) >= job.slots) return count(Count::out_of_range);
  Chunk& chunk = job.chunks[header.key % kChunks];
  const bool known = chunk.state != State::empty && chunk.key == header.key;
  if (chunk.state != State::empty && chunk.key > header.key) return count(Count::stale);
  if (known && chunk.length != header.length) return count(Count::malformed);
  if (known && chunk.state == State::done) {
    if (!header.has(kResend) || header.has(kAck)) return count(Count::duplicate);
    count(Count::answered);
    return answer(job, chunk, header, header.bitmap, out);
  }
  if (!known) {
    if (header.has(kAck)) {  // nobody asked
      return count(Count::stale);
    }
    chunk.state = State::open;
    chunk.flags = 0;
    chunk.bitmap = 0;
    chunk.length = header.length;
    chunk.key = header.key;
  }
  chunk.flags |= header.flags & (kCongested | kCollision);
  if (header.has(kAck)) {  // the result, from a worker that has had it
    load_values(packet.data() + kValuesAt, chunk.values.data(), kValues);
    chunk.state = State::done;
    chunk.flags = static_cast<std::uint8_t>((chunk.flags & kCongested) | (header.flags & kOverflow));
    chunk.next = header.next;
    count(Count::completed);
    return answer(job, chunk, header, job.ways.mask, out);
  }
  if (header.has(kOverflow)) return as_float(job, chunk, header, packet, out);
  contribution(job, chunk, header, packet, out);
}

void AtpServer::contribution(Served& job, Chunk& chunk, const Header& header, Bytes packet, Outbox& out) {
  if (chunk.state == State::floats) {
    count(Count::duplicate);
    if (header.has(kResend)) ask(job, header, kOverflow, job.ways.mask & ~chunk.bitmap, out);
    return;
  }
  if (!merge(chunk, header, packet)) {
    count(Count::duplicate);
    const bool nothing_new = (header.bitmap & ~chunk.bitmap) == 0;
    if (header.has(kResend) && nothing_new) ask(job, header, 0, job.ways.mask & ~chunk.bitmap, out);
    return;
  }
  count(Count::aggregated);
  if (chunk.bitmap != job.ways.mask) return;
  const bool stuck = std::any_of(chunk.values.begin(), chunk.values.end(), [](std::int32_t value) {
    return value == std::numeric_limits<std::int32_t>::max() || value == std::numeric_limits<std::int32_t>::min();
  });
  if (stuck && job.element == Element::float32) {
    want_floats(job, chunk);
    return ask(job, header, kOverflow, job.ways.mask, out);
  }
  finish(job, chunk, header, out);
}

// Whether the contributions of the packet are in the chunk by this.
bool AtpServer::merge(Chunk& chunk, const Header& header, Bytes packet) {
  const std::uint8_t* wire = packet.data() + kValuesAt;
  if ((chunk.bitmap & ~header.bitmap) == 0 && chunk.bitmap != header.bitmap) {
    load_values(wire, chunk.values.data(), kValues);  // the first, or more than is here
  } else if ((chunk.bitmap & header.bitmap) == 0) {
    counters_[Count::saturated] += static_cast<std::uint64_t>(add_sticking(chunk.values.data(), wire, kValues));
  } else {
    return false;
  }
  chunk.bitmap |= header.bitmap;
  return true;
}

void AtpServer::want_floats(const Served& job, Chunk& chunk) {
  chunk.state = State::floats;
  chunk.bitmap = 0;
  chunk.each.assign(static_cast<std::size_t>(job.workers) * kValues, 0);
}

void AtpServer::as_float(Served& job, Chunk& chunk, const Header& header, Bytes packet, Outbox& out) {
  if (chunk.state != State::floats) want_floats(job, chunk);
  if ((chunk.bitmap & header.bitmap) != 0) {
    count(Count::duplicate);
    return ask(job, header, kOverflow, job.ways.mask & ~chunk.bitmap, out);
  }
  const auto worker = static_cast<std::size_t>(std::countr_zero(header.bitmap));
  load_values(packet.data() + kValuesAt, chunk.each.data() + worker * kValues, kValues);
  chunk.bitmap |= header.bitmap;
  count(Count::aggregated);
  if (chunk.bitmap != job.ways.mask) return;
  for (std::size_t at = 0; at < kValues; ++at) {
    double sum = 0;
    for (int each = 0; each < job.workers; ++each) {
      sum += std::bit_cast<float>(chunk.each[static_cast<std::size_t>(each) * kValues + at]);
    }
    const float rounded = std::isnan(sum) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(sum);
    chunk.values[at] = std::bit_cast<std::int32_t>(rounded);
  }
  chunk.each.clear();
  chunk.flags |= kOverflow;
  finish(job, chunk, header, out);
}

void AtpServer::finish(const Served& job, Chunk& chunk, const Header& header, Outbox& out) {
  chunk.state = State::done;
  chunk.next = header.aggregator;
  if ((chunk.flags & kCollision) != 0) {
    chunk.next = rehashed(header.application, header.aggregator, job.slots);
    count(Count::collided);
  }
  count(Count::completed);
  answer(job, chunk, header, job.ways.mask, out);
}

void AtpServer::answer(const Served& job, const Chunk& chunk, const Header& header, std::uint32_t whom, Outbox& out) {
  Header result = header;
  result.bitmap = whom;
  result.flags = chunk.flags | kAck;
  result.next = chunk.next;
  write(result, scratch_.data());
  store_values(chunk.values.data(), scratch_.data() + kValuesAt, kValues);
  job.ways.send(whom, scratch_, out);
}

void AtpServer::ask(const Served& job, const Header& header, std::uint8_t flags, std::uint32_t whom, Outbox& out) {
  if (whom == 0) return;
  Header question = header;
  question.bitmap = whom;
  question.flags = flags | kResend;
  question.next = header.aggregator;
  scratch_.fill(0);
  write(question, scratch_.data());
  job.ways.send(whom, scratch_, out);
}

void AtpServer::save(Time, StateWriter& state) const {
  for (const auto& [id, job] : jobs_) {
    state << id;
    for (const Chunk& chunk : job.chunks) {
      state << chunk.state;
      if (chunk.state == State::empty) continue;
      state << chunk.flags << chunk.next << chunk.bitmap << chunk.length << chunk.key;
      state.put(chunk.values.data(), chunk.values.size());
      state.put(chunk.each.data(), chunk.each.size());
    }
  }
}

}  // namespace coppice::aggregation
