#include "shared_memory/program.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace coppice::shm {

namespace {

void require(bool holds, const char* what, std::size_t row) {
  if (!holds) throw std::invalid_argument("row " + std::to_string(row) + ": " + what);
}

}  // namespace

Program::Program(const ProgramColumns& columns) : rank_(columns.rank), ranks_(columns.ranks) {
  std::size_t n = columns.kind.size();
  std::copy(std::begin(columns.elements), std::end(columns.elements), elements_);
  auto fits = [&](std::int8_t place, std::int64_t offset, std::int64_t length) {
    return place >= 0 && place < 3 && offset >= 0 && offset <= elements_[place] && length <= elements_[place] - offset;
  };
  for (std::size_t length : {columns.peer.size(), columns.tag.size(), columns.place.size(), columns.offset.size(),
                             columns.length.size(), columns.source.size(), columns.source_offset.size()}) {
    if (length != n) throw std::invalid_argument("columns of a program must have one length");
  }
  if (columns.needs_start.size() != n + 1 || columns.needs_start[0] != 0 ||
      columns.needs_start[n] != static_cast<std::int64_t>(columns.needs.size())) {
    throw std::invalid_argument("needs_start must have an entry per row and end with the number of needs");
  }
  num_needs_.resize(n);
  successors_start_.assign(n + 1, 0);
  std::map<std::pair<int, bool>, std::size_t> queue_of;
  for (std::size_t i = 0; i < n; ++i) {
    require(columns.kind[i] >= 0 && columns.kind[i] < 4, "expected a kind of 0 to 3", i);
    Row row{static_cast<Kind>(columns.kind[i]), static_cast<Place>(columns.place[i]), static_cast<Place>(columns.source[i]),
            columns.peer[i], columns.tag[i], columns.offset[i], columns.length[i], columns.source_offset[i]};
    require(row.length > 0 && fits(columns.place[i], row.offset, row.length), "expected elements within their place", i);
    bool has_source = row.kind == Kind::recv_reduce || row.kind == Kind::copy;
    require(!has_source || fits(columns.source[i], row.source_offset, row.length), "expected a source within its place", i);
    if (row.kind == Kind::copy) {
      if (columns.needs_start[i] == columns.needs_start[i + 1]) free_copies_.push_back(static_cast<std::int32_t>(i));
    } else {
      require(row.peer >= 0 && row.peer < ranks_ && row.peer != rank_, "expected another rank as the peer", i);
      auto [at, is_new] = queue_of.try_emplace({row.peer, row.kind == Kind::send}, queues_.size());
      if (is_new) queues_.push_back({row.peer, row.kind == Kind::send, {}});
      std::vector<std::int32_t>& rows = queues_[at->second].rows;
      require(rows.empty() || rows_[rows.back()].tag < row.tag, "expected ascending tags among the messages of a pair", i);
      rows.push_back(static_cast<std::int32_t>(i));
    }
    rows_.push_back(row);
    require(columns.needs_start[i] <= columns.needs_start[i + 1] &&
                columns.needs_start[i + 1] <= static_cast<std::int64_t>(columns.needs.size()),
            "expected ascending entries of needs_start", i);
    num_needs_[i] = static_cast<std::int32_t>(columns.needs_start[i + 1] - columns.needs_start[i]);
    for (std::int64_t k = columns.needs_start[i]; k < columns.needs_start[i + 1]; ++k) {
      std::int32_t need = columns.needs[k];
      require(need >= 0 && need < static_cast<std::int64_t>(i), "expected needs in earlier rows", i);
      ++successors_start_[need + 1];
    }
  }
  for (std::size_t i = 0; i < n; ++i) successors_start_[i + 1] += successors_start_[i];
  successors_.resize(columns.needs.size());
  std::vector<std::int64_t> next(successors_start_.begin(), successors_start_.end() - 1);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::int64_t k = columns.needs_start[i]; k < columns.needs_start[i + 1]; ++k) {
      successors_[next[columns.needs[k]]++] = static_cast<std::int32_t>(i);
    }
  }
}

