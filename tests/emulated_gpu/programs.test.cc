// Random programs on the emulator against the reference of CUDA's ordering rules.
//
// COPPICE_EMULATED_GPU_RUNS is how many, COPPICE_EMULATED_GPU_FIRST the seed that the first is drawn with.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "emulated_gpu/calls.h"
#include "emulated_gpu/memory.h"
#include "emulated_gpu/operations.h"
#include "emulated_gpu/program.h"
#include "emulated_gpu/reference.h"
#include "testing/testing.h"

namespace coppice::emulated_gpu::testing {
namespace {

constexpr std::size_t kBytes = sizeof(Cell);

void good(int error) {
  if (!error) return;
  std::printf("a call answered %d\n", error);
  std::abort();
}

int number_from(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

struct Log {
  std::mutex lock;
  std::vector<Cell> read;
};

// A function of the host: each call writes to the next of its places.
struct Reader {
  Log* log;
  const void* cell;
  std::vector<std::size_t> places;
  std::size_t calls = 0;

  static void call(void* data) {
    auto& reader = *static_cast<Reader*>(data);
    Cell seen;
    move_words(seen.data(), reader.cell, kBytes);
    std::lock_guard held(reader.log->lock);
    reader.log->read[reader.places[reader.calls++]] = seen;
  }
};

// Memory, streams and events that all programs use.
class Machine {
 public:
  Machine() {
    cudaSetDevice(0);
    cudaDeviceEnablePeerAccess(1, 0);
    cudaSetDevice(1);
    cudaDeviceEnablePeerAccess(0, 0);
    for (int i = 0; i < kCells; ++i) {
      if (kWhere[i] == Where::pinned) good(cudaMallocHost(&cells_[i], kBytes));
      if (kWhere[i] == Where::pageable) cells_[i] = &pageable_;
      if (kWhere[i] == Where::device0 || kWhere[i] == Where::device1) {
        good(cudaSetDevice(kWhere[i] == Where::device1));
        good(cudaMalloc(&cells_[i], kBytes));
      }
    }
    good(cudaSetDevice(0));
    good(cudaMalloc(&flags_, kAllFlags * 8));
    for (int i = 1; i < kStreams; ++i) {
      good(cudaSetDevice(device_of(i)));
      good(cudaStreamCreateWithFlags(&streams_[i], !is_blocking(i)));
    }
  }

  Result run(const Program& program) {
    const auto first = first_values();
    for (std::size_t i = 0; i < kCells; ++i) move_words(cells_[i], first[i].data(), kBytes);
    const std::uint64_t none[kAllFlags] = {};
    move_words(flags_, none, sizeof none);
    log_.read.clear();
    for (const Step& step : program) host_step(step);
    for (int device : {1, 0}) {
      good(cudaSetDevice(device));
      good(cudaDeviceSynchronize());
    }
    for (auto& [number, graph] : graphs_) good(cudaGraphExecDestroy(graph));
    graphs_.clear();
    in_graph_.clear();
    readers_.clear();
    for (const auto& [number, event] : events_) good(cudaEventDestroy(event));
    events_.clear();
    Result result;
    for (std::size_t i = 0; i < kCells; ++i) move_words(result.cells[i].data(), cells_[i], kBytes);
    result.read = log_.read;
    return result;
  }

 private:
  std::size_t place() {
    std::lock_guard held(log_.lock);
    log_.read.emplace_back();
    return log_.read.size() - 1;
  }

  void* event(int number) {
    auto [at, fresh] = events_.try_emplace(number, nullptr);
    if (fresh) {
      good(cudaSetDevice(device_of_event(number)));
      good(cudaEventCreateWithFlags(&at->second, 2));
      good(cudaSetDevice(0));
    }
    return at->second;
  }

  Reader* reader(int cell) {
    readers_.push_back(std::make_unique<Reader>(Reader{&log_, cells_[cell], {}}));
    return readers_.back().get();
  }

  void stream_step(const Step& step, std::vector<Reader*>* captured) {
    void* stream = streams_[step.stream];
    const auto cell = [&](int i) { return cells_[i]; };
    const auto flag = reinterpret_cast<DevicePointer>(flags_) + 8 * static_cast<DevicePointer>(step.event);
    switch (step.kind) {
      case Step::copy:
        good(cudaMemcpyAsync(cell(step.cells[0].second), cell(step.cells[0].first), kBytes, kByAddress, stream));
        break;
      case Step::batch: {
        std::vector<void*> to;
        std::vector<const void*> from;
        std::vector<std::size_t> bytes(step.cells.size(), kBytes);
        for (const auto& [one, other] : step.cells) from.push_back(cell(one)), to.push_back(cell(other));
        CopyAttributes attributes{1, {}, {}, 0};
        std::size_t starts = 0;
        good(cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), to.size(), &attributes, &starts, 1, stream));
        break;
      }
      case Step::fill: good(cudaMemsetAsync(cell(step.cells[0].second), step.value, kBytes, stream)); break;
      case Step::raise: good(cuStreamWriteValue64(stream, flag, static_cast<std::uint64_t>(step.value), 0)); break;
      case Step::await:
        good(cuStreamWaitValue64(stream, flag, static_cast<std::uint64_t>(step.value), kAtLeast));
        break;
      case Step::kernel: good(cudaLaunchKernel(name_of(step.kind), {}, {}, nullptr, 0, stream)); break;
      case Step::callback: {
        Reader* made = reader(step.cells[0].first);
        if (captured) captured->push_back(made);
        else made->places = {place()};
        good(cudaLaunchHostFunc(stream, Reader::call, made));
        break;
      }
      case Step::record: good(cudaEventRecord(event(step.event), stream)); break;
      case Step::wait: good(cudaStreamWaitEvent(stream, event(step.event), 0)); break;
      default: std::abort();
    }
  }

