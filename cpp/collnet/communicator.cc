#include "collnet/communicator.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "collnet/elements.h"
#include "collnet/log.h"
#include "collnet/operation.h"
#include "collnet/signals.h"

namespace coppice::collnet {

namespace {

constexpr std::size_t kMostRequests = 256;
constexpr std::uint32_t kHeaderMagic = 0x43504331;
constexpr auto kLinger = std::chrono::seconds(1);  // for comparisons that nobody waits for
constexpr int kLingerTurnMs = 10;

}  // namespace

Communicator::Communicator(Forest forest, int node, std::vector<Edge> edges) : forest_(std::move(forest)), node_(node) {
  for (const Tree& tree : forest_.trees) {
    views_.push_back(view_of(tree, node));
    links_of_.emplace_back(views_.back().neighbours.size(), -1);
  }
  for (Edge& edge : edges) {
    const std::vector<int>& neighbours = views_[edge.tree].neighbours;
    auto place = std::lower_bound(neighbours.begin(), neighbours.end(), edge.peer) - neighbours.begin();
    links_of_[edge.tree][place] = static_cast<int>(links_.size());
    links_.push_back(std::make_unique<Link>());
    links_.back()->edge = std::move(edge);
  }
  int ends[2];
  if (::pipe(ends) != 0) throw Failure(kSystemError, "no pipe could be made");
  wake_read_ = Descriptor(ends[0]);
  wake_write_ = Descriptor(ends[1]);
  for (int end : ends) {
    ::fcntl(end, F_SETFD, FD_CLOEXEC);
    ::fcntl(end, F_SETFL, O_NONBLOCK);
  }
  const NoSignals none;
  worker_ = std::thread([this] { work(); });
}

Communicator::~Communicator() {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    closing_ = true;
  }
  switch_changed_.notify_all();
  if (switch_worker_.joinable()) switch_worker_.join();
  wake();
  worker_.join();
}

void Communicator::wake() { (void)!::write(wake_write_.get(), "", 1); }

bool Communicator::all_agree(bool yes) {
  std::uint64_t mine = yes, least = 0;
  Call call;
  call.type = kUint64;
  call.reduction = kMinimum;
  call.element = call.bytes = sizeof mine;
  call.send = {{&mine, sizeof mine}};
  call.receive = {{&least, sizeof least}};
  Request* request = start(std::move(call));
  for (std::size_t bytes = 0; !finished(request, &bytes);) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return least == 1;
}

void Communicator::use(std::unique_ptr<Switched> switched) {
  switched_ = std::move(switched);
  const NoSignals none;
  switch_worker_ = std::thread([this] { switch_work(); });
}

Failure Communicator::broken() const { return Failure(static_cast<Result>(broken_.load()), sentence_); }

Request* Communicator::free_request(std::size_t bytes) {
  Request* request = nullptr;
  for (auto& each : requests_)
    if (each->state.load(std::memory_order_relaxed) == Request::kFree) request = each.get();
  if (!request) {
    if (requests_.size() == kMostRequests) return nullptr;
    requests_.push_back(std::make_unique<Request>());
    request = requests_.back().get();
    request->owner = this;
  }
  request->bytes = bytes;
  request->state.store(Request::kPending, std::memory_order_relaxed);
  return request;
}

Request* Communicator::start(Call call) {
  if (broken_.load(std::memory_order_acquire) != kSuccess) throw broken();
  Request* request = free_request(call.bytes);
  if (!request) return nullptr;
  auto operation = std::make_unique<Operation>();
  operation->sequence = sequence_++;
  if (switched_ && Switched::takes(call)) {
    const std::uint64_t words = call.bytes * kDataTypes + static_cast<std::uint64_t>(call.type);
    operation->said = {words, ~words};
    Call& compared = operation->call;
    compared.type = kUint64;
    compared.reduction = kMaximum;
    compared.element = sizeof words;
    compared.bytes = sizeof operation->said;
    compared.send = {{operation->said.data(), compared.bytes}};
    compared.receive = {{operation->found.data(), compared.bytes}};
    {
      std::lock_guard<std::mutex> guard(mutex_);
      switch_calls_.emplace_back(std::move(call), request);
    }
    switch_changed_.notify_all();
  } else {
    operation->call = std::move(call);
    operation->request = request;
  }
  hand_over(std::move(operation));
  return request;
}

void Communicator::hand_over(std::unique_ptr<Operation> operation) {
  bool first = false;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    first = arrived_.empty();
    arrived_.push_back(std::move(operation));
  }
  if (first) wake();
}

