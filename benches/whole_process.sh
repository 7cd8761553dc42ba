#!/usr/bin/env bash
# Whole-process figures: what the agent costs at 1 Hz and beside an active volunteer, and how fast the guard and the loop are,
# on this machine.
#   whole_process.sh            all of it, about six minutes on an idle machine
#   whole_process.sh active     only what the agent costs beside an active volunteer, two minutes
# Needs a release build (`cargo build --release`; or BIN, a folder with the three programs) and root.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-all} in all | active) only=${1:-all} ;; *) echo "whole_process.sh: \`$1\` is no part of it; there is \`active\`" >&2; exit 64 ;; esac
bin=${BIN:-${CARGO_TARGET_DIR:-target}/release}
work=$(mktemp -d) && trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
echo "machine: $(nproc) CPUs, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), Linux $(uname -r)"

port=$((20000 + RANDOM % 20000))
"$bin/gleaner" pki init "$work" >/dev/null
"$bin/gleaner" pki issue-agent bench --authority "$work" >/dev/null
cat >"$work/aggregator.toml" <<TOML
listen = "127.0.0.1:$port"
socket = "$work/a.sock"
state_dir = "$work/state"
local_host = "bench"
[tls]
ca = "$work/ca.crt"
certificate = "$work/aggregator.crt"
key = "$work/aggregator.key"
TOML
cat >"$work/agent.toml" <<TOML
state_dir = "$work/agent"
[host]
name = "bench"
[aggregator]
address = "127.0.0.1:$port"
ca = "$work/ca.crt"
certificate = "$work/bench.crt"
key = "$work/bench.key"
[tasks]
enabled = true
root = true
[volunteer]
cgroup = "gleaner-bench-$$/volunteer"
TOML
"$bin/gleaner-aggregator" --config "$work/aggregator.toml" 2>"$work/aggregator.log" &
sleep 1
"$bin/gleaner-agent" --config "$work/agent.toml" --act 2>"$work/agent.log" &
agent=$!
sleep 5

