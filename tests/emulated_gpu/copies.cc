#include "emulated_gpu/copies.h"

#include <algorithm>
#include <cstring>

#include "emulated_gpu/capture.h"
#include "emulated_gpu/devices.h"
#include "emulated_gpu/errors.h"
#include "emulated_gpu/graphs.h"

namespace coppice::emulated_gpu {
namespace {

constexpr std::size_t kLeastPiece = 64;

// Long pieces fall into several, and all of them get a drawn order.
std::vector<Piece> shuffled(const std::vector<Piece>& given) {
  Scheduler& scheduler = Scheduler::instance();
  std::vector<Piece> pieces;
  for (const Piece& piece : given) {
    const std::size_t parts = piece.bytes < 2 * kLeastPiece ? 1 : 1 + scheduler.draw(4);
    const std::size_t each = (piece.bytes / parts + 7) & ~std::size_t{7};
    for (std::size_t at = 0; at < piece.bytes; at += each) {
      pieces.push_back({piece.to.after(at), piece.from.after(at), std::min(each, piece.bytes - at)});
    }
  }
  for (std::size_t i = pieces.size(); i > 1; --i) std::swap(pieces[i - 1], pieces[scheduler.draw(i)]);
  return pieces;
}

Step copy_step(const std::vector<Piece>& given, int device) {
  Scheduler& scheduler = Scheduler::instance();
  if (!scheduler.adversarial()) {
    return {Runs::copy_engine, [given, device] {
              for (const Piece& each : given) Memory::instance().move(each.to, each.from, each.bytes, device);
              return Outcome::done;
            }};
  }
  return {Runs::copy_engine, [pieces = shuffled(given), device, at = std::size_t{0}]() mutable {
            if (at < pieces.size()) {
              const Piece& each = pieces[at++];
              Memory::instance().move(each.to, each.from, each.bytes, device);
            }
            return at < pieces.size() ? Outcome::more : Outcome::done;
          }};
}

enum class Where { device, pinned, pageable, nowhere };

Where where(const Place& place, std::size_t bytes) {
  const auto range = Memory::instance().find(place.at);
  if (!range) return Where::pageable;
  if (Memory::instance().covering(place.at, bytes).empty()) return Where::nowhere;
  return range->on_device() || (range->physical && range->physical->multicast) ? Where::device : Where::pinned;
}

struct Ends {
  Where to, from;
};

// Of rows, which lie at one place each.
int ends_of(const std::vector<Piece>& rows, CopyKind kind, Ends& ends) {
  for (const Piece& row : rows) {
    ends = {where(row.to, row.bytes), where(row.from, row.bytes)};
    if (ends.to == Where::nowhere || ends.from == Where::nowhere) return kInvalidValue;
    const bool to = kind == kHostToDevice || kind == kDeviceToDevice;
    const bool from = kind == kDeviceToHost || kind == kDeviceToDevice;
    if ((to && ends.to == Where::pageable) || (from && ends.from == Where::pageable)) return kInvalidValue;
  }
  return kSuccess;
}

// The bytes as they are now, in place of a source that may be gone or changed once the call is over.
void stage(std::vector<Piece>& pieces, std::vector<std::shared_ptr<std::vector<std::byte>>>& kept) {
  for (Piece& each : pieces) {
    auto bytes = std::make_shared<std::vector<std::byte>>(each.bytes);
    move_words(bytes->data(), reinterpret_cast<const void*>(each.from.at), each.bytes);
    each.from = {address_of(bytes->data()), true};
    kept.push_back(std::move(bytes));
  }
}

Task staged_task(std::vector<Piece> pieces, int device) {
  std::vector<std::shared_ptr<std::vector<std::byte>>> kept;
  stage(pieces, kept);
  Task task = copy_task(std::move(pieces), device);
  task.step = [made = task.step, kept] {
    Step step = made();
    step.run = [run = step.run, kept] { return run(); };
    return step;
  };
  return task;
}

}  // namespace

Task copy_task(std::vector<Piece> pieces, int device) {
  return {kMemcpyNode, [pieces = std::move(pieces), device] { return copy_step(pieces, device); }};
}

int copy(const std::vector<Piece>& rows, CopyKind kind, Stream& stream, bool asynchronous) {
  if (rows.empty() || rows[0].bytes == 0) return kSuccess;
  Ends ends{};
  if (const int error = ends_of(rows, kind, ends)) return error;
  std::vector<Piece> pieces = rows;
  for (Piece& each : pieces) {
    each.to.pageable = ends.to == Where::pageable;
    each.from.pageable = ends.from == Where::pageable;
  }
  OperationPtr issued;
  {
    std::lock_guard held(Scheduler::instance().state());
    const bool capturing = stream.capture != nullptr;
    if (!asynchronous) {
      if (const int error = unsafe_call()) return error;
    }
    const bool staged = !capturing && ends.from == Where::pageable && ends.to == Where::device;
    const int error = issue(
        stream, staged ? staged_task(std::move(pieces), stream.device) : copy_task(std::move(pieces), stream.device),
        &issued);
    if (error || capturing) return error;
  }
  // The host waits where its pageable memory is written, and for synchronous copies but those between devices.
  const bool between_devices = ends.to == Where::device && ends.from == Where::device;
  const bool wait = asynchronous ? ends.to == Where::pageable : !between_devices;
  return wait ? finish(issued, stream.device) : kSuccess;
}

}  // namespace coppice::emulated_gpu

