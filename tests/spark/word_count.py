#!/usr/bin/env python3
"""Counts words on a Spark standalone cluster, slowly, and sorts them: word_count.py MASTER UI_PORT TEXT_DIR TASKS ROUNDS RESULT.

Every line's words are hashed ROUNDS times, so that tasks take a while. RESULT receives [[word, count]] as JSON, the
most frequent first.
"""
import hashlib
import json
import os
import sys

from pyspark import SparkConf, SparkContext

master, ui_port, text_dir, tasks, rounds, result = sys.argv[1:]
rounds = int(rounds)
settings = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.ui.port": ui_port,
    "spark.port.maxRetries": "0",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.heartbeatInterval": "2s",
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
    "spark.storage.decommission.rddBlocks.enabled": "true",
    # By default an executor that is let go looks for what it has yet to hand over every 30 s only.
    "spark.storage.decommission.replicationReattemptInterval": "1s",
    "spark.locality.wait": "0s",
}


def words(line):
    found = line.split()
    for word in found:
        digest = word.encode()
        for _ in range(rounds):
            digest = hashlib.sha256(digest).digest()
    return found


conf = SparkConf().setMaster(master).setAppName("word-count").setAll(settings.items())
context = SparkContext(conf=conf)
context.setLogLevel("WARN")
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
