// The foreground: a service that does a fixed piece of work on two virtual CPUs every 400 ms, and prints how long each of
// those requests took from when it was due, in microseconds. One that is answered late puts the next off, so that no
// backlog of a bad moment is measured in the next one. The work is 40 ms on each CPU, found when it starts.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { PERIOD_NS = 400000000, WORK_NS = 40000000, CPUS = 2 };

static uint64_t rounds = 1 << 16;
static pthread_barrier_t begin, end;
static volatile uint64_t sink;

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void work(void) {
  uint64_t value = 1;
  for (uint64_t round = 0; round < rounds; round++) value = value * 6364136223846793005u + 1442695040888963407u;
  sink = value;
}

static void *other(void *cpu) {
  (void)cpu;
  for (;;) {
    pthread_barrier_wait(&begin);
    work();
    pthread_barrier_wait(&end);
  }
  return NULL;
}

static void run_on(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread, sizeof set, &set);
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  int64_t least;
  for (;;) { // the least of several, because a slow moment of the emulator is none of the work
    least = INT64_MAX;
    for (int attempt = 0; attempt < 8; attempt++) {
      int64_t start = now();
      work();
      int64_t took = now() - start;
      if (took < least) least = took;
    }
    if (least >= WORK_NS / 4) break;
    rounds *= 2;
  }
  rounds = rounds * ((double)WORK_NS / least);
  pthread_barrier_init(&begin, NULL, CPUS);
  pthread_barrier_init(&end, NULL, CPUS);
  pthread_t thread;
  pthread_create(&thread, NULL, other, NULL);
  run_on(thread, 1);
  run_on(pthread_self(), 0);
  printf("work of %llu rounds\n", (unsigned long long)rounds);
  for (int64_t due = now() + PERIOD_NS;; due = due + PERIOD_NS > now() ? due + PERIOD_NS : now()) {
    struct timespec until = {due / 1000000000, due % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) {}
    pthread_barrier_wait(&begin);
    work();
    pthread_barrier_wait(&end);
    printf("response %lld\n", (long long)(now() - due) / 1000);
  }
}
