#!/bin/sh
# A Spark standalone worker as volunteer of an interactive host. Its agent starts this as `volunteer.command`:
#
#   [volunteer]
#   user = "gleaner-volunteer"
#   command = ["/usr/bin/env", "SPARK_HOME=/opt/spark", "SPARK_MASTER=spark://10.0.0.1:7077", "SPARK_WORKER_HOST=10.0.0.7",
#              "/usr/local/lib/gleaner/spark-worker.sh"]
#
# SPARK_HOME         where Spark is installed
# SPARK_MASTER       what the master is called: spark://HOST:PORT
# SPARK_WORKER_HOST  this host's name or address; Gleaner lets the worker go by it, so no two workers share one
# SPARK_MEMORY       memory for executors (2g)
# SPARK_DIR          folder for shuffle data and logs (/var/tmp/gleaner-spark)
# GLEANER_SLOTS      cores to offer; the agent says how many
set -eu
: "${SPARK_HOME:?}" "${SPARK_MASTER:?}" "${SPARK_WORKER_HOST:?}"
dir=${SPARK_DIR:-/var/tmp/gleaner-spark}
mkdir -p "$dir/local" "$dir/work"
export SPARK_HOME SPARK_LOCAL_IP="$SPARK_WORKER_HOST" SPARK_LOCAL_DIRS="$dir/local" SPARK_WORKER_DIR="$dir/work"
export SPARK_NO_DAEMONIZE=1 SPARK_DAEMON_MEMORY="${SPARK_DAEMON_MEMORY:-192m}" SPARK_DAEMON_JAVA_OPTS=-XX:+UseSerialGC
# Without the first, executors do not hand over what they have; what ended applications leave behind goes by itself.
export SPARK_WORKER_OPTS="-Dspark.decommission.enabled=true -Dspark.worker.cleanup.enabled=true ${SPARK_WORKER_OPTS:-}"
exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker --host "$SPARK_WORKER_HOST" --port 0 \
    --webui-port 0 --cores "${GLEANER_SLOTS:-1}" --memory "${SPARK_MEMORY:-2g}" "$SPARK_MASTER"
