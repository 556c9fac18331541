// Random programs of streams, events, copies, waits and graphs, as data: one list of what a thread of the host does.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace coppice::emulated_gpu::testing {

enum class Where { device0, device1, pinned, pageable };  // cells of memory, by where they are
inline constexpr int kCells = 8;
inline constexpr Where kWhere[kCells] = {Where::device0, Where::device0, Where::device0, Where::device1,
                                         Where::device1, Where::pinned,  Where::pinned,  Where::pageable};
inline constexpr int kWords = 24;                       // of eight bytes each, in a cell
inline constexpr int kStreams = 6;                      // stream 0 is the legacy stream of device 0
inline constexpr int kFlags = 3, kAllFlags = 64;        // the others come by repairs
inline constexpr int kEvents = 6, kCapturedEvents = 4;  // then one for each stream

inline int device_of(int stream) { return stream == 0 ? 0 : stream % 2; }
inline bool is_blocking(int stream) { return stream < 4; }
inline constexpr int kAllEvents = kEvents + kCapturedEvents + kStreams;  // an even number; more come by repairs
inline int fork_of(int stream) { return kEvents + kCapturedEvents + stream; }
// An event is recorded by streams of its device only.
inline int device_of_event(int event) {
  const int fork = event - kEvents - kCapturedEvents;
  return fork >= 0 && fork < kStreams ? device_of(fork) : event % 2;
}

struct Step {
  enum Kind {
    copy,      // cells[0] to cells[1], asynchronously
    batch,     // each pair of cells, in no order
    fill,      // cells[0].second with a byte
    raise,     // write a flag, which only ever grows
    await,     // wait until a flag is at least that
    kernel,    // nothing, in its place
    callback,  // a function of the host: reads a pinned cell
    record,
    wait,  // an event
    sync_stream,
    sync_event,
    sync_device,
    copy_now,  // cudaMemcpy
    host_write,
    host_read,  // a pinned cell, by the host itself
    capture,    // `inside` by streams, into a graph
    launch,     // that graph
  };
  Kind kind{};
  int stream = 0, event = 0, value = 0;      // value: of a byte, of a flag, or the number of a graph
  std::vector<std::pair<int, int>> cells{};  // from, to
  std::vector<Step> inside{};
};

using Program = std::vector<Step>;

Program draw_program(std::mt19937_64& random);
const char* name_of(Step::Kind kind);
std::string text_of(const Program& program, int indent = 0);

}  // namespace coppice::emulated_gpu::testing
