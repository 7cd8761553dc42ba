#!/usr/bin/env python3
"""Sorts words by digests on a Spark standalone cluster, slowly, before the shuffle and after it:
sort.py MASTER UI_PORT TEXT_DIR MAPS ROUNDS REDUCES ROUNDS RESULT.

A word is hashed with its line and its place there, so that words that are frequent make no part larger than others. It is hashed
ROUNDS times on either side, so that tasks take a while. RESULT receives [[rows, first, last]] as JSON, one of each part, in
order. What an executor has is not handed over when it goes.
"""
import json
import os
import sys

import slow

master, ui_port, text_dir, maps, before, reduces, after, result = sys.argv[1:]
before, reduces, after = int(before), int(reduces), int(after)


def keyed(line):
    words = enumerate(line.split())
    return [(slow.hashed(f"{place} {word} {line}", before).hex(), word) for place, word in words]


def part_of(key):
    return int(key[:8], 16) * reduces >> 32


def checked(rows):
    keys = []
    for key, word in rows:
        slow.hashed(word, after)
        keys.append(key)
    if keys != sorted(keys):
        raise ValueError("a part is not in order")
    return [(len(keys), keys[0], keys[-1])] if keys else []


context = slow.context(master, ui_port, "sorted", hand_over=False)
parts = (
    context.textFile(text_dir, int(maps))
    .flatMap(keyed)
    .repartitionAndSortWithinPartitions(reduces, part_of)
    .mapPartitions(checked)
    .collect()
)
with open(result + ".new", "w") as file:
    json.dump(parts, file)
os.rename(result + ".new", result)
context.stop()