/// One run of one program.
class Executor::Run {
 public:
  Run(Executor& executor, const Program& program, const ProgramCall& call, Watch& watch)
      : segment_(executor.segment_),
        rank_(executor.rank_),
        program_(program),
        call_(call),
        item_(static_cast<std::int64_t>(item_size(call.type))),
        watch_(watch),
        missing_(program.num_needs_),
        copies_(program.free_copies_),
        left_(program.rows_.size()) {
    for (const Program::Queue& messages : program.queues_) {
      Peer& peer = executor.peers_[messages.peer];
      if (messages.sends && !peer.sender) peer.sender = std::make_unique<Sender>(segment_, rank_, messages.peer);
      if (!messages.sends && !peer.receiver) peer.receiver = std::make_unique<Receiver>(segment_, messages.peer, rank_);
      queues_.push_back({&messages, &peer});
    }
  }

  void run() {
    std::size_t turn = 0;
    while (left_ > 0) {
      bool moved = copy_what_is_free();
      for (QueueState& queue : queues_) moved |= queue.is_through() ? false : advance(queue);
      if (moved) {
        watch_.woke();
      } else if (left_ > 0 && !set_aside()) {
        watch_.rest(blocked_peer(turn++));
      }
    }
  }

 private:
  /// How far the messages of one peer in one direction are.
  struct QueueState {
    const Program::Queue* messages;
    Peer* peer;
    std::size_t next = 0;          // of the queue's rows
    std::int64_t done = 0;         // bytes of that message sent, added up or received
    std::size_t aside = 0;         // bytes of it that lie aside, after `done`
    bool is_through() const { return next == messages->rows.size(); }
    std::int32_t row() const { return messages->rows[next]; }
  };

  std::byte* at(Place place, std::int64_t offset) const { return call_.memory[static_cast<int>(place)] + offset * item_; }

  MessageId id(const Program::Row& row) const { return {call_.run, row.tag, row.length * item_}; }

  void complete(std::int32_t row) {
    --left_;
    for (std::int64_t k = program_.successors_start_[row]; k < program_.successors_start_[row + 1]; ++k) {
      std::int32_t successor = program_.successors_[k];
      if (--missing_[successor] == 0 && program_.rows_[successor].kind == Kind::copy) copies_.push_back(successor);
    }
  }

  bool copy_what_is_free() {
    bool moved = !copies_.empty();
    while (!copies_.empty()) {
      std::int32_t index = copies_.back();
      copies_.pop_back();
      const Program::Row& row = program_.rows_[index];
      std::memmove(at(row.place, row.offset), at(row.source, row.source_offset), static_cast<std::size_t>(row.length * item_));
      complete(index);
    }
    return moved;
  }

  void progress(QueueState& queue, const Program::Row& row, std::size_t bytes) {
    queue.done += static_cast<std::int64_t>(bytes);
    if (queue.done < row.length * item_) return;
    complete(queue.row());
    ++queue.next;
    queue.done = 0;
  }

  /// Moves one part, if that is possible. Returns: whether it was.
  bool advance(QueueState& queue) {
    std::int32_t index = queue.row();
    if (missing_[index] > 0) return false;
    const Program::Row& row = program_.rows_[index];
    if (row.kind == Kind::send) {
      auto bytes = std::min(static_cast<std::size_t>(row.length * item_ - queue.done), whole_part(*queue.peer->sender));
      if (!queue.peer->sender->send(id(row), at(row.place, row.offset) + queue.done, bytes)) return false;
      progress(queue, row, bytes);
      return true;
    }
    if (queue.aside > 0) {
      std::size_t bytes = std::exchange(queue.aside, 0);
      add_up(row, queue.done, queue.peer->aside.data(), bytes);
      progress(queue, row, bytes);
      return true;
    }
    Receiver::Part part = expected(queue, row);
    if (!part.id) return false;
    if (row.kind == Kind::recv) {
      std::memcpy(at(row.place, row.offset) + queue.done, part.data, part.bytes);
    } else {
      add_up(row, queue.done, part.data, part.bytes);
    }
    queue.peer->receiver->release();
    progress(queue, row, part.bytes);
    return true;
  }

