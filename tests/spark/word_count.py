#!/usr/bin/env python3
"""Counts words on a Spark standalone cluster, slowly, and sorts them: word_count.py MASTER UI_PORT TEXT_DIR TASKS ROUNDS RESULT.

Every line's words are hashed ROUNDS times, so that tasks take a while. RESULT receives [[word, count]] as JSON, the
most frequent first.
"""
import json
import os
import sys

import slow

master, ui_port, text_dir, tasks, rounds, result = sys.argv[1:]
rounds = int(rounds)


def words(line):
    found = line.split()
    for word in found:
        slow.hashed(word, rounds)
    return found


context = slow.context(master, ui_port, "words", hand_over=True)
counts = (
    context.textFile(text_dir, int(tasks))
    .flatMap(words)
    .map(lambda word: (word, 1))
    .reduceByKey(lambda left, right: left + right, 4)
    .sortBy(lambda own: (-own[1], own[0]), numPartitions=4)
    .collect()
)
with open(result + ".new", "w") as file:
    json.dump(counts, file)
os.rename(result + ".new", result)
context.stop()