using namespace coppice::emulated_gpu;

namespace {

Piece piece(void* to, const void* from, std::size_t bytes) {
  return {{address_of(to), false}, {address_of(from), false}, bytes};
}

std::vector<Piece> rows_of(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                           std::size_t height) {
  std::vector<Piece> rows;
  for (std::size_t i = 0; i < height; ++i) {
    rows.push_back(
        piece(static_cast<char*>(to) + i * to_pitch, static_cast<const char*>(from) + i * from_pitch, width));
  }
  return rows;
}

int copy_to(void* handle, const std::vector<Piece>& rows, int kind, bool asynchronous) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  if (kind < kHostToHost || kind > kByAddress) return answer(kInvalidMemcpyDirection);
  return answer(copy(rows, static_cast<CopyKind>(kind), *stream, asynchronous));
}

Task fill_task(void* to, std::size_t pitch, std::uint64_t value, std::size_t element, std::size_t width,
               std::size_t height, int device) {
  return {kMemsetNode, [=] {
            return Step{Runs::copy_engine, [=] {
                          for (std::size_t i = 0; i < height; ++i) {
                            Memory::instance().fill(address_of(to) + i * pitch, value, element, width, device);
                          }
                          return Outcome::done;
                        }};
          }};
}

int fill(void* handle, void* to, std::size_t pitch, int value, std::size_t width, std::size_t height,
         bool asynchronous) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  if (!width || !height) return kSuccess;
  const Where there = where({address_of(to), false}, (height - 1) * pitch + width);
  if (there == Where::pageable || there == Where::nowhere) return answer(kInvalidValue);
  OperationPtr issued;
  {
    std::lock_guard held(Scheduler::instance().state());
    if (!asynchronous) {
      if (const int error = unsafe_call()) return answer(error);
    }
    const Task task = fill_task(to, pitch, static_cast<unsigned char>(value), 1, width, height, stream->device);
    if (const int error = issue(*stream, task, &issued)) return answer(error);
  }
  return answer(!asynchronous && there == Where::pinned ? finish(issued, stream->device) : kSuccess);
}

// Of a node that is made by hand: memory of the host is read and written when the node runs.
int node_pieces(std::vector<Piece>& rows, int kind) {
  Ends ends{};
  if (const int error = ends_of(rows, static_cast<CopyKind>(kind), ends)) return error;
  for (Piece& each : rows) {
    each.to.pageable = ends.to == Where::pageable;
    each.from.pageable = ends.from == Where::pageable;
  }
  return kSuccess;
}

}  // namespace

COPPICE_CUDA cudaMemcpy(void* to, const void* from, std::size_t bytes, int kind) {
  return copy_to(nullptr, {piece(to, from, bytes)}, kind, false);
}

COPPICE_CUDA cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, void* stream) {
  return copy_to(stream, {piece(to, from, bytes)}, kind, true);
}

COPPICE_CUDA cudaMemcpyPeer(void* to, int, const void* from, int, std::size_t bytes) {
  return copy_to(nullptr, {piece(to, from, bytes)}, kDeviceToDevice, false);
}

COPPICE_CUDA cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, void* stream) {
  return copy_to(stream, {piece(to, from, bytes)}, kDeviceToDevice, true);
}