  /// Bytes of the longest part that holds whole elements.
  std::size_t whole_part(const Sender& sender) const {
    return sender.part_bytes() / static_cast<std::size_t>(item_) * static_cast<std::size_t>(item_);
  }

  void add_up(const Program::Row& row, std::int64_t done, const std::byte* data, std::size_t bytes) {
    combine(at(row.place, row.offset) + done, at(row.source, row.source_offset) + done, data,
            bytes / static_cast<std::size_t>(item_), call_.type, call_.op);
  }

  /// The next part from a peer, if it has arrived and belongs to the message that is due.
  Receiver::Part expected(const QueueState& queue, const Program::Row& row) {
    Receiver::Part part = queue.peer->receiver->look();
    if (!part.id || *part.id == id(row)) return part;
    throw Failed(segment_.announce({FaultKind::mismatch, queue.messages->peer, rank_}));
  }

  /// Takes parts out of crowded rings that cannot be added up yet. Returns: whether there were any.
  bool set_aside() {
    bool moved = false;
    for (QueueState& queue : queues_) {
      if (queue.is_through() || queue.messages->sends || missing_[queue.row()] == 0) continue;
      const Program::Row& row = program_.rows_[queue.row()];
      std::vector<std::byte>& aside = queue.peer->aside;
      if (row.kind != Kind::recv_reduce || !queue.peer->receiver->is_crowded()) continue;
      std::size_t arrived = queue.aside;
      if (arrived == static_cast<std::size_t>(row.length * item_)) continue;
      Receiver::Part part = expected(queue, row);
      if (!part.id) continue;
      if (aside.size() < arrived + part.bytes) aside.resize(static_cast<std::size_t>(row.length * item_));
      std::memcpy(aside.data() + arrived, part.data, part.bytes);
      queue.aside += part.bytes;
      queue.peer->receiver->release();
      moved = true;
    }
    return moved;
  }

  /// One of the peers that hold this rank up, another one at each turn.
  int blocked_peer(std::size_t turn) const {
    int peer = queues_.empty() ? rank_ : queues_.front().messages->peer;
    for (std::size_t k = 0; k < queues_.size(); ++k) {
      const QueueState& queue = queues_[(turn + k) % queues_.size()];
      if (!queue.is_through() && missing_[queue.row()] == 0) return queue.messages->peer;
    }
    return peer;
  }

  Segment& segment_;
  const int rank_;
  const Program& program_;
  const ProgramCall& call_;
  const std::int64_t item_;
  Watch& watch_;
  std::vector<std::int32_t> missing_;  // needs that are not complete, per row
  std::vector<std::int32_t> copies_;   // copies that may start
  std::size_t left_;                   // rows
  std::vector<QueueState> queues_;
};

void Executor::run(const Program& program, const ProgramCall& call, double timeout_s, const StopFlag& stop) {
  if (program.rank_ != rank_ || program.ranks_ != segment_.ranks()) {
    throw std::invalid_argument("expected a program of rank " + std::to_string(rank_) + " of " +
                                std::to_string(segment_.ranks()) + ", found one of rank " +
                                std::to_string(program.rank_) + " of " + std::to_string(program.ranks_));
  }
  const std::int64_t output = program.elements_[static_cast<int>(Place::output)];
  if (call.result_offset < 0 || call.result_elements < 0 || call.result_offset > output ||
      call.result_elements > output - call.result_offset) {
    throw std::invalid_argument("expected a result within the output");
  }
  Watch watch(segment_, rank_, timeout_s, stop);
  Run(*this, program, call, watch).run();
  if (call.op == ReduceOp::avg && call.result_elements > 0) {
    const std::int64_t begin = call.result_offset * static_cast<std::int64_t>(item_size(call.type));
    divide(call.memory[static_cast<int>(Place::output)] + begin, static_cast<std::size_t>(call.result_elements),
           segment_.ranks(), call.type);
  }
}

}  // namespace coppice::shm
