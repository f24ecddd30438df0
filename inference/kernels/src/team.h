// A team of threads that share the work of one call at a time and sleep between calls.
//
// Work is cut into chunks that threads claim one by one from a single atomic number, so a thread whose
// core was taken by another program delays the chunk it holds and nothing else. A job is over when all its
// chunks are done, not when all threads have come by.
#ifndef QUIRE_TEAM_H
#define QUIRE_TEAM_H

#include <stdint.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace quire {

class Team {
 public:
  using Work = void (*)(void *context, int chunk, int thread);

  explicit Team(int num_threads);  // the caller's thread is one of them
  ~Team();
  Team(const Team &) = delete;
  Team &operator=(const Team &) = delete;

  int size() const { return size_; }
  // Call work once for each chunk in [0, num_chunks), about in order, on the team's threads and the
  // caller's, and return when all are done. `thread` is in [0, size()), and no two calls have the same
  // one at a time. Calls from several threads wait for each other; a call from inside `work` does its
  // chunks on the thread that makes it.
  void run(int num_chunks, Work work, void *context);

 private:
  void help(int thread);
  bool claim_and_work(int thread);
  bool has_chunks() const { return static_cast<uint32_t>(claim_.load(std::memory_order_seq_cst)) != 0; }
  bool wait_for_chunks();

  // What a thread that holds a chunk reads. Written only while no chunk is left and none is held.
  Work work_ = nullptr;
  void *context_ = nullptr;
  uint32_t num_chunks_ = 0;

  // The job's number in the high half, chunks not yet claimed in the low half. A thread that comes late
  // fails to swap it, so it can never take a chunk of the next job with what it knows of the last.
  alignas(64) std::atomic<uint64_t> claim_{0};
  alignas(64) std::atomic<uint32_t> not_done_{0};
  alignas(64) std::atomic<int> num_sleeping_{0};
  std::atomic<bool> is_closing_{false};
  std::mutex one_job_;
  std::mutex sleep_;
  std::condition_variable wake_;
  const int size_;
  std::vector<std::thread> helpers_;
};

}  // namespace quire

#endif
