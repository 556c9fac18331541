#include "shared_memory/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "shared_memory/channel.h"
#include "shared_memory/watch.h"
#include "testing/testing.h"

using namespace coppice::shm;

namespace {

constexpr Sizes kSmallSegment{4096, 3, 4096};

std::string fresh_path() {
  static int number = 0;
  return "/tmp/coppice-test-" + std::to_string(getpid()) + "-" + std::to_string(number++);
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

}  // namespace

TEST(segments_are_seen_through_every_mapping) {
  Segment made = Segment::create(fresh_path(), 3, 7, kSmallSegment);
  Segment opened = Segment::open(made.path(), 3, 7);
  made.reserve(made.slot(2, 1), 4096, 0);
  std::strcpy(reinterpret_cast<char*>(made.slot(2, 1)), "hello");
  CHECK(std::strcmp(reinterpret_cast<const char*>(opened.slot(2, 1)), "hello") == 0);
  CHECK(made.slot(2, 1) != opened.slot(2, 1));
  CHECK_EQ(opened.header().ring_bytes, kSmallSegment.ring_bytes);
  opened.announce({FaultKind::timed_out, 2, 1});
  CHECK(made.faulty());
  CHECK_EQ(made.announce({FaultKind::lost, 0, 0}).culprit, 2);  // the first one counts
  CHECK_EQ(made.fault().by, 1);
  made.unlink();
  CHECK(!exists(opened.path()));
}

TEST(segments_of_others_are_refused) {
  Segment made = Segment::create(fresh_path(), 3, 7, kSmallSegment);
  CHECK_THROWS(SegmentError, Segment::create(made.path(), 3, 7, kSmallSegment));
  CHECK_THROWS(SegmentError, Segment::open(made.path(), 2, 7));
  CHECK_THROWS(SegmentError, Segment::open(made.path(), 3, 8));
  int fd = open(made.path().c_str(), O_RDWR);
  std::uint32_t layout = kLayout + 1;
  CHECK(pwrite(fd, &layout, sizeof layout, offsetof(SegmentHeader, layout)) == sizeof layout);
  close(fd);
  CHECK_THROWS(SegmentError, Segment::open(made.path(), 3, 7));
  made.unlink();
  CHECK_THROWS(SegmentError, Segment::open(made.path(), 3, 7));
  CHECK_THROWS(SegmentError, Segment::create("/nowhere/at/all", 3, 7, kSmallSegment));
  std::string other = fresh_path();
  close(open(other.c_str(), O_CREAT | O_RDWR, 0600));
  CHECK_THROWS(SegmentError, Segment::open(other, 3, 7));
  unlink(other.c_str());
  CHECK_THROWS(std::invalid_argument, Segment::anonymous(0, kSmallSegment));
  CHECK_THROWS(std::invalid_argument, Segment::anonymous(2, {4096, 2, 4096}));
  CHECK_THROWS(std::invalid_argument, Segment::anonymous(2, {4000, 3, 4096}));
  CHECK_THROWS(std::invalid_argument, Segment::anonymous(65, {4096, 3, 4096}));
}

TEST(segments_beyond_any_file_are_refused) {
  for (Sizes sizes : {Sizes{4096, 3, std::uint64_t{1} << 60}, Sizes{4096, 3, std::uint64_t{1} << 62},
                      Sizes{std::uint64_t{1} << 62, 4, 4096}})
    CHECK_THROWS(SegmentError, Segment::anonymous(4, sizes));
}

TEST(a_rank_is_taken_once) {
  Segment made = Segment::anonymous(2, kSmallSegment);
  made.attach(0);
  CHECK_THROWS(SegmentError, made.attach(0));
  CHECK_THROWS(std::invalid_argument, made.attach(2));
}

#if defined(__linux__) && !defined(__SANITIZE_THREAD__)
TEST(a_dead_process_is_known_before_anybody_collects_it) {
  for (const std::string& path : {fresh_path(), std::string()}) {
    Segment made = Segment::create(path, 2, 7, kSmallSegment);
    made.attach(0);
    std::array<int, 2> ready, go;
    CHECK(pipe(ready.data()) == 0 && pipe(go.data()) == 0);
    pid_t child = fork();
    if (child == 0) {
      char byte = 0;
      {
        Segment opened = Segment::open(made.path(), 2, 7);
        opened.attach(1);
        // A child of the rank that lives on does not keep it alive.
        if (fork() == 0) {
          sleep(3);
          _exit(0);
        }
        made.leave(0);  // not its own: ignored
        if (write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1) _exit(1);
      }
      _exit(0);
    }
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK(made.alive(1));
    CHECK(made.record(0).presence.load() == Presence::attached);
    kill(child, SIGKILL);
    siginfo_t info;
    waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);  // it is a zombie now
    CHECK(!made.alive(1));
    CHECK(made.alive(0));
    waitpid(child, nullptr, 0);
    for (int fd : {ready[0], ready[1], go[0], go[1]}) close(fd);
    made.unlink();
  }
}
#endif

TEST(channels_keep_order_and_bounds) {
  Segment segment = Segment::anonymous(2, kSmallSegment);
  Sender sender(segment, 0, 1);
  Receiver receiver(segment, 0, 1);
  CHECK(!receiver.look().id);
  std::array<std::byte, 1000> data{};
  std::uint64_t sent = 0, got = 0, refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::size_t bytes = 1 + static_cast<std::size_t>(round) * 131 % std::min<std::size_t>(data.size(), sender.part_bytes());
    data.fill(static_cast<std::byte>(sent));
    if (sender.send({9, static_cast<std::int64_t>(sent), static_cast<std::int64_t>(bytes)}, data.data(), bytes)) {
      ++sent;
    } else {
      ++refused;
      CHECK(receiver.is_crowded());
    }
    for (int k = 0; k < round % 2; ++k) {
      Receiver::Part part = receiver.look();
      if (!part.id) break;
      CHECK_EQ(part.id->tag, static_cast<std::int64_t>(got));
      CHECK_EQ(part.id->bytes, static_cast<std::int64_t>(part.bytes));
      CHECK(part.data[0] == static_cast<std::byte>(got) && part.data[part.bytes - 1] == static_cast<std::byte>(got));
      receiver.release();
      ++got;
    }
  }
  CHECK(refused > 0 && got > 900 && sent - got < 64);
}

TEST(an_interruption_ends_a_wait) {
  Segment segment = Segment::anonymous(2, kSmallSegment);
  coppice::StopFlag at_once = [] { return true; };
  Watch watch(segment, 0, 600, at_once);
  CHECK_THROWS(Failed, watch.until(1, [] { return false; }));
  CHECK(segment.fault().kind == FaultKind::interrupted);
  CHECK_EQ(segment.fault().culprit, 0);
}
