// The time between two steps, in which a core is free: other work goes there and delays no step.
#ifndef QUIRE_PAUSE_H
#define QUIRE_PAUSE_H

#include <stdint.h>

#include <chrono>

namespace quire {

// A thread of a team begins to work, or to look for work.
void note_awake();
// It found nothing to do for a while and goes to sleep. If all others do, whoever waits is woken by it, and so gets its
// core.
void note_asleep();

// Return true when the last thread of all teams goes to sleep, or false after so long. A pause that has begun already
// is not taken: it may be over soon.
bool wait_for_pause(std::chrono::microseconds longest);

// Spreads pieces of work over a time, so that each is begun in a pause if possible.
class Spreading {
 public:
  Spreading(int32_t num_pieces, std::chrono::microseconds spread, const volatile int32_t *is_hurried);

  // Wait until the next piece may be begun. Each has its share of the time and waits no longer; if pauses are too
  // seldom, several are done in one.
  void wait();

 private:
  using Clock = std::chrono::steady_clock;

  const int32_t num_pieces_;
  const std::chrono::microseconds spread_;
  const volatile int32_t *const is_hurried_;
  const Clock::time_point begin_ = Clock::now();
  int32_t num_begun_ = 0;
  int32_t num_pauses_ = 0;
  Clock::time_point pause_ = begin_;  // when the last one began
  Clock::duration interval_{0};       // between the last two
};

}  // namespace quire

#endif
