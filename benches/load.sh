#!/usr/bin/env bash
# How many agents at 1 Hz one core holds, with TLS and on disk: the aggregator on one CPU, the generator (aggregator/examples/load.rs)
# on another. Usage: load.sh [HOSTS... (250 500 1000 2000)]; SECONDS_EACH (30) and WORKLOADS (10 per host) by the environment.
# Needs two CPUs and a release build: cargo build --release && cargo build --release -p gleaner-aggregator --example load
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${CARGO_TARGET_DIR:-target}/release
seconds=${SECONDS_EACH:-30} workloads=${WORKLOADS:-10}
numbers=("$@"); [ $# -gt 0 ] || numbers=(250 500 1000 2000)
ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -Hn)"
work=$(mktemp -d) && trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
echo "machine: $(nproc) CPUs, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), Linux $(uname -r); $workloads workloads per host"
"$bin/gleaner" pki init "$work" >/dev/null
cpu_ns() { cat /proc/"$1"/task/*/schedstat | awk '{n += $1} END {printf "%.0f\n", n}'; }
rss() { awk '/^VmRSS/ {print $2}' "/proc/$1/status"; }
for hosts in "${numbers[@]}"; do
    port=$((20000 + RANDOM % 20000))
    rm -rf "$work/state"
    cat >"$work/aggregator.toml" <<TOML
listen = "127.0.0.1:$port"
socket = "$work/a.sock"
state_dir = "$work/state"
local_host = "load-0"
[tls]
ca = "$work/ca.crt"
certificate = "$work/aggregator.crt"
key = "$work/aggregator.key"
TOML
    taskset -c 1 "$bin/gleaner-aggregator" --config "$work/aggregator.toml" 2>"$work/aggregator.log" &
    aggregator=$!
    until [ -S "$work/a.sock" ]; do sleep 0.1; done
    sleep 1
    before_kib=$(rss $aggregator)
    taskset -c 0 "$bin/examples/load" "127.0.0.1:$port" "$work/a.sock" "$work" "$hosts" "$workloads" "$seconds" >"$work/load.out" &
    load=$!
    until grep -q "all there" "$work/load.out" 2>/dev/null || ! kill -0 $load 2>/dev/null; do sleep 0.1; done
    sleep 2
    from=$(cpu_ns $aggregator) from_load=$(cpu_ns $load) at=$(date +%s%N)
    sleep $((seconds - 4))
    to=$(cpu_ns $aggregator) to_load=$(cpu_ns $load) then=$(date +%s%N)
    after_kib=$(rss $aggregator)
    wait $load || true
    awk -v h="$hosts" -v a=$((to - from)) -v l=$((to_load - from_load)) -v t=$((then - at)) -v b="$before_kib" -v r="$after_kib" 'BEGIN {
        printf "%d hosts: aggregator %.0f %% of its core (%.0f us of CPU a report), %.0f MiB resident, %.1f KiB per agent; generator %.0f %% of its core\n",
            h, 100 * a / t, a / 1e3 / (h * t / 1e9), r / 1024, (r - b) / h, 100 * l / t}'
    tail -1 "$work/load.out" | sed 's/^/    /'
    kill $aggregator; wait $aggregator 2>/dev/null || true
done
