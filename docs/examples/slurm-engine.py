#!/usr/bin/env python3
"""Speaks for Slurm: answers Gleaner's questions (docs/engines.md) on standard input and output.

The job is one array of tasks of one CPU. Every host has a partition of its own, which is opened with so many CPUs, or
closed. What runs is asked of squeue; what ended has left a result in the working directory, which all nodes share.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import time

ANSWER_S = 8  # an answer is due within 10 s; sixty errors in a row are tolerated: rather an error than a late answer
AGAIN_S = 10  # slurmctld forgets what was changed in its partitions when it is started again
LOST_S = 60  # on a network file system a result may become visible only some time after its task left the queue
TRIES = 3  # so often a task is run again that was killed without a result
FIELDS = "ArrayJobID:255,StateCompact:255,ArrayTaskID:255,RestartCnt:255,StartTime:255,Partition:255"
STATES = "PENDING,RUNNING,SUSPENDED,COMPLETING,CONFIGURING,FAILED"

# A task that Slurm runs again after it had ended does nothing. One that was killed leaves no result: most likely
# it went down with its host, and the shell just happened to be killed later than what it ran.
WRAPPER = """#!/bin/sh
mkdir -p {results} || exit 137
result={results}/$SLURM_ARRAY_TASK_ID
[ -e "$result" ] && exit 0
start=$(date +%s%N)
{script}
code=$?
case $code in 137|143) exit $code ;; esac
new="$result.$SLURM_JOB_PARTITION"
echo "$code $(($(date +%s%N) - start)) $SLURM_JOB_PARTITION ${{SLURM_RESTART_COUNT:-0}}" >"$new" && mv "$new" "$result"
exit $code
"""


class Engine:
    def __init__(self, args):
        self.args = args
        self.name = self.job_id = self.wanted = self.empty_since = None
        self.applied = self.deadline = self.fraction = 0
        self.results = {}  # task: exit code, seconds, partition, restarts

    def run(self, *command, stdin=""):
        """Runs a command of Slurm and gives its output. Without slurmctld it would try for too long."""
        limit = max(0.1, self.deadline - time.monotonic())
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{command[0]} did not end in time: is slurmctld reachable?") from None
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.strip() or done.returncode}")
        return done.stdout

    def partitions(self):
        """Gleaner's partitions: whether they are up, and with how many CPUs."""
        lines = [line.split("|") for line in self.run("sinfo", "-h", "-o", "%R|%a|%B").splitlines()]
        return {name: (state == "up", cpus) for name, state, cpus in lines if name.startswith(self.args.prefix)}

    def queue(self):
        """Waiting, running and failed tasks, each with its FIELDS; waiting ones share a line."""
        lines = self.run("squeue", "-h", "-n", self.name, "-t", STATES, "-O", FIELDS).splitlines()
        return [line.split() for line in lines]

    def hello(self, question):
        """Submits the job, unless it was submitted before."""
        if not re.fullmatch(r"[A-Za-z0-9._-]+", question["job"]):
            raise RuntimeError(f"job name `{question['job']}`: letters, digits, `.`, `_` and `-` only")
        self.name = "gleaner-" + question["job"]
        path = pathlib.Path(self.name + ".id")
        if path.exists():
            self.job_id = path.read_text().strip()
            return {"version": 1}
        # It is in the queue already if this program ended before it wrote the file.
        self.job_id = max((task[0] for task in self.queue() if task[1] != "F"), key=int, default=None)
        if self.job_id is None:
            self.workers({})  # no task may start before it was said where
            if not (partitions := self.partitions()):
                raise RuntimeError(f"Slurm has no partition {self.args.prefix}*")
            results, script = (shlex.quote(os.path.abspath(p)) for p in (self.name + ".results", self.args.script))
            self.job_id = self.run(
                "sbatch", "--parsable", f"--job-name={self.name}", f"--array=1-{self.args.tasks}", "--requeue",
                "--ntasks=1", "--cpus-per-task=1", "--partition=" + ",".join(partitions), *self.args.sbatch,
                stdin=WRAPPER.format(results=results, script=script),
            ).strip().split(";")[0]
        new = path.with_suffix(".new")
        new.write_text(self.job_id + "\n")
        new.rename(path)
        return {"version": 1}

    def workers(self, question):
        """Opens the partitions of the hosts named and closes the others; what runs there goes on."""
        self.wanted, self.applied = question, time.monotonic()
        missing = {self.args.prefix + host: slots for host, slots in question.items()}
        for name, (up, cpus) in self.partitions().items():
            slots = missing.pop(name, 0)
            if slots and (not up or cpus != str(slots)):
                self.run("scontrol", "update", f"PartitionName={name}", "State=UP", f"MaxCPUsPerNode={slots}")
            elif up and not slots:
                self.run("scontrol", "update", f"PartitionName={name}", "State=DOWN")
        if missing:
            raise RuntimeError("Slurm has no partition " + ", ".join(missing))
        return {}

    def read_results(self):
        """Reads the results that are new."""
        for path in pathlib.Path(self.name + ".results").glob("*"):
            if path.name.isdigit() and int(path.name) not in self.results:
                code, nanoseconds, partition, restarts = path.read_text().split()
                self.results[int(path.name)] = int(code), int(nanoseconds) / 1e9, partition, int(restarts)

    def progress(self, _question):
        """Says how far the job is, and runs tasks again that were killed without Slurm knowing why."""
        if self.wanted is not None and time.monotonic() - self.applied > AGAIN_S:
            self.workers(self.wanted)
        queue = [task for task in self.queue() if task[0] == self.job_id]
        self.read_results()  # after the queue: a task leaves it when its result is there
        good = [result for result in self.results.values() if result[0] == 0]
        seconds = [result[1] for result in good]
        total, mean = self.args.tasks, statistics.fmean(seconds) if good else None
        retried = sum(result[3] for result in self.results.values())
        hosts = collections.defaultdict(lambda: {"tasks_running": 0, "done": 0})
        for _, _, partition, _ in good:
            hosts[partition.removeprefix(self.args.prefix)]["done"] += 1 / total
        part, killed, left = 0, [], 0
        for _, state, task, restarts, start, partition in queue:
            unfinished = not (task.isdigit() and int(task) in self.results)
            retried += int(restarts) * unfinished
            left += state != "F"
            if state == "F" and unfinished and int(restarts) < TRIES:
                killed.append(f"{self.job_id}_{task}")
            elif state not in ("F", "PD"):  # also one that is completing: it still needs its host's slurmd
                hosts[partition.removeprefix(self.args.prefix)]["tasks_running"] += 1
                if mean and unfinished and state == "R":
                    part += min(0.95, max(0, time.time() - int(start)) / mean)
        if killed:
            print("run again, as they left no result:", *killed, file=sys.stderr)
            self.run("scontrol", "requeue", ",".join(killed))
        self.fraction = max(self.fraction, min(1, (len(self.results) + part) / total))
        answer = {"fraction_done": self.fraction, "tasks_total": total, "tasks_done": len(good),
                  "tasks_failed": len(self.results) - len(good), "tasks_retried": retried, "workers": hosts}
        if mean:
            answer.update(mean_task_s=mean, task_deviation_s=statistics.pstdev(seconds))
        self.empty_since = None if left or killed else self.empty_since or time.monotonic()
        if len(self.results) >= total:
            answer["ended"] = "completed"
        elif self.empty_since and time.monotonic() - self.empty_since > LOST_S:
            lost = total - len(self.results)
            answer["tasks_failed"] += lost
            answer["ended"] = {"failed": f"{lost} of {total} tasks ended in Slurm without a result"}
        if "ended" in answer:
            self.workers({})
        return answer

    def cancel(self, _question):
        self.run("scancel", "--quiet", self.job_id)
        self.workers({})
        return {}

    def answer(self, line):
        """Answers one line; whatever goes wrong is the answer."""
        self.deadline = time.monotonic() + ANSWER_S
        try:
            ((kind, question),) = json.loads(line).items()
            if kind not in ("hello", "workers", "progress", "cancel"):
                raise RuntimeError(f"unknown question `{kind}`")
            if kind != "hello" and self.job_id is None:
                raise RuntimeError("no job yet: `hello` comes first")
            return {kind: getattr(self, kind)(question)}
        except Exception as error:  # go on: Slurm may be back at the next question
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return {"error": str(error)}


def main():
    parser = argparse.ArgumentParser(description="Drives a Slurm job array for Gleaner.")
    parser.add_argument("--script", required=True, help="program of a task; $SLURM_ARRAY_TASK_ID tells which, from 1")
    parser.add_argument("--tasks", required=True, type=int, metavar="N")
    parser.add_argument("--prefix", default="gleaner-", help="partition of a host: this and its name")
    parser.add_argument("sbatch", nargs="*", help="more arguments for sbatch, after `--`")
    args = parser.parse_args()
    if args.tasks < 1:
        parser.error("--tasks must be 1 or more")
    if not os.path.isfile(args.script) or not os.access(args.script, os.X_OK):
        parser.error(f"--script {args.script}: no executable file")
    os.environ["SLURM_TIME_FORMAT"] = "%s"  # start times as seconds since 1970
    engine = Engine(args)
    for line in sys.stdin:
        print(json.dumps(engine.answer(line)), flush=True)


if __name__ == "__main__":
    main()