/// The calls that go by the switch, one after the other; after a failure the worker ends them all.
void Communicator::switch_work() {
  std::string why;
  const StopFlag stop = [this] { return closing_.load() || broken_.load() != kSuccess; };
  while (!stop() && why.empty()) {
    std::pair<Call, Request*> next;
    {
      std::unique_lock<std::mutex> guard(mutex_);
      switch_changed_.wait_for(guard, std::chrono::milliseconds(100), [&] { return closing_ || !switch_calls_.empty(); });
      if (switch_calls_.empty()) continue;
      next = std::move(switch_calls_.front());
      switch_calls_.pop_front();
    }
    try {
      switched_->all_reduce(next.first, stop);
      next.second->state.store(Request::kDone, std::memory_order_release);
    } catch (const Cancelled&) {
      why = "it was given up";
    } catch (const std::exception& error) {
      why = error.what();
      std::lock_guard<std::mutex> guard(mutex_);
      switch_failure_ = why;
    }
  }
  if (!why.empty()) wake();
  switched_->leave(broken_.load() == kSuccess ? why : "another node is gone");
}

bool Communicator::finished(Request* request, std::size_t* bytes) {
  int state = request->state.load(std::memory_order_acquire);
  if (state == Request::kPending && broken_.load(std::memory_order_acquire) == kSuccess) return false;
  *bytes = request->bytes;
  request->state.store(Request::kFree, std::memory_order_relaxed);
  if (state != Request::kDone) throw broken();
  return true;
}

/// Comparisons are still on their way, and others would take the end of a connection for a failure.
bool Communicator::lingers() {
  std::lock_guard<std::mutex> guard(mutex_);
  return switched_ && !(operations_.empty() && arrived_.empty());
}

void Communicator::work() {
  std::vector<pollfd> asked;
  std::chrono::steady_clock::time_point leaving{};
  try {
    while (true) {
      asked.assign(1, {wake_read_.get(), POLLIN, 0});
      for (const auto& link : links_) {
        short events = static_cast<short>((may_send(*link) ? POLLOUT : 0) | (may_receive(*link) ? POLLIN : 0));
        asked.push_back({events ? link->edge.descriptor.get() : -1, events, 0});
      }
      if (::poll(asked.data(), asked.size(), closing_ ? kLingerTurnMs : -1) < 0 && errno != EINTR)
        throw Failure(kSystemError, "waiting for connections failed");
      if (asked[0].revents) {
        char bytes[64];
        while (::read(wake_read_.get(), bytes, sizeof bytes) > 0) continue;
        std::lock_guard<std::mutex> guard(mutex_);
        if (!switch_failure_.empty()) throw Failure(kRemoteError, "the switch: " + switch_failure_);
      }
      if (closing_) {
        const auto time = std::chrono::steady_clock::now();
        if (leaving == decltype(leaving){}) leaving = time;
        if (!lingers() || time - leaving > kLinger) return;
      }
      take_calls();
      for (std::size_t at = 0; at < links_.size(); at++) {
        if (asked[at + 1].revents && may_receive(*links_[at])) receive(*links_[at]);
        if (may_send(*links_[at])) send(*links_[at]);
      }
      finish_ended();
    }
  } catch (const Failure& failure) {
    fail(failure);
  } catch (const std::bad_alloc&) {
    fail(Failure(kSystemError, "out of memory"));
  }
}

void Communicator::take_calls() {
  std::vector<std::unique_ptr<Operation>> calls;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    calls.swap(arrived_);
  }
  for (auto& call : calls) begin(std::move(call));
}

void Communicator::begin(std::unique_ptr<Operation> operation) {
  Call& call = operation->call;
  if (call.send.size() > 1)
    for (const iovec& piece : call.send) {
      const char* from = static_cast<const char*>(piece.iov_base);
      operation->send_copy.insert(operation->send_copy.end(), from, from + piece.iov_len);
    }
  if (call.receive.size() > 1) operation->receive_copy.resize(call.bytes);
  bool all_reduce = call.kind == Kind::kAllReduce;
  auto segments = all_reduce ? all_reduce_segments(forest_, call.bytes, call.element, operation->sequence)
                             : block_segments(forest_, call.block_bytes, call.window_begin, call.bytes, call.element,
                                              operation->sequence);
  for (const Segment& segment : segments) {
    auto part = std::make_unique<Part>();
    part->operation = operation.get();
    part->segment = segment;
    part->up = call.kind != Kind::kAllGather;
    part->down = call.kind != Kind::kReduceScatter;
    int toward = views_[segment.tree].toward[segment.root];
    for (int place = 0; place < static_cast<int>(views_[segment.tree].neighbours.size()); place++) {
      int link = links_of_[segment.tree][place];
      if (place == toward)
        part->parent = link;
      else
        part->children.push_back(link);
    }
    prepare(*part);
    enqueue(*part);
    operation->parts.push_back(std::move(part));
  }
  operations_.push_back(std::move(operation));
}

