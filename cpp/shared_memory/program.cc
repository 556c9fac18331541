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

Program::Program(const Columns& columns) : rank_(columns.rank), ranks_(columns.ranks) {
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
  followers_start_.assign(n + 1, 0);
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
      ++followers_start_[need + 1];
    }
  }
  for (std::size_t i = 0; i < n; ++i) followers_start_[i + 1] += followers_start_[i];
  followers_.resize(columns.needs.size());
  std::vector<std::int64_t> next(followers_start_.begin(), followers_start_.end() - 1);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::int64_t k = columns.needs_start[i]; k < columns.needs_start[i + 1]; ++k) {
      followers_[next[columns.needs[k]]++] = static_cast<std::int32_t>(i);
    }
  }
}

/// One run of one program.
class Executor::Run {
 public:
  Run(Executor& executor, const Program& program, std::byte* const memory[3], DataType type, ReduceOp op,
      std::uint64_t run, Watch& watch)
      : segment_(executor.segment_),
        rank_(executor.rank_),
        program_(program),
        memory_(memory),
        type_(type),
        op_(op),
        item_(static_cast<std::int64_t>(item_size(type))),
        run_(run),
        watch_(watch),
        missing_(program.num_needs_),
        copies_(program.free_copies_),
        left_(program.rows_.size()) {
    for (const Program::Queue& queue : program.queues_) {
      Peer& peer = executor.peers_[queue.peer];
      if (queue.sends && !peer.sender) peer.sender = std::make_unique<Sender>(segment_, rank_, queue.peer);
      if (!queue.sends && !peer.receiver) peer.receiver = std::make_unique<Receiver>(segment_, queue.peer, rank_);
      lines_.push_back({&queue, &peer});
    }
  }

  void run() {
    std::size_t turn = 0;
    while (left_ > 0) {
      bool moved = copy_what_is_free();
      for (Line& line : lines_) moved |= line.is_through() ? false : advance(line);
      if (moved) {
        watch_.woke();
      } else if (left_ > 0 && !set_aside()) {
        watch_.rest(blocked_peer(turn++));
      }
    }
  }

 private:
  struct Line {
    const Program::Queue* queue;
    Peer* peer;
    std::size_t next = 0;          // of the queue's rows
    std::int64_t done = 0;         // bytes of that message sent, added up or received
    std::size_t aside = 0;         // bytes of it that lie aside, after `done`
    bool is_through() const { return next == queue->rows.size(); }
    std::int32_t row() const { return queue->rows[next]; }
  };

  std::byte* at(Place place, std::int64_t offset) const { return memory_[static_cast<int>(place)] + offset * item_; }

  MessageId id(const Program::Row& row) const { return {run_, row.tag, row.length * item_}; }

