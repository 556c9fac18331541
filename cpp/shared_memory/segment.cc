#include "shared_memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <limits>
#include <mutex>
#include <new>
#include <random>
#include <utility>

#include "core/wide.h"

namespace coppice::shm {

namespace {

constexpr std::uint64_t kMagic = 0x65636970706f43ULL;  // "Coppice"
constexpr std::size_t kPage = 4096;

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

[[noreturn]] void refuse(const std::string& what, int code) { throw SegmentError(what + ": " + std::strerror(code)); }

/// A number that no other process has: not the process number, which namespaces repeat.
std::uint64_t this_process() {
  static std::mutex mutex;
  static std::uint64_t number = 0;
  static pid_t owner = 0;
  std::lock_guard lock(mutex);
  if (owner != getpid()) {  // the first call, or the first in a forked child
    std::random_device random;
    number = (static_cast<std::uint64_t>(random()) << 32 | random()) | 1;
    owner = getpid();
  }
  return number;
}

/// Gives memory to a part of a file. Returns: 0 or the error.
int allocate(int fd, std::size_t offset, std::size_t bytes) {
#ifdef __linux__
  int code;
  do code = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  while (code == EINTR);
  return code;
#else
  (void)fd, (void)offset, (void)bytes;
  return 0;
#endif
}

struct flock byte_of(int rank, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

std::uint64_t host_clock_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000000;
}

void Segment::map(int fd, std::uint32_t ranks, const Sizes& sizes) {
  std::size_t records = sizeof(SegmentHeader);
  staging_ = whole_pages(records + ranks * sizeof(RankRecord));
  // The sizes may come from a file: no more slots than there may be, then nothing exceeds 128 bits.
  const Wide slots = Wide{ranks} * std::min<std::uint64_t>(sizes.slots, kMaxSlots + 1);
  const Wide rings = Wide{ranks} * ranks * (Wide{kRingControl} + sizes.ring_bytes);
  const Wide all = Wide{staging_} + kPage + slots * sizes.slot_bytes + rings;
  if (sizes.slots > kMaxSlots || all > std::numeric_limits<off_t>::max()) refuse("the segment is too large", EFBIG);
  rings_ = whole_pages(staging_ + ranks * sizes.slots * sizes.slot_bytes);
  bytes_ = rings_ + std::size_t{ranks} * ranks * (kRingControl + sizes.ring_bytes);
  if (fd >= 0) {
    struct stat status {};
    if (fstat(fd, &status) != 0) refuse("cannot look at the shared memory", errno);
    if (status.st_size == 0 && ftruncate(fd, static_cast<off_t>(bytes_)) != 0) {
      refuse("cannot extend the shared memory to " + std::to_string(bytes_) + " bytes", errno);
    }
    if (int code = allocate(fd, 0, staging_)) {
      refuse("no memory for the " + std::to_string(staging_) + " bytes of a segment's records", code);
    }
  }
  int flags = fd >= 0 ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (at == MAP_FAILED) refuse("cannot map " + std::to_string(bytes_) + " bytes of shared memory", errno);
  base_ = static_cast<std::byte*>(at);
  header_ = std::launder(reinterpret_cast<SegmentHeader*>(base_));
  records_ = std::launder(reinterpret_cast<RankRecord*>(base_ + records));
}

static void check_sizes(int ranks, const Sizes& sizes) {
  if (ranks < 1 || ranks > kMaxRanks) {
    throw std::invalid_argument("expected 1 to " + std::to_string(kMaxRanks) + " ranks, found " + std::to_string(ranks));
  }
  if (sizes.slots < kMinSlots || sizes.slots > kMaxSlots) throw std::invalid_argument("expected 3 to 6 slots");
  if (sizes.slot_bytes < kPage || sizes.slot_bytes % kPage || sizes.ring_bytes < kPage || sizes.ring_bytes % kPage) {
    throw std::invalid_argument("expected slots and rings of whole pages of 4096 bytes");
  }
  if (sizes.slot_bytes < static_cast<std::uint64_t>(ranks) * kCacheLine) {
    throw std::invalid_argument("expected slots of " + std::to_string(kCacheLine) + " bytes or more for each rank");
  }
}

static void write_header(SegmentHeader* header, RankRecord* records, int ranks, std::uint64_t host, const Sizes& sizes) {
  new (header) SegmentHeader{};
  header->layout = kLayout;
  header->ranks = static_cast<std::uint32_t>(ranks);
  header->slot_bytes = sizes.slot_bytes;
  header->slots = sizes.slots;
  header->ring_bytes = sizes.ring_bytes;
  header->host = host;
  for (int rank = 0; rank < ranks; ++rank) new (&records[rank]) RankRecord{};
  header->magic = kMagic;
}

Segment Segment::anonymous(int ranks, Sizes sizes) {
  check_sizes(ranks, sizes);
  Segment made;
  made.map(-1, static_cast<std::uint32_t>(ranks), sizes);
  write_header(made.header_, made.records_, ranks, 0, sizes);
  return made;
}

Segment Segment::create(const std::string& path, int ranks, std::uint64_t host, Sizes sizes) {
  check_sizes(ranks, sizes);
  Segment made;
  if (path.empty()) {
#ifdef __linux__
    made.fd_ = memfd_create("coppice", MFD_CLOEXEC);
    if (made.fd_ < 0) refuse("cannot create an anonymous file", errno);
    made.path_ = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(made.fd_);
#else
    refuse("anonymous files are a feature of Linux", ENOTSUP);
#endif
  } else {
    made.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (made.fd_ < 0) refuse("cannot create " + path, errno);
    made.path_ = path;
    made.is_named_ = true;
  }
  try {
    made.map(made.fd_, static_cast<std::uint32_t>(ranks), sizes);
  } catch (const SegmentError&) {
    made.unlink();
    throw;
  }
  write_header(made.header_, made.records_, ranks, host, sizes);
  return made;
}

Segment Segment::open(const std::string& path, int ranks, std::uint64_t host) {
  Segment made;
  made.fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (made.fd_ < 0) refuse("cannot open " + path, errno);
  made.path_ = path;
  SegmentHeader found{};
  // The atomic part stays untouched: what is compared stands before it.
  ssize_t got = pread(made.fd_, static_cast<void*>(&found), offsetof(SegmentHeader, fault), 0);
  if (got != static_cast<ssize_t>(offsetof(SegmentHeader, fault)) || found.magic != kMagic) {
    throw SegmentError("expected a shared memory segment of Coppice at " + path + ", found something else");
  }
  auto expect = [&](const char* what, std::uint64_t expected, std::uint64_t actual) {
    if (expected == actual) return;
    throw SegmentError("expected " + std::string(what) + " " + std::to_string(expected) + ", found " +
                       std::to_string(actual) + " in " + path);
  };
  expect("layout", kLayout, found.layout);
  expect("ranks", static_cast<std::uint64_t>(ranks), found.ranks);
  expect("the host", host, found.host);
  made.map(made.fd_, found.ranks, {found.slot_bytes, found.slots, found.ring_bytes});
  return made;
}

Segment::Segment(Segment&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      bytes_(other.bytes_),
      staging_(other.staging_),
      rings_(other.rings_),
      header_(other.header_),
      records_(other.records_),
      fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      is_named_(std::exchange(other.is_named_, false)) {}

Segment::~Segment() {
  if (base_) munmap(base_, bytes_);
  if (fd_ >= 0) close(fd_);
}

void Segment::attach(int rank) {
  if (rank < 0 || rank >= ranks()) {
    throw std::invalid_argument("expected a rank below " + std::to_string(ranks()) + ", found " + std::to_string(rank));
  }
  RankRecord& own = records_[rank];
  bool is_free = own.presence.load(std::memory_order_acquire) == Presence::absent;
#ifdef __linux__
  if (fd_ >= 0 && is_free) {
    struct flock lock = byte_of(rank, F_WRLCK);
    is_free = fcntl(fd_, F_SETLK, &lock) == 0;
  }
#endif
  if (!is_free) throw SegmentError("rank " + std::to_string(rank) + " is taken: two processes claim the same rank");
  own.process.store(this_process(), std::memory_order_relaxed);
  own.presence.store(Presence::attached, std::memory_order_release);
}

void Segment::leave(int rank) noexcept {
  RankRecord& record = records_[rank];
  // A forked child has the parent's mapping, and must not speak for it.
  if (record.process.load(std::memory_order_relaxed) != this_process()) return;
  record.presence.store(Presence::left, std::memory_order_release);
}

void Segment::unlink() noexcept {
  if (std::exchange(is_named_, false)) ::unlink(path_.c_str());
}

bool Segment::alive(int rank) const {
  const RankRecord& record = records_[rank];
  if (record.presence.load(std::memory_order_acquire) != Presence::attached) return true;
  if (record.process.load(std::memory_order_relaxed) == this_process()) return true;
#ifdef __linux__
  if (fd_ < 0) return true;
  struct flock lock = byte_of(rank, F_WRLCK);
  return fcntl(fd_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
#else
  return true;
#endif
}

void Segment::reserve(const void* begin, std::size_t bytes, int rank) {
  if (fd_ < 0) return;
  auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(begin) - base_);
  if (allocate(fd_, offset, bytes) != 0) throw Failed(announce({FaultKind::full, rank, rank}));
}

Fault Segment::fault() const {
  std::uint64_t word = header_->fault.load(std::memory_order_acquire);
  return {static_cast<FaultKind>(word & 0xff), static_cast<std::int32_t>(word >> 8 & 0xffffff) - 1,
          static_cast<std::int32_t>(word >> 32 & 0xffffff) - 1};
}

Fault Segment::announce(Fault fault) {
  std::uint64_t word = static_cast<std::uint64_t>(fault.kind) | static_cast<std::uint64_t>(fault.culprit + 1) << 8 |
                       static_cast<std::uint64_t>(fault.by + 1) << 32;
  std::uint64_t none = 0;
  header_->fault.compare_exchange_strong(none, word, std::memory_order_acq_rel);
  return this->fault();
}

}  // namespace coppice::shm
