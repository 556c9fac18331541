// Base of workers that keep a window of numbered frames outstanding, each answered by the sum of the same number.
#pragma once

#include "hardware_trees/frame.h"

namespace coppice::aggregation {

class WindowWorker : public Worker {
 public:
  bool done() const override { return base_ == end_; }
  Time deadline() const override;
  void wake(Time now, Outbox& out) override;
  void save(Time now, StateWriter& state) const override;

 protected:
  // `first` is the number of the first frame. Throws std::invalid_argument where the job or the index is none.
  WindowWorker(const Job& job, int index, Endpoint above, std::uint32_t first);

  // Puts the frame into `out`.
  virtual void write(std::uint32_t number, Outbox& out) = 0;
  // Frames that are allowed now, beside the window; those after a frame that is not wait as well.
  virtual bool allowed(std::uint32_t /*number*/) const { return true; }

  void start(std::size_t frames, Time now, Outbox& out);
  // Sends what the window and `allowed` let it.
  void proceed(Outbox& out);
  void send_again(std::uint32_t from, Outbox& out);
  // Whether a sum of this number is waited for; counts it in any case.
  bool awaited(std::uint32_t number);
  // Of an awaited number: it has come.
  void take(std::uint32_t number, Time now, Outbox& out);
  // Reads the head of a packet of this job from above; counts what is none.
  bool read(Endpoint from, Bytes packet, FrameHead& head);

  Job job_;
  Endpoint above_;
  std::uint32_t first_, base_, sent_, end_;  // of the tensor; missing; next to send; after the tensor
  std::vector<std::uint8_t> got_;            // [number modulo its length]
  Time progress_ = 0, timer_ = 0, paused_until_ = 0;
};

}  // namespace coppice::aggregation