  void host_step(const Step& step) {
    switch (step.kind) {
      case Step::sync_stream: good(cudaStreamSynchronize(streams_[step.stream])); break;
      case Step::sync_event: good(cudaEventSynchronize(event(step.event))); break;
      case Step::sync_device:
        good(cudaSetDevice(step.value));
        good(cudaDeviceSynchronize());
        good(cudaSetDevice(0));
        break;
      case Step::copy_now:
        good(cudaMemcpy(cells_[step.cells[0].second], cells_[step.cells[0].first], kBytes, kByAddress));
        break;
      case Step::host_write: {
        Cell cell;
        cell.fill(0x0101010101010101ull * static_cast<std::uint64_t>(step.value));
        move_words(cells_[step.cells[0].second], cell.data(), kBytes);
        break;
      }
      case Step::host_read: {
        Cell seen;
        move_words(seen.data(), cells_[step.cells[0].first], kBytes);
        const std::size_t at = place();
        std::lock_guard held(log_.lock);
        log_.read[at] = seen;
        break;
      }
      case Step::capture: {
        good(cudaStreamBeginCapture(streams_[step.stream], kGlobalCapture));
        for (const Step& each : step.inside) stream_step(each, &in_graph_[step.value]);
        void* graph = nullptr;
        good(cudaStreamEndCapture(streams_[step.stream], &graph));
        good(cudaGraphInstantiate(&graphs_[step.value], graph, 0));
        good(cudaGraphDestroy(graph));
        break;
      }
      case Step::launch:
        for (Reader* each : in_graph_[step.value]) {
          const std::size_t at = place();
          std::lock_guard held(log_.lock);
          each->places.push_back(at);
        }
        good(cudaGraphLaunch(graphs_[step.value], streams_[step.stream]));
        break;
      default: stream_step(step, nullptr);
    }
  }

