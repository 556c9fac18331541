#include "put_signal/machine.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace coppice::put_signal {

namespace {

constexpr std::int32_t kWriter = -1;

bool lies_in(std::int32_t slot, std::int32_t first, std::int32_t count) { return slot >= first && slot < first + count; }

/// Does the operation read this slot?
bool reads(const Operation& op, std::int32_t slot) {
  return lies_in(slot, op.source, op.count) || (op.act == Act::kSum && lies_in(slot, op.addend, op.count));
}

void copy(std::uint64_t* to, const std::uint64_t* from, std::int64_t words) {
  if (words == 1)
    *to = *from;
  else
    std::memcpy(to, from, at(words) * sizeof *to);
}

}  // namespace

Machine::Machine(const Script& script, const Contents& contents, Agenda& agenda)
    : script_(script), contents_(contents), agenda_(agenda) {
  const std::size_t ranks = at(script.num_ranks), slots = at(script.num_slots);
  const auto fits = [&] {
    if (contents.words < 1 || contents.begin.size() != slots * at(contents.words)) return false;
    if (contents.output.size() != ranks || contents.wanted_start.size() != ranks + 1 || contents.wanted_start[0] != 0) return false;
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::int64_t rows = contents.wanted_start[r + 1] - contents.wanted_start[r];
      if (rows < 0 || contents.output[r] < 0 || contents.output[r] > script.num_slots - rows) return false;
    }
    return contents.wanted.size() == at(contents.wanted_start[ranks]) * at(contents.words);
  };
  if (!fits()) throw std::invalid_argument("a put/signal program: contents that fit its memory");
  std::int64_t flying = 0;
  std::int32_t longest = 0;
  for (const Operation& op : script.operations) {
    if (op.act == Act::kPut) flying += op.count;
    longest = std::max(longest, op.count);
  }
  memory_.resize(contents.begin.size());
  scratch_.resize(at(longest) * at(contents.words));
  flight_ = std::make_unique_for_overwrite<std::uint64_t[]>(at(flying) * at(contents.words));
  block_of_.resize(script.operations.size());
  free_blocks_.resize(script.length_of.size());
  next_waiting_.resize(script.operations.size());
}

void Machine::reset() {
  const std::size_t ranks = at(script_.num_ranks);
  std::copy(contents_.begin.begin(), contents_.begin.end(), memory_.begin());
  held_.assign(at(script_.num_slots), 0);
  blockers_ = script_.blockers;
  left_.resize(at(script_.num_calls));
  for (std::size_t call = 0; call < left_.size(); ++call) left_[call] = script_.call_start[call + 1] - script_.call_start[call];
  open_calls_.resize(ranks);
  for (std::size_t r = 0; r < ranks; ++r) open_calls_[r] = script_.rank_start[r + 1] - script_.rank_start[r];
  arrived_.assign(script_.chains.start.size() - 1, 0);
  counted_.assign(at(script_.num_counters), 0);
  waiting_.assign(at(script_.num_counters), -1);
  landing_.assign(ranks, 0);
  ready_.assign(script_.operations.size(), false);
  phase_.assign(ranks, Phase::kCallers);
  given_back_ = 0;
  begun_.clear();
  next_begun_ = 0;
  fault_ = {};
  flight_top_ = 0;
  for (auto& blocks : free_blocks_) blocks.clear();
  for (std::int32_t r = 0; r < script_.num_ranks; ++r) agenda_.add(Agenda::begin_of(r));
}

Fault Machine::perform(Action action) {
  const auto [what, number] = agenda_.meaning(action);
  if (what == Happening::kEnd) {
    end(number);
  } else if (what == Happening::kBegin) {
    const std::size_t rank = at(number);
    phase_[rank] = Phase::kRunning;
    if (!open_calls_[rank]) {
      phase_[rank] = Phase::kMayEnd;
      agenda_.add(Agenda::end_of(number));
    }
    for (std::int32_t call = script_.rank_start[rank]; call < script_.rank_start[rank + 1]; ++call)
      if (!blockers_[at(call)]) begun_.push_back(call);
    settle();
  } else {
    const Operation& op = script_.operations[at(number)];
    if (what == Happening::kRead)
      read(op, number);
    else if (what == Happening::kLand)
      land(op, number);
    else
      work(op, number);
    settle();
  }
  return fault_;
}

