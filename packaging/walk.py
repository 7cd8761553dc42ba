#!/usr/bin/env python3
"""Does what the guide says, on two machines: walk.py controller=SOCKET h1=SOCKET (test-walk.sh starts both).

Commands and files are those of the documents, word for word. A comment before a block says what to do with it:
    <!-- walk -->                      run each line on the machine whose prompt it begins with
    <!-- walk: MACHINE:FILE ... -->    put the block into the file: a new file, or these keys of an existing TOML file
    <!-- walk: DOCUMENT -->            go through that document first
    <!-- walk: MACHINE after COMMAND -->  the same as the first, after this has happened there
What a person does beside that: answers apt with yes, waits until hosts are connected, pastes the token, and looks again until
the job is over. A command that fails ends the walk.
"""
import base64
import json
import re
import socket
import sys
import time

GUIDE = "docs/operators-guide.md"
WAIT_S = 120  # for hosts to connect; emulated machines are slow
JOB_S = 900  # for the job, whose own deadline is shorter


class Machine:
    """A root shell on one of the machines."""

    def __init__(self, name, path):
        self.name = name
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(600)
        line.connect(path)
        self.line = line.makefile("rwb")

    def begin(self):
        """Waits until it has booted."""
        while (said := self.line.readline().strip()) != b"ready":
            assert not said.startswith(b"EXIT"), f"{self.name} did not begin"
            print(f"{self.name}: {said.decode(errors='replace')}", flush=True)

    def run(self, command):
        """The output and the exit code of a command."""
        self.line.write(base64.b64encode(command.encode()) + b"\n")
        self.line.flush()
        *said, code = self.line.readline().split()
        return base64.b64decode(b"".join(said)).decode(errors="replace"), int(code)

    def put(self, file, text):
        """Puts a block into a file."""
        old, code = self.run(f"cat {file}")
        if code == 0:
            text = with_keys(old, text)
        written, code = self.run(f"base64 -d >{file} <<'END'\n{base64.b64encode(text.encode()).decode()}\nEND")
        assert code == 0, written


def with_keys(old, block):
    """A TOML file with the keys of a block, each in the place of the commented or former line in its section."""
    lines, section = old.splitlines(), ""
    for line in filter(str.strip, block.splitlines()):
        if line.startswith("["):
            section = line
            if section not in lines:
                lines += ["", section]
            continue
        key = line.split("=")[0].strip()
        start = lines.index(section) if section else -1
        ends = (place for place in range(start + 1, len(lines)) if lines[place].startswith("["))
        end = next(ends, len(lines))
        own = [place for place in range(start + 1, end) if re.match(rf"#?{key} *=", lines[place])]
        lines[own[0] if own else start + 1 : own[0] + 1 if own else start + 1] = [line]
    return "\n".join(lines) + "\n"


def blocks(document):
    """Each mark of a document, with the block below it, not indented; "" where none is there."""
    lines = open(document, encoding="utf-8").read().splitlines()
    for place, line in enumerate(lines):
        mark = re.fullmatch(r"\s*<!-- walk(?:: (.*))? -->", line)
        if not mark:
            continue
        block = []
        for below in lines[place + 2 :]:
            if below and not below.startswith("    "):
                break
            block.append(below[4:])
        yield mark[1] or "", "\n".join(block).rstrip() + "\n"


class Fault(Exception):
    """What makes everything after it pointless."""


