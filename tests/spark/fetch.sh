#!/usr/bin/env bash
# Spark for tests: fetch.sh DIR makes a Python environment in DIR with pyspark from PyPI, which carries Spark
# standalone (370 MB on disk, half a minute). Done already: nothing happens. Prints the folder that is SPARK_HOME.
# GLEANER_SPARK_VERSION chooses another version of Spark.
set -euo pipefail
version=${GLEANER_SPARK_VERSION:-3.5.7}
venv=$1/$version
if [ ! -e "$venv/complete" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv" >&2
    "$venv/bin/pip" install --quiet --no-input --retries 1 --timeout 60 "pyspark==$version" >&2
    touch "$venv/complete"
fi
"$venv/bin/python" -c 'import os, pyspark; print(os.path.dirname(os.path.abspath(pyspark.__file__)))'