void Machine::settle() {
  while (next_begun_ < begun_.size() && !fault_) begin_call(begun_[next_begun_++]);
  begun_.clear();
  next_begun_ = 0;
}

void Machine::begin_call(std::int32_t call) {
  const std::int32_t first = script_.call_start[at(call)], last = script_.call_start[at(call) + 1];
  switch (script_.call_kind[at(call)]) {
    case CallKind::kLocal:
      enable_work(first);
      break;
    case CallKind::kWait:
      for (std::int32_t number = first; number < last; ++number) {
        const std::size_t counter = at(script_.operations[at(number)].counter);
        next_waiting_[at(number)] = waiting_[counter];
        waiting_[counter] = number;
        wake(static_cast<std::int32_t>(counter));
      }
      break;
    case CallKind::kTransfer:
      for (std::int32_t number = first; number < last && !fault_; ++number) {
        const Operation& op = script_.operations[at(number)];
        if (op.act == Act::kPut) {
          enable_put(number);
        } else {
          ready_[at(number)] = true;
          advance(op.chain);
          finish_one(call);
        }
      }
      break;
  }
}

/// One operation less of a call.
void Machine::finish_one(std::int32_t call) {
  if (--left_[at(call)]) return;
  const std::int32_t rank = script_.call_rank[at(call)];
  if (!--open_calls_[at(rank)]) {
    phase_[at(rank)] = Phase::kMayEnd;
    if (landing_[at(rank)]) blame_landing(rank);
    agenda_.add(Agenda::end_of(rank));
  }
  for (std::int32_t each : script_.after[at(call)])
    if (!--blockers_[at(each)]) begun_.push_back(each);
}

/// Signals arrive, one after the other, each after the data before it.
void Machine::advance(std::int32_t chain) {
  const std::span<const std::int32_t> line = script_.chains[at(chain)];
  std::int32_t& place = arrived_[at(chain)];
  while (at(place) < line.size() && ready_[at(line[at(place)])]) {
    const std::int32_t counter = script_.operations[at(line[at(place)])].counter;
    ++place;
    ++counted_[at(counter)];
    wake(counter);
  }
}

/// Waits whose number of signals has arrived are over.
void Machine::wake(std::int32_t counter) {
  const std::int32_t have = counted_[at(counter)];
  std::int32_t* link = &waiting_[at(counter)];
  while (*link >= 0) {
    const Operation& op = script_.operations[at(*link)];
    if (op.threshold <= have) {
      *link = next_waiting_[at(*link)];
      finish_one(op.call);
    } else {
      link = &next_waiting_[at(*link)];
    }
  }
}

void Machine::enable_put(std::int32_t number) {
  const Operation& op = script_.operations[at(number)];
  if (phase_[at(op.peer)] != Phase::kRunning) {
    fault_ = {FaultKind::kCallersMemory, number, -1};
    return;
  }
  if (!hold_to_read(op, op.source, number) || !hold_to_write(op, number)) return;
  ++landing_[at(op.peer)];
  agenda_.add(agenda_.first_of(number));
}

void Machine::enable_work(std::int32_t number) {
  const Operation& op = script_.operations[at(number)];
  if (!op.is_identity) {
    if (!hold_to_read(op, op.source, number)) return;
    if (op.act == Act::kSum && !hold_to_read(op, op.addend, number)) return;
    if (!hold_to_write(op, number)) return;
  }
  agenda_.add(agenda_.first_of(number));
}

void Machine::read(const Operation& op, std::int32_t number) {
  auto& blocks = free_blocks_[at(op.length_class)];
  std::int64_t& block = block_of_[at(number)];
  if (blocks.empty()) {
    block = flight_top_;
    flight_top_ += op.count * contents_.words;
  } else {
    block = blocks.back();
    blocks.pop_back();
  }
  copy(flight_.get() + block, memory_.data() + op.source * contents_.words, op.count * contents_.words);
  release_read(op, op.source);
  agenda_.add(agenda_.landing_of(number));
  finish_one(op.call);
}

