#!/usr/bin/env bash
# Spark for tests: fetch.sh DIR makes a Python environment in DIR/venv with pyspark from PyPI, which carries Spark
# standalone (370 MB on disk, half a minute). Done already: nothing happens. Prints the folder that is SPARK_HOME.
set -euo pipefail
dir=$1
version=3.5.7
python=$dir/venv/bin/python
if [ ! -e "$dir/complete-$version" ]; then
    rm -rf "$dir/venv"
    python3 -m venv "$dir/venv" >&2
    "$dir/venv/bin/pip" install --quiet --no-input "pyspark==$version" >&2
    touch "$dir/complete-$version"
fi
"$python" -c 'import os, pyspark; print(os.path.dirname(os.path.abspath(pyspark.__file__)))'
