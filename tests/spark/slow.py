"""What the jobs beside it share: settings of a small cluster, and work that takes CPU time."""
import hashlib

from pyspark import SparkConf, SparkContext

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.port.maxRetries": "0",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.heartbeatInterval": "2s",
    "spark.decommission.enabled": "true",
    # By default an executor that is let go looks for what it has yet to hand over every 30 s only.
    "spark.storage.decommission.replicationReattemptInterval": "1s",
    # By default an executor that is gone is asked for its output three times more, every 5 s.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
    # By default a question to one that went just then is waited for two minutes.
    "spark.shuffle.io.connectionTimeout": "10s",
    "spark.rpc.askTimeout": "20s",
    "spark.locality.wait": "0s",
}


def context(master, ui_port, name, hand_over):
    conf = SparkConf().setMaster(master).setAppName(name).setAll(SETTINGS.items()).set("spark.ui.port", ui_port)
    for setting in ("enabled", "shuffleBlocks.enabled", "rddBlocks.enabled"):
        conf.set("spark.storage.decommission." + setting, str(hand_over).lower())
    made = SparkContext(conf=conf, pyFiles=[__file__])
    made.setLogLevel("WARN")
    return made


def hashed(word, rounds):
    digest = word.encode()
    for _ in range(rounds):
        digest = hashlib.sha256(digest).digest()
    return digest
