#include "pause.h"

#include <stdint.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace quire {
namespace {

std::atomic<int> num_steps{0};    // under way
std::atomic<int> num_waiting{0};  // changed with the lock held
std::mutex lock;
std::condition_variable pause_begins;
uint64_t num_pauses = 0;  // since somebody waited for the first; changed with the lock held

}  // namespace

InStep::InStep() { num_steps.fetch_add(1); }

InStep::~InStep() {
  if (num_steps.fetch_sub(1) != 1 || num_waiting.load() == 0) return;
  {
    std::lock_guard<std::mutex> held(lock);
    ++num_pauses;
  }
  pause_begins.notify_all();
}

void wait_for_pause(std::chrono::microseconds longest) {
  std::unique_lock<std::mutex> held(lock);
  const uint64_t seen = num_pauses;
  num_waiting.fetch_add(1);
  pause_begins.wait_for(held, longest, [seen] { return num_pauses != seen; });
  num_waiting.fetch_sub(1);
}

}  // namespace quire