# CPU of all threads in ns, as the scheduler counts it; the clock ticks of /proc/PID/stat are too coarse for this.
cpu_ns() { cat /proc/"$1"/task/*/schedstat | awk '{n += $1} END {print n}'; }
# The same by the threads' names, each line a name, a tab and ns.
threads_ns() {
    local task
    for task in /proc/"$1"/task/*; do
        printf '%s\t%s\n' "$(<"$task/comm")" "$(cut -d' ' -f1 "$task/schedstat")"
    done 2>/dev/null
}
ask() { "$bin/gleaner" --socket "$work/a.sock" "$@"; }

# The harm of the volunteer is measured meanwhile, as by default.
active() {
    local seconds=60 cpus deadline
    cpus=$(nproc)
    echo "agent beside an active volunteer of $cpus endless loops, the harm meter on, $seconds s:"
    for _ in $(seq "$cpus"); do echo 'timeout 90 sh -c "while :; do :; done"'; done >"$work/loops"
    ask job submit "$work/loops" --name active --dedicated-slots "$cpus" >/dev/null
    deadline=$((SECONDS + 30))
    until pgrep -f 'timeout 90 sh -c while' >/dev/null; do
        [ $SECONDS -lt $deadline ] || { echo "  no task in 30 s"; return; }
        sleep 0.1
    done
    # Its allowance grows by a tenth of the host a second.
    sleep 10
    threads_ns $agent >"$work/before"
    sleep $seconds
    threads_ns $agent >"$work/after"
    awk -F'\t' -v s=$seconds 'NR == FNR {ns[$1] -= $2; next} {ns[$1] += $2}
        END {for (name in ns) {all += ns[name]; printf "  %.3f %% of a core  %s\n", ns[name] / s / 1e7, name}
            printf "  %.3f %% of a core  all threads\n", all / s / 1e7}' "$work/before" "$work/after" | sort -rn
    echo "  the volunteer was held still to measure harm for $(ask hosts --json | grep -o '"paused_s": *[0-9.]*' | head -n 1 | grep -o '[0-9.]*$') s so far; load $(cut -d' ' -f1-2 /proc/loadavg)"
    ask job cancel active >/dev/null
}
rss() { awk '/^VmRSS/ {print $2}' "/proc/$1/status"; }
if [ "$only" = active ]; then active; exit 0; fi
echo "agent at 1 Hz, connected, volunteer latent (seconds: CPU, resident KiB):"
first=$(cpu_ns $agent)
for minute in 1 2; do
    sleep 60
    now=$(cpu_ns $agent)
    echo "  after $((minute * 60)): $(awk -v t=$((now - first)) 'BEGIN {printf "%.3f s", t / 1e9}'), $(rss $agent) KiB"
done
awk -v t=$(($(cpu_ns $agent) - first)) 'BEGIN {printf "  %.3f %% of a core\n", t / 120 / 1e7}'

echo "sense → decide → act, from a job's submission to its first task's start:"
seq 20 | sed 's/.*/sleep 0.1/' >"$work/tasks"
submitted=$(date +%s%N)
ask job submit "$work/tasks" --name latency >/dev/null
until ls "$work"/agent/tasks/*.run >/dev/null 2>&1 || [ -s "$work/state/jobs/latency/results.log" ]; do
    [ $((($(date +%s%N) - submitted) / 1000000)) -gt 10000 ] && { echo "  no task in 10 s"; break; }
    sleep 0.002
done
echo "  $((($(date +%s%N) - submitted) / 1000000)) ms"
until ask job list | grep -q completed; do sleep 0.2; done

active

group=gleaner-bench-$$/volunteer
# What the volunteer may use, in percent of a core; 0 when it is frozen.
if [ -e "/sys/fs/cgroup/cpu/$group/cpu.cfs_quota_us" ]; then
    allowed() {
        [ "$(<"/sys/fs/cgroup/freezer/$group/freezer.state")" = THAWED ] || { echo 0; return; }
        local quota; quota=$(<"/sys/fs/cgroup/cpu/$group/cpu.cfs_quota_us")
        [ "$quota" -ge 0 ] || { echo $((100 * $(nproc))); return; }
        echo $((100 * quota / $(<"/sys/fs/cgroup/cpu/$group/cpu.cfs_period_us")))
    }
elif [ -e "/sys/fs/cgroup/$group/cpu.max" ]; then
    allowed() {
        [ "$(<"/sys/fs/cgroup/$group/cgroup.freeze")" = 0 ] || { echo 0; return; }
        local max period; read -r max period <"/sys/fs/cgroup/$group/cpu.max"
        [ "$max" != max ] || max=$((period * $(nproc)))
        echo $((100 * max / period))
    }
else
    echo "guard: the volunteer has no cgroup here, so its limit cannot be watched"; exit 0
fi
cpus=$(nproc)
echo "guard, from the start of a foreground that wants every CPU to a volunteer at a tenth of the host or less:"
seq $((cpus * 400)) | sed 's/.*/n=0; while [ $n -lt 400000 ]; do n=$((n+1)); done/' >"$work/tasks"
ask job submit "$work/tasks" --name burn --dedicated-slots "$cpus" >/dev/null
for round in $(seq 20); do
    until [ "$(allowed)" -gt $((50 * cpus)) ]; do sleep 0.1; done
    burners=()
    start=$(date +%s%N)
    for _ in $(seq "$cpus"); do sh -c 'while :; do :; done' & burners+=($!); done
    while [ "$(allowed)" -gt $((10 * cpus)) ]; do :; done
    echo $((($(date +%s%N) - start) / 1000000)) >>"$work/reactions"
    kill "${burners[@]}"; wait "${burners[@]}" 2>/dev/null || true
done
sort -n "$work/reactions" | awk '{v[NR] = $1} END {printf "  %d rounds: min %d, median %d, p90 %d, max %d ms\n", NR, v[1], v[int(NR / 2)], v[int(NR * 0.9)], v[NR]}'
ask job cancel burn >/dev/null