  void complete(std::int32_t row) {
    --left_;
    for (std::int64_t k = program_.followers_start_[row]; k < program_.followers_start_[row + 1]; ++k) {
      std::int32_t follower = program_.followers_[k];
      if (--missing_[follower] == 0 && program_.rows_[follower].kind == Kind::copy) copies_.push_back(follower);
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

  void progress(Line& line, const Program::Row& row, std::size_t bytes) {
    line.done += static_cast<std::int64_t>(bytes);
    if (line.done < row.length * item_) return;
    complete(line.row());
    ++line.next;
    line.done = 0;
  }

  /// Moves one part, if that is possible. Returns: whether it was.
  bool advance(Line& line) {
    std::int32_t index = line.row();
    if (missing_[index] > 0) return false;
    const Program::Row& row = program_.rows_[index];
    if (row.kind == Kind::send) {
      auto bytes = std::min(static_cast<std::size_t>(row.length * item_ - line.done), whole_part(*line.peer->sender));
      if (!line.peer->sender->send(id(row), at(row.place, row.offset) + line.done, bytes)) return false;
      progress(line, row, bytes);
      return true;
    }
    if (line.aside > 0) {
      std::size_t bytes = std::exchange(line.aside, 0);
      add_up(row, line.done, line.peer->aside.data(), bytes);
      progress(line, row, bytes);
      return true;
    }
    Receiver::Part part = expected(line, row);
    if (!part.id) return false;
    if (row.kind == Kind::recv) {
      std::memcpy(at(row.place, row.offset) + line.done, part.data, part.bytes);
    } else {
      add_up(row, line.done, part.data, part.bytes);
    }
    line.peer->receiver->release();
    progress(line, row, part.bytes);
    return true;
  }

  /// Bytes of the longest part that holds whole elements.
  std::size_t whole_part(const Sender& sender) const {
    return sender.part_bytes() / static_cast<std::size_t>(item_) * static_cast<std::size_t>(item_);
  }

  void add_up(const Program::Row& row, std::int64_t done, const std::byte* data, std::size_t bytes) {
    combine(at(row.place, row.offset) + done, at(row.source, row.source_offset) + done, data,
            bytes / static_cast<std::size_t>(item_), type_, op_);
  }

  /// The next part from a peer, if it has arrived and belongs to the message that is due.
  Receiver::Part expected(const Line& line, const Program::Row& row) {
    Receiver::Part part = line.peer->receiver->look();
    if (!part.id || *part.id == id(row)) return part;
    throw Failed(segment_.announce({FaultKind::mismatch, line.queue->peer, rank_}));
  }

  /// Takes parts out of crowded rings that cannot be added up yet. Returns: whether there were any.
  bool set_aside() {
    bool moved = false;
    for (Line& line : lines_) {
      if (line.is_through() || line.queue->sends || missing_[line.row()] == 0) continue;
      const Program::Row& row = program_.rows_[line.row()];
      std::vector<std::byte>& aside = line.peer->aside;
      if (row.kind != Kind::recv_reduce || !line.peer->receiver->is_crowded()) continue;
      std::size_t arrived = line.aside;
      if (arrived == static_cast<std::size_t>(row.length * item_)) continue;
      Receiver::Part part = expected(line, row);
      if (!part.id) continue;
      if (aside.size() < arrived + part.bytes) aside.resize(static_cast<std::size_t>(row.length * item_));
      std::memcpy(aside.data() + arrived, part.data, part.bytes);
      line.aside += part.bytes;
      line.peer->receiver->release();
      moved = true;
    }
    return moved;
  }

  /// One of the peers that hold this rank up, another one at each turn.
  int blocked_peer(std::size_t turn) const {
    int peer = lines_.empty() ? rank_ : lines_.front().queue->peer;
    for (std::size_t k = 0; k < lines_.size(); ++k) {
      const Line& line = lines_[(turn + k) % lines_.size()];
      if (!line.is_through() && missing_[line.row()] == 0) return line.queue->peer;
    }
    return peer;
  }

  Segment& segment_;
  const int rank_;
  const Program& program_;
  std::byte* const* memory_;
  const DataType type_;
  const ReduceOp op_;
  const std::int64_t item_;
  const std::uint64_t run_;
  Watch& watch_;
  std::vector<std::int32_t> missing_;  // needs that are not complete, per row
  std::vector<std::int32_t> copies_;   // copies that may start
  std::size_t left_;                   // rows
  std::vector<Line> lines_;
};

void Executor::run(const Program& program, std::byte* const memory[3], DataType type, ReduceOp op, std::uint64_t run,
                   double timeout_s, const Interruption& interruption) {
  if (program.rank_ != rank_ || program.ranks_ != segment_.ranks()) {
    throw std::invalid_argument("expected a program of rank " + std::to_string(rank_) + " of " +
                                std::to_string(segment_.ranks()) + ", found one of rank " +
                                std::to_string(program.rank_) + " of " + std::to_string(program.ranks_));
  }
  Watch watch(segment_, rank_, timeout_s, interruption);
  Run(*this, program, memory, type, op, run, watch).run();
}

}  // namespace coppice::shm