void Machine::land(const Operation& op, std::int32_t number) {
  const std::int64_t block = block_of_[at(number)];
  copy(memory_.data() + op.target * contents_.words, flight_.get() + block, op.count * contents_.words);
  free_blocks_[at(op.length_class)].push_back(block);
  release_written(op);
  --landing_[at(op.peer)];
  ready_[at(number)] = true;
  advance(op.chain);
}

void Machine::work(const Operation& op, std::int32_t number) {
  if (!op.is_identity) {
    const std::int64_t words = op.count * contents_.words;
    const std::uint64_t* source = memory_.data() + op.source * contents_.words;
    std::uint64_t* target = memory_.data() + op.target * contents_.words;
    if (op.act == Act::kCopy) {
      std::memmove(target, source, at(words) * sizeof *target);
    } else {
      const std::uint64_t* addend = memory_.data() + op.addend * contents_.words;
      const bool shifted = op.overlaps && ((op.source != op.target && source < target) || (op.addend != op.target && addend < target));
      std::uint64_t* into = shifted ? scratch_.data() : target;
      for (std::int64_t i = 0; i < words; ++i) into[i] = source[i] + addend[i];
      if (shifted) copy(target, scratch_.data(), words);
    }
    release_read(op, op.source);
    if (op.act == Act::kSum) release_read(op, op.addend);
    release_written(op);
  }
  if (number + 1 < script_.call_start[at(op.call) + 1]) enable_work(number + 1);
  finish_one(op.call);
}

void Machine::end(std::int32_t rank) {
  phase_[at(rank)] = Phase::kGivenBack;
  ++given_back_;
  const std::int64_t from = contents_.wanted_start[at(rank)] * contents_.words, to = contents_.wanted_start[at(rank) + 1] * contents_.words;
  const std::uint64_t* found = memory_.data() + contents_.output[at(rank)] * contents_.words;
  if (!std::equal(contents_.wanted.begin() + from, contents_.wanted.begin() + to, found)) fault_ = {FaultKind::kWrongOutput, rank, -1};
}

bool Machine::hold_to_read(const Operation& op, std::int32_t first, std::int32_t number) {
  for (std::int32_t slot = first; slot < first + op.count; ++slot) {
    if (op.overlaps && lies_in(slot, op.target, op.count)) continue;
    std::int32_t& held = held_[at(slot)];
    if (held == kWriter) return blame(number, slot, false);
    ++held;
  }
  return true;
}

bool Machine::hold_to_write(const Operation& op, std::int32_t number) {
  for (std::int32_t slot = op.target; slot < op.target + op.count; ++slot) {
    std::int32_t& held = held_[at(slot)];
    if (held) return blame(number, slot, true);
    held = kWriter;
  }
  return true;
}

void Machine::release_read(const Operation& op, std::int32_t first) {
  for (std::int32_t slot = first; slot < first + op.count; ++slot)
    if (!op.overlaps || !lies_in(slot, op.target, op.count)) --held_[at(slot)];
}

void Machine::release_written(const Operation& op) {
  std::fill_n(held_.begin() + op.target, op.count, 0);
}

/// An operation needs a slot that another one holds: the first such one. Always false.
bool Machine::blame(std::int32_t number, std::int32_t slot, bool writes) {
  fault_ = {FaultKind::kRace, number, -1};
  agenda_.for_each([&](Action action) {
    const auto [what, other] = agenda_.meaning(action);
    if (what == Happening::kBegin || what == Happening::kEnd) return;
    const Operation& op = script_.operations[at(other)];
    const bool is_held = !op.is_identity && (lies_in(slot, op.target, op.count) || (writes && what != Happening::kLand && reads(op, slot)));
    if (is_held && (fault_.second < 0 || other < fault_.second)) fault_.second = other;
  });
  return false;
}

/// Data are on their way to a rank that may end.
void Machine::blame_landing(std::int32_t rank) {
  if (fault_) return;
  fault_ = {FaultKind::kCallersMemory, -1, -1};
  agenda_.for_each([&](Action action) {
    const auto [what, number] = agenda_.meaning(action);
    if (what != Happening::kRead && what != Happening::kLand) return;
    if (script_.operations[at(number)].peer == rank && (fault_.first < 0 || number < fault_.first)) fault_.first = number;
  });
}

}  // namespace coppice::put_signal