  void* cells_[kCells] = {};
  void* flags_ = nullptr;
  void* streams_[kStreams] = {};
  std::map<int, void*> events_;
  Cell pageable_{};
  Log log_;
  std::vector<std::unique_ptr<Reader>> readers_;
  std::map<int, void*> graphs_;
  std::map<int, std::vector<Reader*>> in_graph_;
};

Machine& machine() {
  static Machine* one = new Machine;
  return *one;
}

void order_by(std::uint64_t seed, int workers) {
  Scheduler::instance().configure({seed, workers, std::chrono::microseconds(seed ? 300 : 0)});
}

bool on_stream(const Step& step) {
  return step.kind <= Step::wait || step.kind == Step::launch || step.kind == Step::copy_now;
}

int stream_of(const Step& step) { return step.kind == Step::copy_now ? 0 : step.stream; }

struct Fresh {
  int event = kAllEvents, flag = kFlags;
};

// The same program with what a race lacks: an event or a flag, or in a graph or a batch one step less.
Program repaired(Program program, const Judgement& race, std::mt19937_64& random, Fresh& fresh) {
  Place first = race.first, second = race.second;
  if (second.step < first.step) std::swap(first, second);
  const auto at = [&](int step) { return program.begin() + step; };
  if (first.step == second.step) {
    Step& step = *at(first.step);
    const auto inside = static_cast<std::ptrdiff_t>(std::max(first.inside, second.inside));
    if (step.kind == Step::batch) {
      step.cells.erase(step.cells.begin() + inside);
      return program;
    }
    for (Step& each : program) {
      if (each.kind == Step::capture && each.value == step.value) each.inside.erase(each.inside.begin() + inside);
    }
    return program;
  }
  // A step of the host races only with one of a stream that was issued before.
  const Step one = *at(first.step), other = *at(second.step);
  if (!on_stream(one)) {
    program.erase(at(second.step));
    return program;
  }
  if (on_stream(other) && fresh.flag < kAllFlags && random() % 3 == 0) {
    const int flag = fresh.flag++;
    program.insert(at(second.step), {.kind = Step::await, .stream = stream_of(other), .event = flag, .value = 1});
    program.insert(at(first.step) + 1, {.kind = Step::raise, .stream = stream_of(one), .event = flag, .value = 1});
    return program;
  }
  const int event = fresh.event + (device_of(stream_of(one)) != fresh.event % 2);
  fresh.event += 2;
  Step after{.kind = on_stream(other) ? Step::wait : Step::sync_event, .stream = stream_of(other), .event = event};
  program.insert(at(second.step), after);
  program.insert(at(first.step) + 1, {.kind = Step::record, .stream = stream_of(one), .event = event});
  return program;
}

// Until it has no race, or stands still.
Program repaired(Program program, std::mt19937_64& random) {
  Fresh fresh;
  for (Judgement judgement = judge(program); judgement.kind == Judgement::races; judgement = judge(program)) {
    program = repaired(std::move(program), judgement, random, fresh);
  }
  return program;
}

TEST(random_programs_end_as_the_rules_say) {
  const int runs = number_from("COPPICE_EMULATED_GPU_RUNS", 300);
  std::mt19937_64 random(static_cast<std::uint64_t>(number_from("COPPICE_EMULATED_GPU_FIRST", 1)));
  int sound = 0, racing = 0, still = 0, steps = 0;
  std::map<Step::Kind, int> kinds;
  for (int run = 0; sound < runs; ++run) {
    Program program = draw_program(random);
    racing += judge(program).kind == Judgement::races;
    program = repaired(std::move(program), random);
    const Judgement judgement = judge(program);
    still += judgement.kind == Judgement::stands_still;
    if (judgement.kind != Judgement::sound) continue;
    ++sound;
    for (const Step& step : program) ++kinds[step.kind], ++steps;
    for (std::uint64_t seed : {std::uint64_t{0}, random() | 1}) {
      order_by(seed, 1 + sound / 64 % 3);
      const Result result = machine().run(program);
      CHECK(result == judgement.result);
      if (result == judgement.result) continue;
      std::printf("program %d, seed %llu:\n%s", run, static_cast<unsigned long long>(seed), text_of(program).c_str());
      return;
    }
  }
  std::printf("%d programs of %d steps in all; %d had a race first, %d stand still\n", sound, steps, racing, still);
  for (int kind = Step::copy; kind <= Step::launch; ++kind) CHECK(kinds[static_cast<Step::Kind>(kind)] > 0);
}

// A program that needs an order which it does not ask for any more has to show it, or the scheduler is too kind.
TEST(a_dropped_wait_shows) {
  std::mt19937_64 random(7);
  int dropped = 0, seen = 0;
  while (dropped < 40) {
    const Program program = repaired(draw_program(random), random);
    const Judgement whole = judge(program);
    if (whole.kind != Judgement::sound) continue;
    for (std::size_t at = program.size(); at-- > 0;) {
      const bool orders = program[at].kind == Step::wait || program[at].kind == Step::await ||
                          program[at].kind == Step::sync_stream || program[at].kind == Step::sync_event;
      if (!orders) continue;
      Program less = program;
      less.erase(less.begin() + static_cast<std::ptrdiff_t>(at));
      if (judge(less).kind != Judgement::races) continue;
      ++dropped;
      bool differs = false;
      for (std::uint64_t seed = 1; seed <= 30 && !differs; ++seed) {
        order_by(seed, 2);
        differs = !(machine().run(less) == whole.result);
      }
      seen += differs;
      break;
    }
  }
  std::printf("%d of %d dropped waits changed a result\n", seen, dropped);
  CHECK(2 * seen > dropped);  // a race may also be between equal values, or behind a value that nobody keeps
}

}  // namespace
}  // namespace coppice::emulated_gpu::testing
