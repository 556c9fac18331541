#include "emulated_gpu/operations.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

namespace coppice::emulated_gpu {
namespace {

using std::chrono::microseconds;

constexpr microseconds kLook{200};  // how often what is blocked is tried again

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

// Never destroyed: threads of the program may call until its very end.
Scheduler& Scheduler::instance() {
  static Scheduler* one = new Scheduler;
  return *one;
}

Scheduler::Scheduler() {
  order_.seed = from_environment("COPPICE_EMULATED_GPU_SEED", 0);
  order_.workers = std::max<int>(1, static_cast<int>(from_environment("COPPICE_EMULATED_GPU_WORKERS", 2)));
  order_.idle = microseconds(order_.seed ? 300 : 0);
  start();
}

void Scheduler::configure(const Order& order) {
  const bool others = order.workers != order_.workers;
  if (others) stop();
  {
    std::lock_guard held(lock_);
    order_ = order;
    random_.seed(order.seed);
    priorities_.clear();
  }
  if (others) start();
}

void Scheduler::start() {
  random_.seed(order_.seed);
  stopping_ = false;
  for (int i = 0; i < order_.workers; ++i) threads_.emplace_back([this] { work(); });
  threads_.emplace_back([this] { serve_host(); });
}

void Scheduler::stop() {
  {
    std::lock_guard held(lock_);
    stopping_ = true;
  }
  work_.notify_all();
  host_work_.notify_all();
  for (std::thread& each : threads_) each.join();
  threads_.clear();
}

std::uint64_t Scheduler::draw(std::uint64_t below) {
  std::lock_guard held(lock_);
  return random_() % below;
}

void Scheduler::submit(const OperationPtr& operation, const std::vector<OperationPtr>& after) {
  std::unique_lock held(lock_);
  operation->number_ = ++numbers_;
  for (const OperationPtr& each : after) {
    if (!each || each->done_) continue;
    each->next_.push_back(operation);
    ++operation->missing_;
  }
  if (operation->missing_ == 0) make_ready(operation);
}

// With lock_ held.
void Scheduler::make_ready(const OperationPtr& operation) {
  std::vector<OperationPtr> over{operation};
  while (!over.empty()) {
    const OperationPtr each = over.back();
    over.pop_back();
    if (each->step.where == Runs::copy_engine) {
      if (ready_.empty() && order_.seed) idle_until_ = Clock::now() + order_.idle;
      ready_.push_back(each);
      work_.notify_one();
    } else if (each->step.where == Runs::host_thread) {
      host_.push_back(each);
      host_work_.notify_one();
    } else {
      each->done_ = true;
      each->ended_ = Clock::now();
      ended_.notify_all();
      for (const OperationPtr& next : each->next_) {
        if (--next->missing_ == 0) over.push_back(next);
      }
      each->next_.clear();
    }
  }
}

void Scheduler::complete(const OperationPtr& operation, std::unique_lock<std::mutex>&) {
  operation->step = {};
  make_ready(operation);
  if (!blocked_.empty()) work_.notify_one();
}

// Of those that could run: the first issued, or the one whose stream has the highest priority.
std::size_t Scheduler::choose() {
  std::size_t best = 0;
  if (order_.seed == 0) {
    for (std::size_t i = 1; i < ready_.size(); ++i) {
      if (ready_[i]->number_ < ready_[best]->number_) best = i;
    }
    return best;
  }
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    auto [at, fresh] = priorities_.try_emplace(ready_[i]->queue, 0);
    if (fresh || random_() % 8 == 0) at->second = random_();
    if (i == 0 || at->second > most) {
      best = i;
      most = at->second;
    }
  }
  return best;
}

Outcome Scheduler::run(const OperationPtr& operation) {
  try {
    return operation->step.run();
  } catch (Error error) {
    std::lock_guard held(lock_);
    failures_.try_emplace(operation->device, error);
    return Outcome::done;
  }
}

void Scheduler::work() {
  std::unique_lock held(lock_);
  while (!stopping_) {
    if (ready_.empty()) {
      if (blocked_.empty()) {
        work_.wait(held);
      } else {
        work_.wait_for(held, kLook);
        ready_.insert(ready_.end(), blocked_.begin(), blocked_.end());
        blocked_.clear();
      }
      continue;
    }
    if (order_.seed && waiting_ == 0 && Clock::now() < idle_until_) {
      work_.wait_until(held, idle_until_);
      continue;
    }
    const std::size_t chosen = choose();
    const OperationPtr operation = ready_[chosen];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(chosen));
    held.unlock();
    const Outcome outcome = run(operation);
    held.lock();
    if (outcome == Outcome::done) {
      complete(operation, held);
    } else if (outcome == Outcome::more) {
      ready_.push_back(operation);
    } else {
      blocked_.push_back(operation);
    }
  }
}

// Functions of the host may wait for other threads, but not for CUDA: they run one after the other, beside the copies.
void Scheduler::serve_host() {
  std::unique_lock held(lock_);
  while (!stopping_) {
    if (host_.empty()) {
      host_work_.wait(held);
      continue;
    }
    auto chosen = host_.begin();
    if (order_.seed) std::advance(chosen, static_cast<std::ptrdiff_t>(random_() % host_.size()));
    const OperationPtr operation = *chosen;
    host_.erase(chosen);
    held.unlock();
    run(operation);
    held.lock();
    complete(operation, held);
  }
}

bool Scheduler::done(const OperationPtr& operation) {
  std::lock_guard held(lock_);
  if (!operation || operation->done_) return true;
  idle_until_ = {};  // somebody looks
  work_.notify_all();
  return false;
}

void Scheduler::wait(const OperationPtr& operation) {
  std::unique_lock held(lock_);
  if (!operation) return;
  ++waiting_;
  work_.notify_all();
  ended_.wait(held, [&] { return operation->done_; });
  --waiting_;
}

double Scheduler::milliseconds(const OperationPtr& from, const OperationPtr& to) {
  std::lock_guard held(lock_);
  return std::chrono::duration<double, std::milli>(to->ended_ - from->ended_).count();
}

int Scheduler::failure(int device) {
  std::lock_guard held(lock_);
  const auto found = failures_.find(device);
  return found == failures_.end() ? kSuccess : found->second;
}

void Scheduler::forgive(int device) {
  std::lock_guard held(lock_);
  failures_.erase(device);
}

}  // namespace coppice::emulated_gpu
