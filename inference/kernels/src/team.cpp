#include "team.h"

#include <chrono>

#include "pause.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace quire {
namespace {

// How long a thread looks for work before it sleeps: longer than the pieces between two parallel regions
// of a step, far shorter than the time between two steps.
constexpr std::chrono::microseconds kHelperSpin(50);
// How long the caller looks before it offers its core to whoever holds the last chunk.
constexpr std::chrono::microseconds kCallerSpin(30);
constexpr int kPausesPerLook = 32;

thread_local int thread_inside = -1;  // the index of this thread while it works on a chunk

void pause() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
  __asm__ __volatile__("yield");
#endif
}

// Look until is_true or the time is over.
template <typename Condition>
bool spin(std::chrono::microseconds longest, const Condition &is_true) {
  const auto end = std::chrono::steady_clock::now() + longest;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (is_true()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return is_true();
}

}  // namespace

Team::Team(int num_threads) : size_(num_threads < 1 ? 1 : num_threads) {
  helpers_.reserve(static_cast<size_t>(size_ - 1));
  for (int thread = 1; thread < size_; ++thread) helpers_.emplace_back(&Team::help, this, thread);
}

Team::~Team() {
  {
    std::lock_guard<std::mutex> lock(sleep_);
    is_closing_.store(true);
  }
  wake_.notify_all();
  for (std::thread &helper : helpers_) helper.join();
}

void Team::run(int num_chunks, Work work, void *context) {
  if (num_chunks <= 0) return;
  if (thread_inside >= 0) {
    for (int chunk = 0; chunk < num_chunks; ++chunk) work(context, chunk, thread_inside);
    return;
  }
  std::lock_guard<std::mutex> lock(one_job_);
  if (size_ == 1 || num_chunks == 1) {
    thread_inside = 0;
    for (int chunk = 0; chunk < num_chunks; ++chunk) work(context, chunk, 0);
    thread_inside = -1;
    return;
  }
  work_ = work;
  context_ = context;
  num_chunks_ = static_cast<uint32_t>(num_chunks);
  not_done_.store(num_chunks_, std::memory_order_relaxed);
  const uint64_t job = (claim_.load(std::memory_order_relaxed) >> 32) + 1;
  claim_.store(job << 32 | num_chunks_, std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
    // Taking the lock waits for a helper between its last look and its sleep.
    { std::lock_guard<std::mutex> asleep(sleep_); }
    wake_.notify_all();
  }
  while (claim_and_work(0)) {
  }
  const auto is_done = [this] { return not_done_.load(std::memory_order_acquire) == 0; };
  while (!spin(kCallerSpin, is_done)) std::this_thread::yield();
}

// Do one chunk, if there is one.
bool Team::claim_and_work(int thread) {
  uint64_t seen = claim_.load(std::memory_order_acquire);
  do {
    if (static_cast<uint32_t>(seen) == 0) return false;
  } while (!claim_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                         std::memory_order_acquire));
  const int chunk = static_cast<int>(num_chunks_ - static_cast<uint32_t>(seen));
  thread_inside = thread;
  work_(context_, chunk, thread);
  thread_inside = -1;
  not_done_.fetch_sub(1, std::memory_order_release);
  return true;
}

void Team::help(int thread) {
  note_awake();
  while (wait_for_chunks()) claim_and_work(thread);
  note_asleep();
}

// False: the team is being freed.
bool Team::wait_for_chunks() {
  const auto is_time = [this] { return has_chunks() || is_closing_.load(std::memory_order_relaxed); };
  if (!spin(kHelperSpin, is_time)) {
    note_asleep();
    std::unique_lock<std::mutex> lock(sleep_);
    num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, is_time);
    num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    note_awake();
  }
  return !is_closing_.load(std::memory_order_relaxed);
}

}  // namespace quire