COPPICE_CUDA cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                          std::size_t height, int kind) {
  if (width > to_pitch || width > from_pitch) return answer(kInvalidValue);
  return copy_to(nullptr, rows_of(to, to_pitch, from, from_pitch, width, height), kind, false);
}

COPPICE_CUDA cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                               std::size_t width, std::size_t height, int kind, void* stream) {
  if (width > to_pitch || width > from_pitch) return answer(kInvalidValue);
  return copy_to(stream, rows_of(to, to_pitch, from, from_pitch, width, height), kind, true);
}

// Copies of a batch have no order among themselves, and say each when their source may be read.
COPPICE_CUDA cudaMemcpyBatchAsync(void* const* to, const void* const* from, const std::size_t* bytes, std::size_t count,
                                  CopyAttributes* attributes, std::size_t* first_of, std::size_t kinds, void* handle) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  if (stream->legacy || !count || !kinds || kinds > count || first_of[0] != 0) return answer(kInvalidValue);
  std::vector<Piece> in_order, early;
  for (std::size_t i = 0, kind = 0; i < count; ++i) {
    if (kind + 1 < kinds && first_of[kind + 1] == i) ++kind;
    std::vector<Piece> one{piece(to[i], from[i], bytes[i])};
    if (!bytes[i] || node_pieces(one, kByAddress) != kSuccess) return answer(kInvalidValue);
    const int order = attributes[kind].source_order;
    if (order < 1 || order > 3) return answer(kInvalidValue);
    const bool at_once =
        order == 2 || (order == 3 && Scheduler::instance().adversarial() && Scheduler::instance().draw(2));
    (at_once ? early : in_order).push_back(one[0]);
  }
  std::lock_guard held(Scheduler::instance().state());
  if (stream->capture) {
    stream->capture->status = kInvalidatedCapture;
    return answer(kCaptureUnsupported);
  }
  std::vector<std::shared_ptr<std::vector<std::byte>>> kept;
  stage(early, kept);
  in_order.insert(in_order.end(), early.begin(), early.end());
  Task task = copy_task(std::move(in_order), stream->device);
  task.step = [made = task.step, kept] {
    Step step = made();
    step.run = [run = step.run, kept] { return run(); };
    return step;
  };
  return answer(issue(*stream, task));
}

COPPICE_CUDA cudaMemset(void* to, int value, std::size_t bytes) {
  return fill(nullptr, to, bytes, value, bytes, 1, false);
}

COPPICE_CUDA cudaMemsetAsync(void* to, int value, std::size_t bytes, void* stream) {
  return fill(stream, to, bytes, value, bytes, 1, true);
}

COPPICE_CUDA cudaMemset2D(void* to, std::size_t pitch, int value, std::size_t width, std::size_t height) {
  return fill(nullptr, to, pitch, value, width, height, false);
}

COPPICE_CUDA cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width, std::size_t height,
                               void* stream) {
  return fill(stream, to, pitch, value, width, height, true);
}

COPPICE_CUDA cudaGraphAddMemcpyNode1D(void** node, void* handle, void* const* after, std::size_t count, void* to,
                                      const void* from, std::size_t bytes, int kind) {
  std::lock_guard held(Scheduler::instance().state());
  const auto graph = Graph::of(handle);
  std::vector<Piece> one{piece(to, from, bytes)};
  if (!graph || node_pieces(one, kind) != kSuccess) return answer(kInvalidValue);
  std::vector<Node*> nodes;
  for (std::size_t i = 0; i < count; ++i) nodes.push_back(static_cast<Node*>(after[i]));
  *node = graph->add(current_device(), copy_task(one, current_device()), nodes);
  return kSuccess;
}

COPPICE_CUDA cudaGraphAddMemsetNode(void** node, void* handle, void* const* after, std::size_t count,
                                    const MemsetNode* what) {
  std::lock_guard held(Scheduler::instance().state());
  const auto graph = Graph::of(handle);
  const std::size_t element = what->element_bytes;
  if (!graph || (element != 1 && element != 2 && element != 4)) return answer(kInvalidValue);
  std::vector<Node*> nodes;
  for (std::size_t i = 0; i < count; ++i) nodes.push_back(static_cast<Node*>(after[i]));
  *node = graph->add(
      current_device(),
      fill_task(what->target, what->pitch, what->value, element, what->width * element, what->height, current_device()),
      nodes);
  return kSuccess;
}