class Walk:
    def __init__(self, machines):
        self.machines = machines
        self.token = None
        self.submitted = False
        self.over = False
        self.said_at = 0
        self.faults = []

    def document(self, document):
        for mark, block in blocks(document):
            if mark.endswith(".md"):
                self.document(mark)
            elif mark and " after " not in mark:
                for target in mark.split():
                    name, file = target.split(":", 1)
                    print(f"\n{name}: {file}\n{block}", end="", flush=True)
                    self.machines[name].put(file, block)
            else:
                if mark:
                    self.command(*mark.split(" after "))
                for line in filter(None, block.splitlines()):
                    self.command(*re.fullmatch(r"([a-z0-9]+)# +(.*)", line).groups())

    def command(self, name, command):
        machine, run = self.machines[name], command
        if "join -" in command:
            run = f"printf '%s\\n' '{self.token}' | {command}"
        if command.startswith("gleaner top"):
            run = "timeout 5 script -qc 'gleaner top' /dev/null >/dev/null 2>&1; [ $? = 124 ]"
        if re.match("gleaner (hosts|guests|advise|job submit)", command):
            self.until("the hosts are connected", self.connected)
        if "job list" in command and not self.job_is_over():
            self.until("the job has a size", lambda: self.phase() != "profiling")
        if self.submitted and re.search("stop (gleaner-aggregator|folder-worker)", command):
            self.until("the job is over", self.job_is_over, JOB_S)
        print(f"\n{name}# {command}", flush=True)
        said, code = machine.run(run)
        print(said, end="", flush=True)
        if code != 0:
            raise Fault(f"{name}# {command}: exit code {code}")
        self.submitted |= "job submit" in command
        if "host invite" in command:
            self.token = max(said.split(), key=len)

    def until(self, what, condition, seconds=WAIT_S):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise Fault(f"{what}: not in {seconds} s")
            time.sleep(2)
            if self.submitted and time.monotonic() > self.said_at + 30:
                self.said_at = time.monotonic()
                print(self.machines["controller"].run("gleaner job list; gleaner explain folder | tail -n 8; gleaner hosts")[0], flush=True)

    def asked(self, question):
        said, code = self.machines["controller"].run(question + " 2>/dev/null")
        return json.loads(said) if code == 0 else None

    def connected(self):
        hosts = self.asked("gleaner hosts --json") or []
        return len(hosts) == 2 and all(host["connected"] and host["report"] for host in hosts)

    def job(self):
        return self.asked("gleaner job show folder --json") or {}

    def phase(self):
        return self.job().get("status", {}).get("phase")

    def job_is_over(self):
        self.over = self.over or self.phase() in ("completed", "failed", "cancelled")
        return self.over

    def check(self):
        """What the reader was promised."""
        self.until("the job is over", self.job_is_over, JOB_S)
        print(f"\n{self.machines['controller'].run('gleaner job show folder; gleaner explain folder')[0]}")
        status = self.job().get("status", {})
        done, _ = self.machines["controller"].run("ls /srv/folder/done/h1 | wc -l")
        every, _ = self.machines["controller"].run("ls /srv/folder/done/* | grep -c '^1'")
        print(f"tasks done: {int(every)}, of them on h1: {int(done)}; harvested: {status.get('harvested_core_s')} core seconds")
        guests = {guest["guest"] for guest in self.asked("gleaner guests h1 --json") or []}
        harm = [host["report"]["harm"]["foreground"] for host in self.asked("gleaner hosts --json --filter host=h1") or []]
        print(f"guests of h1: {sorted(guests)}; harm: {harm}")
        promises = {
            "the guest of h1 has its name": "vm-7" in guests,
            "the service of h1 has its name": any("postgresql@15-main" in guest for guest in guests),
            "the job is complete": status.get("phase") == "completed",
            "each of the 60 tasks was done once": int(every) == 60,
            "some of them on h1": int(done) > 0,
            "CPU of h1 was harvested": (status.get("harvested_core_s") or 0) > 0,
        }
        self.faults += [f"not so: {promise}" for promise, kept in promises.items() if not kept]
        for machine in self.machines.values():
            said, _ = machine.run("journalctl --no-pager -o cat -u gleaner-agent -u gleaner-aggregator | grep -E ' (WARN|ERROR) '")
            # The guide itself stops the aggregator.
            lines = [line for line in said.splitlines() if "no connection to the aggregator" not in line]
            self.faults += [f"{machine.name} has logged: {line}" for line in lines]


def main():
    machines = dict(argument.split("=", 1) for argument in sys.argv[1:])
    walk = Walk({name: Machine(name, path) for name, path in machines.items()})
    for machine in walk.machines.values():
        machine.begin()
    try:
        walk.document(GUIDE)
        walk.check()
    except Fault as fault:
        walk.faults.append(str(fault))
    print("\n".join(walk.faults) + f"\n{len(walk.faults)} faults")
    sys.exit(bool(walk.faults))


main()
