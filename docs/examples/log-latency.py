#!/usr/bin/env python3
"""A source of response times for `exec` (docs/writing-sources.md): the mean of the last seconds of a log.

Each line of the log is the time of a request's end and how long it took, both in seconds: `1790000000.123 0.045`.
"""
import argparse
import os
import sys
import time

MOST_BYTES = 4 << 20  # of the log's end: some 100,000 requests


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--window", type=float, default=30, help="seconds (30)")
    parser.add_argument("log")
    args = parser.parse_args()
    now = time.time()
    with open(args.log, "rb") as log:
        status = os.fstat(log.fileno())
        # An idle service and a log that is not written any more look alike; this long a silence is the latter.
        if now - status.st_mtime > 10 * args.window:
            sys.exit(f"{args.log} was last written {now - status.st_mtime:.0f} s ago")
        log.seek(max(0, status.st_size - MOST_BYTES))
        lines = log.read().splitlines()
    seconds = []
    for line in reversed(lines):
        fields = line.split()
        try:
            at, took = float(fields[0]), float(fields[1])
        except (IndexError, ValueError):
            continue  # the first line may be cut, the last not yet whole
        if at < now - args.window:
            break
        seconds.append(took)
    print(1000 * sum(seconds) / len(seconds) if seconds else "idle")


main()
