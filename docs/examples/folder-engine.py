#!/usr/bin/env python3
"""A batch system in a folder, and its engine for `exec` (docs/writing-engines.md): folder-engine.py FOLDER

FOLDER/tasks/ holds shell scripts, one per task; all workers (folder-worker.sh) share FOLDER. A worker takes a task by
renaming it into running/HOST/ and ends it by renaming it into done/HOST/; a rename happens or does not, so no task counts
twice. A worker takes tasks only while there is a file open/HOST, which is how this engine adds and drains it.
"""
import json
import pathlib
import statistics
import sys
import time

LOST_S = 60  # a worker touches what it runs every second; what is older than this was lost with its host


def names(folder):
    """The files of a folder; none if it is not there (yet)."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


class Engine:
    def __init__(self, folder):
        self.folder = folder

    def hello(self, question):
        """Begins the job, or finds it again after a restart: everything there is to know is in the folder."""
        for name in ("tasks", "running", "done", "seconds", "open"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        return {"version": 1}

    def workers(self, question):
        """From now on these hosts with so many slots; the others get no new task, and what runs there ends."""
        for host in names(self.folder / "open"):
            if host not in question:
                (self.folder / "open" / host).unlink()
        for host, slots in question.items():
            (self.folder / "open" / host).write_text(f"{slots}\n")
        return {}

    def progress(self, question):
        """Counts files. First what is done: a task that moves on meanwhile is then counted late, never twice."""
        done = {host: names(self.folder / "done" / host) for host in names(self.folder / "done")}
        running = {host: names(self.folder / "running" / host) for host in names(self.folder / "running")}
        for host, tasks in running.items():
            for task in tasks:
                self.take_back_if_lost(self.folder / "running" / host / task)
        waiting = names(self.folder / "tasks")
        tasks_done, tasks_running = (sum(map(len, by_host.values())) for by_host in (done, running))
        total = max(1, tasks_done + tasks_running + len(waiting))
        seconds = [float(path.read_text()) for path in (self.folder / "seconds").iterdir() if path.suffix != ".new"]
        answer = {
            "fraction_done": tasks_done / total,
            "tasks_total": total,
            "tasks_done": tasks_done,
            "workers": {
                host: {"tasks_running": len(running.get(host, [])), "done": len(done.get(host, [])) / total}
                for host in done.keys() | running.keys()
            },
        }
        if seconds:
            answer.update(mean_task_s=statistics.fmean(seconds), task_deviation_s=statistics.pstdev(seconds))
        if not waiting and not tasks_running:
            answer["ended"] = "completed"
        return answer

    def take_back_if_lost(self, task):
        try:
            if time.time() - task.stat().st_mtime > LOST_S:
                task.rename(self.folder / "tasks" / task.name)
        except FileNotFoundError:
            pass  # it has ended meanwhile

    def cancel(self, question):
        """The job is over: no worker takes a task any more."""
        return self.workers({})


def main():
    engine = Engine(pathlib.Path(sys.argv[1]))
    for line in sys.stdin:
        ((verb, question),) = json.loads(line).items()
        try:
            answer = {verb: getattr(engine, verb)(question)}
        except OSError as error:
            answer = {"error": str(error)}  # asked again in a second, and given up after sixty
        print(json.dumps(answer), flush=True)


main()
