// engine FOLDER: an engine for `exec` over workers that are reached over the network, one program without a shell because
// its host is emulated. FOLDER has
//   hosts      a line each: a host and its worker's address, which takes a text and answers with its words' counts
//   tasks/N    the texts, from 0 on
//   counts/N   their counts: such a text is done
//   log        a line each: a text that is done, its host and the seconds it took, or one that was lost and so waits again
// A child works on each text. A paused worker answers nothing, and its texts wait with it.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 7000, MOST_HOSTS = 4, MOST_TASKS = 256, MOST_TEXT = 1 << 20, TICK_MS = 200 };

static struct host { char name[64], address[64]; int slots, running, done; } hosts[MOST_HOSTS];
static struct task { pid_t child; struct host *host; int done; double begun; } tasks[MOST_TASKS];
static int host_count, task_count, done, retried, cancelled;
static double seconds;
static FILE *told;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

// In the child: the text to the worker, its answer into a file. The answer's last line tells that nothing was cut off.
static int work(int number, const char *address) {
  static char buffer[MOST_TEXT];
  char name[32], result[32];
  snprintf(name, sizeof name, "tasks/%d", number);
  int text = open(name, O_RDONLY);
  ssize_t length = text < 0 ? -1 : read(text, buffer, sizeof buffer);
  int worker = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
  if (length < 0 || worker < 0 || inet_pton(AF_INET, address, &to.sin_addr) != 1) return 1;
  if (connect(worker, (struct sockaddr *)&to, sizeof to)) return 1;
  for (ssize_t sent = 0, part; sent < length; sent += part)
    if ((part = write(worker, buffer + sent, length - sent)) <= 0) return 1;
  shutdown(worker, SHUT_WR);
  size_t have = 0;
  for (ssize_t part; have < sizeof buffer && (part = read(worker, buffer + have, sizeof buffer - have)); have += part)
    if (part < 0) return 1;
  if (have < 4 || memcmp(buffer + have - 4, "end\n", 4)) return 1;
  snprintf(name, sizeof name, "counts/.%d", number);
  snprintf(result, sizeof result, "counts/%d", number);
  int counts = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  return counts < 0 || write(counts, buffer, have) != (ssize_t)have || rename(name, result);
}

static void take_ended(void) {
  int status;
  for (pid_t child; (child = waitpid(-1, &status, WNOHANG)) > 0;)
    for (struct task *task = tasks; task < tasks + task_count; task++) {
      if (task->child != child) continue;
      double took = now() - task->begun;
      task->child = 0;
      task->host->running--;
      if (status == 0) {
        task->done = 1, done++, task->host->done++, seconds += took;
        fprintf(told, "%d done on %s in %.1f s\n", (int)(task - tasks), task->host->name, took);
      } else {
        retried++;
        fprintf(told, "%d lost on %s after %.1f s\n", (int)(task - tasks), task->host->name, took);
      }
    }
}

static void give_out(void) {
  for (struct host *host = hosts; host < hosts + host_count; host++)
    for (struct task *task = tasks; task < tasks + task_count && host->running < host->slots; task++) {
      if (task->done || task->child) continue;
      pid_t child = fork();
      if (child < 0) return;
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(work(task - tasks, host->address));
      }
      *task = (struct task){.child = child, .host = host, .begun = now()};
      host->running++;
    }
}

static void progress(void) {
  printf("{\"progress\":{\"fraction_done\":%f,\"tasks_total\":%d,\"tasks_done\":%d,\"tasks_retried\":%d",
         (double)done / task_count, task_count, done, retried);
  if (done) printf(",\"mean_task_s\":%f", seconds / done);
  printf(",\"workers\":{");
  for (struct host *host = hosts; host < hosts + host_count; host++)
    printf("%s\"%s\":{\"tasks_running\":%d,\"done\":%f}", host == hosts ? "" : ",", host->name, host->running,
           (double)host->done / task_count);
  printf("}%s}}\n", done == task_count ? ",\"ended\":\"completed\"" : "");
}

static void answer(const char *question) {
  if (!strncmp(question, "{\"hello\"", 8)) {
    printf("{\"hello\":{\"version\":1}}\n");
  } else if (!strncmp(question, "{\"workers\"", 10)) {
    for (struct host *host = hosts; host < hosts + host_count; host++) {
      char named[sizeof host->name + 4];
      snprintf(named, sizeof named, "\"%.63s\":", host->name);
      const char *found = strstr(question, named);
      host->slots = found && !cancelled ? atoi(found + strlen(named)) : 0;
    }
    printf("{\"workers\":{}}\n");
  } else if (!strncmp(question, "{\"progress\"", 11)) {
    progress();
  } else if (!strncmp(question, "{\"cancel\"", 9)) {
    cancelled = 1;
    for (int host = 0; host < host_count; host++) hosts[host].slots = 0;
    for (int task = 0; task < task_count; task++)
      if (tasks[task].child) kill(tasks[task].child, SIGKILL);
    printf("{\"cancel\":{}}\n");
  } else {
    printf("{\"error\":\"an unknown question\"}\n");
  }
}

int main(int count, char **arguments) {
  if (count != 2 || chdir(arguments[1])) return 1;
  signal(SIGPIPE, SIG_IGN);
  setvbuf(stdout, NULL, _IOLBF, 0);
  FILE *file = fopen("hosts", "r");
  if (!file || !(told = fopen("log", "a"))) return 1;
  setvbuf(told, NULL, _IOLBF, 0);
  while (host_count < MOST_HOSTS && fscanf(file, "%63s %63s", hosts[host_count].name, hosts[host_count].address) == 2) host_count++;
  fclose(file);
  for (char name[32]; task_count < MOST_TASKS; task_count++) {
    snprintf(name, sizeof name, "tasks/%d", task_count);
    if (access(name, R_OK)) break;
    snprintf(name, sizeof name, "counts/%d", task_count);
    if (!access(name, R_OK)) tasks[task_count].done = 1, done++;
  }
  if (!task_count) return 1;
  static char line[65536];
  for (size_t have = 0;;) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    if (poll(&input, 1, TICK_MS) > 0) {
      ssize_t part = read(0, line + have, sizeof line - 1 - have);
      if (part <= 0) return 0;
      line[have += part] = 0;
    }
    take_ended();
    for (char *end; have && (end = memchr(line, '\n', have));) {
      *end = 0;
      answer(line);
      have -= end + 1 - line;
      memmove(line, end + 1, have);
    }
    give_out();
  }
}