/// Sets where a part's data lie, and what of it is there already.
void Communicator::prepare(Part& part) {
  Operation& operation = *part.operation;
  const Call& call = operation.call;
  const Segment& segment = part.segment;
  bool root = segment.root == node_;
  std::size_t in_window = segment.begin - (call.kind == Kind::kAllReduce ? 0 : call.window_begin);
  std::size_t block = static_cast<std::size_t>(segment.root) * call.block_bytes;
  std::size_t in_block = segment.begin - std::max(block, call.window_begin);  // from where the window meets the block
  if (call.kind == Kind::kAllReduce) {
    part.own = operation.send() + in_window;
    part.sum = operation.receive() + in_window;
  } else if (call.kind == Kind::kReduceScatter) {
    part.own = operation.send() + in_window;
    if (root)
      part.sum = operation.receive() + in_block;
    else if (!part.children.empty()) {
      part.scratch.resize(segment.bytes);
      part.sum = part.scratch.data();
    }
  } else {
    part.sum = operation.receive() + in_window;
    if (root) std::memmove(part.sum, operation.send() + in_block, segment.bytes);
    part.arrived = root ? segment.bytes : 0;
    return;
  }
  if (!part.children.empty()) return;
  part.reduced = segment.bytes;
  if (!root) return;  // a leaf sends its own part as it lies
  std::memmove(part.sum, part.own, segment.bytes);
  part.arrived = segment.bytes;
}

/// Puts a part's streams at the end of its edges' queues.
void Communicator::enqueue(Part& part) {
  const Call& call = part.operation->call;
  Header header{kHeaderMagic,
                static_cast<std::uint32_t>(call.kind),
                static_cast<std::uint32_t>(call.type),
                static_cast<std::uint32_t>(call.reduction),
                part.operation->sequence,
                part.segment.begin,
                part.segment.bytes};
  auto add = [&](std::deque<Stream>& queue, bool up) {
    queue.push_back({&part, up, 0, 0, header, header});
    part.streams++;
    part.operation->streams++;
  };
  if (part.parent >= 0) {
    if (part.up) add(links_[part.parent]->out, true);
    if (part.down) add(links_[part.parent]->in, false);
  }
  for (int child : part.children) {
    if (part.up) add(links_[child]->in, true);
    if (part.down) add(links_[child]->out, false);
  }
}

/// Tells the caller of operations that have ended, whatever their order.
void Communicator::finish_ended() {
  for (auto& operation : operations_) {
    if (operation->streams) continue;
    const Call& call = operation->call;
    std::size_t at = 0;
    if (!operation->receive_copy.empty())
      for (const iovec& piece : call.receive) {
        std::memcpy(piece.iov_base, operation->receive_copy.data() + at, piece.iov_len);
        at += piece.iov_len;
      }
    if (operation->request)
      operation->request->state.store(Request::kDone, std::memory_order_release);
    else if (operation->found != operation->said)
      throw Failure(kInvalidUsage, "all-reduce " + std::to_string(operation->sequence) + " at the switch has other sizes or types "
                                       "on other nodes: all nodes have to call alike in the same order");
    operation.reset();
  }
  operations_.erase(std::remove(operations_.begin(), operations_.end(), nullptr), operations_.end());
}

void Communicator::fail(const Failure& failure) {
  bool in_call = failure.result == kRemoteError && !operations_.empty();
  std::string where = !in_call ? "" : " in " + std::string(word(static_cast<std::uint32_t>(operations_.front()->call.kind))) +
                                                     " " + std::to_string(operations_.front()->sequence);
  sentence_ = failure.what() + where;
  warn("node " + std::to_string(node_) + " gives up: " + sentence_);
  for (auto& link : links_) link->edge.descriptor.reset();  // neighbours learn of it at once
  broken_.store(failure.result, std::memory_order_release);
}

}  // namespace coppice::collnet
