#include "pause.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>

namespace quire {
namespace {

constexpr std::chrono::microseconds kLongestWait(20000);  // until is_hurried is looked at again
constexpr std::chrono::microseconds kLongestSpread(3600000000);

std::atomic<int> num_awake{0};    // threads of teams
std::atomic<int> num_waiting{0};  // changed with the lock held
std::mutex lock;
std::condition_variable pause_begins;
uint64_t num_pauses = 0;  // since somebody waited for the first; changed with the lock held

}  // namespace

void note_awake() { num_awake.fetch_add(1); }

void note_asleep() {
  if (num_awake.fetch_sub(1) != 1 || num_waiting.load() == 0) return;
  {
    std::lock_guard<std::mutex> held(lock);
    ++num_pauses;
  }
  pause_begins.notify_all();
}

bool wait_for_pause(std::chrono::microseconds longest) {
  std::unique_lock<std::mutex> held(lock);
  const uint64_t seen = num_pauses;
  num_waiting.fetch_add(1);
  const bool is_pause = pause_begins.wait_for(held, longest, [seen] { return num_pauses != seen; });
  num_waiting.fetch_sub(1);
  return is_pause;
}

Spreading::Spreading(int32_t num_pieces, std::chrono::microseconds spread, const volatile int32_t *is_hurried)
    : num_pieces_(num_pieces), spread_(std::min(spread, kLongestSpread)), is_hurried_(is_hurried) {}

void Spreading::wait() {
  const Clock::time_point latest = begin_ + spread_ * ++num_begun_ / num_pieces_;
  while (!*is_hurried_) {
    const Clock::time_point now = Clock::now();
    if (now >= latest || latest < pause_ + interval_) return;
    const auto rest = std::chrono::duration_cast<std::chrono::microseconds>(latest - now);
    if (wait_for_pause(std::min(rest + std::chrono::microseconds(1), kLongestWait))) {
      const Clock::time_point pause = Clock::now();
      if (num_pauses_++ > 0) interval_ = pause - pause_;
      pause_ = pause;
      return;
    }
  }
}

}  // namespace quire
