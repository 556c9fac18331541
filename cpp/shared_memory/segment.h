// Memory that the ranks of one host share, and what it says about each of them.
//
// A segment is a sparse file that every rank maps: a page for the header, a record per rank, a staging area per rank
// and a ring of bytes per ordered pair of ranks. Only the header and the records have memory from the start; an area
// gets its own when a rank first needs it (`reserve`), so that pairs that never talk cost nothing, and a full file
// system is an error that is reported instead of a SIGBUS in the middle of a copy.
//
// Each rank of a file-backed segment holds a POSIX record lock on the byte of its number. The kernel drops it when the
// process ends in whatever way, before anybody collects it, and children do not inherit it: a free lock means a dead
// rank, where process numbers would mislead (zombies, reuse, namespaces).
//
// Overflow: the size of a segment is computed in 128 bits and compared with the largest size of a file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace coppice::shm {

/// Layout of a segment; ranks with another one must not attach.
inline constexpr std::uint32_t kLayout = 1;
inline constexpr std::size_t kCacheLine = 64;
inline constexpr int kMaxRanks = 4096;
inline constexpr std::size_t kMinSlots = 3;  // a round is staged while the one before is reduced and the one before that is taken
inline constexpr std::size_t kMaxSlots = 6;

/// What makes all ranks give up. Once set, a segment stays unusable.
enum class FaultKind : std::uint8_t {
  none = 0,
  lost = 1,         // the process of `culprit` has ended
  left = 2,         // `culprit` has closed its engine
  timed_out = 3,    // `culprit` did not respond in time
  mismatch = 4,     // `by` and `culprit` carry out different collectives
  full = 5,         // `culprit` found no memory in the file system
  interrupted = 6,  // `culprit` was stopped by a signal or an error of its own
};

struct Fault {
  FaultKind kind = FaultKind::none;
  std::int32_t culprit = -1;
  std::int32_t by = -1;  // the rank that found it
};

/// Thrown on each rank when a fault is found or has been announced.
struct Failed : std::runtime_error {
  explicit Failed(Fault what) : std::runtime_error("a rank of the shared memory segment has failed"), fault(what) {}
  Fault fault;
};

/// Thrown when a segment cannot be created, opened or extended.
struct SegmentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Presence : std::uint32_t { absent = 0, attached = 1, left = 2 };

/// What one rank says of itself. Only that rank writes it.
struct RankRecord {
  // Rounds of direct collectives (direct.h).
  alignas(kCacheLine) std::atomic<std::uint64_t> staged;     // rounds whose contribution lies in its staging area
  std::atomic<std::uint64_t> reduced;                   // rounds whose share of the result lies there as well
  std::atomic<std::uint64_t> signature[kMaxSlots];  // per slot: what collective the round belongs to
  alignas(kCacheLine) std::atomic<std::uint64_t> taken;      // rounds in which it has read all that it needs of the others
  // How it fares.
  alignas(kCacheLine) std::atomic<Presence> presence;
  std::atomic<std::uint64_t> process;     // a number that no other process has
  std::atomic<std::uint32_t> awaits;      // the rank that it waits for, + 1; 0 when it does not wait for long
  std::atomic<std::uint64_t> awake_ms;    // when it last looked, on the host's monotonic clock
};

struct SegmentHeader {
  alignas(kCacheLine) std::uint64_t magic;
  std::uint32_t layout;
  std::uint32_t ranks;
  std::uint64_t slot_bytes;  // of a staging slot
  std::uint64_t slots;       // per rank
  std::uint64_t ring_bytes;  // per ordered pair, without its control line
  std::uint64_t host;        // of the boot that created it
  alignas(kCacheLine) std::atomic<std::uint64_t> fault;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

/// Sizes of the areas of a segment.
struct Sizes {
  std::uint64_t slot_bytes = 256 << 10;
  std::uint64_t slots = 4;
  std::uint64_t ring_bytes = 1 << 20;
};

/// One process's mapping of a segment. Ranks that are threads share one object.
class Segment {
 public:
  /// Memory of this process and its later children alone, without a file.
  static Segment anonymous(int ranks, Sizes sizes = {});

  /// A new file at `path`, which must not exist; or an anonymous file, reached through `path()`, where it is empty.
  /// Args: host: Identity of this boot of this host, compared by those that open it.
  static Segment create(const std::string& path, int ranks, std::uint64_t host, Sizes sizes = {});

  /// The segment that another process created.
  static Segment open(const std::string& path, int ranks, std::uint64_t host);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  /// Says that `rank` is there, from this process on. Throws SegmentError where another has that rank.
  void attach(int rank);

  /// Says that `rank` will do nothing any more. Harmless if repeated.
  void leave(int rank) noexcept;

  /// Removes the name, if there is one: the memory lives until the last rank has gone.
  void unlink() noexcept;

  /// Whether the process of a rank that has attached still runs; true also where that cannot be told.
  bool alive(int rank) const;

  /// Gives memory to a part of the segment; throws Failed for all ranks if there is none.
  void reserve(const void* begin, std::size_t bytes, int rank);

  Fault fault() const;
  bool faulty() const { return header_->fault.load(std::memory_order_relaxed) != 0; }

  /// Announces a fault unless there is one already. Returns: the one that counts.
  Fault announce(Fault fault);

  int ranks() const { return static_cast<int>(header_->ranks); }
  const SegmentHeader& header() const { return *header_; }
  RankRecord& record(int rank) const { return records_[rank]; }
  std::byte* slot(int rank, std::size_t index) const {
    return base_ + staging_ + (static_cast<std::size_t>(rank) * header_->slots + index) * header_->slot_bytes;
  }
  /// The ring of the pair: a control area of `kRingControl` bytes, then its bytes.
  std::byte* ring(int from, int to) const {
    return base_ + rings_ + (static_cast<std::size_t>(from) * header_->ranks + static_cast<std::size_t>(to)) * ring_stride();
  }
  std::size_t ring_stride() const { return kRingControl + header_->ring_bytes; }
  const std::string& path() const { return path_; }

  static constexpr std::size_t kRingControl = 4096;  // a page, so that areas stay apart

 private:
  Segment() = default;
  void map(int fd, std::uint32_t ranks, const Sizes& sizes);

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t staging_ = 0, rings_ = 0;  // where the areas begin
  SegmentHeader* header_ = nullptr;
  RankRecord* records_ = nullptr;
  int fd_ = -1;
  std::string path_;
  bool is_named_ = false;
};

/// Milliseconds of the host's monotonic clock: the same in all its processes.
std::uint64_t host_clock_ms();

}  // namespace coppice::shm
