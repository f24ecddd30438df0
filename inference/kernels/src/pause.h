// The time between two steps, in which a core is free: other work goes there and delays no step.
#ifndef QUIRE_PAUSE_H
#define QUIRE_PAUSE_H

#include <chrono>

namespace quire {

// A step is being computed while one of these lives, by whichever team.
class InStep {
 public:
  InStep();
  ~InStep();
  InStep(const InStep &) = delete;
  InStep &operator=(const InStep &) = delete;
};

// Return when the next step ends and no other is under way, or after so long. A pause that has begun already is not
// taken: it may be over soon.
void wait_for_pause(std::chrono::microseconds longest);

}  // namespace quire

#endif
