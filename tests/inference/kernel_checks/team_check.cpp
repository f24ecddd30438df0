// Lives of a thread team and of those who wait for its pauses, for a build with ThreadSanitizer or AddressSanitizer.
// Exit status 0: all is well.
#include <stdio.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "pause.h"
#include "team.h"

namespace {

int failures = 0;

void expect(bool is_true, const char *what) {
  if (is_true) return;
  printf("failed: %s\n", what);
  ++failures;
}

struct Counts {
  std::vector<std::atomic<int>> of_chunk;
  std::vector<std::atomic<int>> at_once;  // calls that have this thread's index now
  std::atomic<bool> is_shared{false};
  long plain = 0;  // written by chunk 0 alone: a race if a job is not over when run returns
  explicit Counts(int chunks, int threads) : of_chunk(chunks), at_once(threads) {}
};

void count(void *context, int chunk, int thread) {
  Counts &counts = *static_cast<Counts *>(context);
  if (counts.at_once[thread].fetch_add(1) != 0) counts.is_shared = true;
  counts.of_chunk[chunk].fetch_add(1, std::memory_order_relaxed);
  if (chunk == 0) ++counts.plain;
  counts.at_once[thread].fetch_sub(1);
}

void check_each_chunk_is_done_once(quire::Team &team, int num_chunks, int rounds) {
  Counts counts(num_chunks, team.size());
  for (int round = 0; round < rounds; ++round) {
    team.run(num_chunks, count, &counts);
    if (counts.plain != round + 1) break;
  }
  bool is_right = counts.plain == rounds;
  for (auto &times : counts.of_chunk) is_right = is_right && times == rounds;
  expect(is_right, "every chunk is done once in each job");
  expect(!counts.is_shared, "no index belongs to two threads at once");
}

// Each job has its own context on the stack: a thread that came late would write into one that is gone.
void check_a_late_thread_touches_no_other_job(quire::Team &team, int rounds) {
  long sum = 0;
  for (int round = 0; round < rounds; ++round) {
    std::atomic<long> here{0};
    const int num_chunks = 1 + round % 7;
    team.run(num_chunks, [](void *context, int chunk, int) {
      static_cast<std::atomic<long> *>(context)->fetch_add(chunk + 1);
    }, &here);
    sum += here - num_chunks * (num_chunks + 1) / 2;
  }
  expect(sum == 0, "a job's chunks belong to that job");
}

struct Nested {
  quire::Team *team;
  std::atomic<int> inner{0};
};

void check_a_nested_call_is_done_by_its_thread(quire::Team &team) {
  Nested nested{&team, {}};
  team.run(20, [](void *context, int, int) {
    Nested &outer = *static_cast<Nested *>(context);
    outer.team->run(5, [](void *inner, int, int) { static_cast<Nested *>(inner)->inner++; }, context);
  }, &nested);
  expect(nested.inner == 100, "nested calls are done");
}

void check_callers_wait_for_each_other(quire::Team &team) {
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&team] { check_each_chunk_is_done_once(team, 9, 300); });
  }
  for (std::thread &caller : callers) caller.join();
}

// Jobs with pauses between them, so that helpers are met awake, half asleep and asleep.
void check_sleepers_are_woken(quire::Team &team, int rounds) {
  Counts counts(8, team.size());
  for (int round = 0; round < rounds; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(round % 100));
    team.run(8, count, &counts);
  }
  expect(counts.plain == rounds, "jobs after a pause are done");
}

struct Meeting {
  int expected;
  std::atomic<int> here{0};
  std::atomic<bool> is_missed{false};
};

// As many chunks as threads, each of which waits for all others: so none may be left asleep.
void check_all_threads_come(quire::Team &team, int milliseconds_after) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_after));
  Meeting meeting{team.size(), {}, {}};
  team.run(team.size(), [](void *context, int, int) {
    Meeting &all = *static_cast<Meeting *>(context);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    all.here++;
    while (all.here < all.expected && !all.is_missed) {
      if (std::chrono::steady_clock::now() > end) all.is_missed = true;
      std::this_thread::yield();
    }
  }, &meeting);
  expect(!meeting.is_missed, "all threads come");
}

// Teams that work and rest again and again: whoever waits is woken by one that goes to sleep.
void check_pauses_are_found() {
  std::atomic<bool> is_over{false};
  std::vector<std::thread> steps, waiting;
  for (int i = 0; i < 2; ++i) {
    steps.emplace_back([&is_over, i] {
      quire::Team team(2);
      while (!is_over) {
        team.run(5, [](void *, int, int) {}, nullptr);
        std::this_thread::sleep_for(std::chrono::microseconds(300 + 200 * i));
      }
    });
  }
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 2; ++i) {
    waiting.emplace_back([] {
      for (int round = 0; round < 50; ++round) quire::wait_for_pause(std::chrono::seconds(1));
    });
  }
  for (std::thread &thread : waiting) thread.join();
  expect(std::chrono::steady_clock::now() - began < std::chrono::seconds(25), "a pause is found long before the time is over");
  is_over = true;
  for (std::thread &thread : steps) thread.join();
}

void check_waiting_ends_without_a_step() {
  const auto began = std::chrono::steady_clock::now();
  quire::wait_for_pause(std::chrono::milliseconds(20));
  expect(std::chrono::steady_clock::now() - began >= std::chrono::milliseconds(20), "without a step all of the time is waited");
}

}  // namespace

int main() {
  check_pauses_are_found();
  check_waiting_ends_without_a_step();
  for (int size = 1; size <= 4; ++size) {
    for (int life = 0; life < 20; ++life) quire::Team short_lived(size);
    quire::Team team(size);
    expect(team.size() == size, "a team has the size it was asked for");
    team.run(0, nullptr, nullptr);
    for (int chunks : {1, 2, 3, 7, 1000}) check_each_chunk_is_done_once(team, chunks, 20000 / (chunks + 20));
    check_a_late_thread_touches_no_other_job(team, 3000);
    check_a_nested_call_is_done_by_its_thread(team);
    check_callers_wait_for_each_other(team);
    check_sleepers_are_woken(team, 500);
    for (int milliseconds = 0; milliseconds < 10 && !failures; ++milliseconds) check_all_threads_come(team, milliseconds);
  }
  printf("%d failures\n", failures);
  return failures != 0;
}
