#!/usr/bin/env bash
# What disturbs a real service beside its shares: PostgreSQL with pgbench's transactions, alone and beside a second one that has a share of
# its own. The constants of `Disturbance::RECORDED` (simulator/src/service/disturbance.rs) are from it.
#   disturbance.sh [ALONE (190)] [ROUNDS (4)]     seconds alone, then rounds of 15 s each alone, beside one that uses CPU, beside one that writes
# Prints which intervals of 3 s are how much slower than the median of those around them, and when checkpoints ended; for each 15 s the CPU and
# the response of a transaction and what others used of the machine; last how soon the response follows the share. A checkpoint takes place
# each 30 s: time is scaled by ten against intervals of 30 s and PostgreSQL's five minutes. Series: used.log and own.log in RESULTS
# (target/disturbance). Seven minutes; needs root, PostgreSQL and Python.
set -euo pipefail
cd "$(dirname "$0")/.."
alone=${1:-190} rounds=${2:-4} steps=3 lab=$PWD/tests/lab/postgres/postgres.sh clients=24
results=${RESULTS:-${CARGO_TARGET_DIR:-target}/disturbance}; mkdir -p "$results"; : >"$results/used.log"
group=disturbance-$$ work=$(mktemp -d /var/tmp/disturbance.XXXXXX) port=$((20000 + RANDOM % 20000)); chmod 711 "$work"
loads=()
finish() {
  [ ${#loads[@]} = 0 ] || kill "${loads[@]}" 2>/dev/null || true
  for name in own other; do "$lab" -g "$group" down "$work" "$name" >/dev/null 2>&1 || true; done
  rm -rf "$work"
}
trap finish EXIT
# CPU of a group so far, in µs; the time in which the disk and the CPUs were busy, in ms; checkpoints so far.
used() {
  local folder=/sys/fs/cgroup
  if [ -e $folder/cpuacct/cgroup.procs ]; then awk '{printf "%.0f", $1 / 1000}' "$folder/cpuacct/$group/$1/cpuacct.usage"
  else awk '/^usage_usec/ {printf "%s", $2}' "$folder/$group/$1/cpu.stat"; fi
}
source=$(df --output=source "$work" | tail -n 1) disk=$(lsblk -ndo PKNAME "$source" 2>/dev/null || true)
[ -n "$disk" ] || disk=${source##*/}
disk_ms() { awk -v disk="$disk" '$3 == disk {print $13}' /proc/diskstats; }
machine_ms() { awk '/^cpu / {print ($2 + $3 + $4 + $7 + $8) * 10}' /proc/stat; }
checkpoints() {
  psql -X -q -A -t -h "$work/own" -p "$port" -U postgres -d postgres -c \
    "SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter" 2>/dev/null || echo 0 # until PostgreSQL 16
}

"$lab" -g "$group" -b 128 up "$work" own "$port" 20
"$lab" -g "$group" -b 128 up "$work" other $((port + 1)) 20
own() { exec "$lab" -g "$group" -t 100 load "$work" own "$port" $clients "$1" 0 tpcb; }
other() { exec "$lab" -g "$group" load "$work" other $((port + 1)) 4 "$1" 0 "$2"; }

# Its share: what it needs, and a half more. The neighbour has as much as leaves the clients a CPU.
before=$(used own); (own 12) >/dev/null; after=$(used own)
share=$(((after - before) * 100 * 3 / 2 / 12000000)); [ $share -ge 5 ] || share=5
neighbour=$(($(nproc) * 100 - share - 80)); [ $neighbour -le 80 ] || neighbour=80
"$lab" -g "$group" limit "$work" own $share
"$lab" -g "$group" limit "$work" other $neighbour
echo "machine: $(nproc) CPUs,$(sed -n 's/^model name.*://p' /proc/cpuinfo | head -n 1), Linux $(uname -r), $(psql --version)"
echo "$clients clients who think 100 ms, share $share % of a core; neighbour $neighbour %; a checkpoint each 30 s"

(own $((alone + rounds * 45 + steps * 16 + 6))) >"$results/own.log" & loads+=($!)
sleep 3
# One line a second: what is beside it, seconds since the epoch, CPU of both, the disk's and the machine's time, checkpoints.
watch() { # WHAT SECONDS
  local until=$((SECONDS + $2))
  while [ $SECONDS -lt $until ]; do
    echo "$1 $(date +%s.%N) $(used own) $(used other) $(disk_ms) $(machine_ms) $(checkpoints)" >>"$results/used.log"
    sleep 0.97
  done
}
watch alone "$alone"
for _ in $(seq "$rounds"); do
  watch alone 15
  for kind in select tpcb; do
    (other 15 $kind) >/dev/null & load=$!; loads+=($load)
    watch $kind 15
    wait $load || true
  done
done
for _ in $(seq "$steps"); do
  "$lab" -g "$group" limit "$work" own $((share * 5 / 9)); watch less 8
  "$lab" -g "$group" limit "$work" own $share; watch more 8
done
wait "${loads[0]}" || true

python3 - "$results" "$alone" "$(nproc)" <<'PY'
import re, statistics, sys

folder, alone, cpus = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
seconds = {}  # of the load: transactions, response in ms without thinking
for line in open(folder + "/own.log"):
    found = re.match(r"progress: ([\d.]+) s, ([\d.]+) tps, lat ([\d.]+)", line)
    if found:
        seconds[round(float(found[1]))] = (float(found[2]), float(found[3]) - 100)

def response(some):
    return sum(tps * ms for tps, ms in some) / sum(tps for tps, _ in some)

# The first seconds are of connections.
intervals = [[seconds[at + step] for step in range(3) if at + step in seconds] for at in range(4, alone + 1, 3)]
intervals = [response(some) for some in intervals if some]
print(f"intervals of 3 s above 1.5 times the median of the 13 around them, of {len(intervals)}:")
for at, ms in enumerate(intervals):
    ratio = ms / statistics.median(intervals[max(0, at - 6):at + 7])
    if ratio > 1.5:
        print(f"  from second {4 + 3 * at}: {ratio:.2f}")

read = [line.split() for line in open(folder + "/used.log")]
began = float(read[0][1]) - 3
ends = [round(float(new[1]) - began) for old, new in zip(read, read[1:]) if new[6] != old[6]]
print(f"checkpoints ended in the seconds {ends}")

# As parts of the machine: the neighbour, all but the database itself, the disk.
rows = []
for old, new in zip(read, read[1:]):
    passed, at = float(new[1]) - float(old[1]), round(float(new[1]) - began)
    if old[0] == new[0] and at in seconds and passed < 2:
        own_us, other_us, disk_ms, machine_ms = [(float(b) - float(a)) / passed for a, b in zip(old[2:6], new[2:6])]
        others = (machine_ms / 1e3 - own_us / 1e6) / cpus
        rows.append((old[0], at, *seconds[at], own_us, other_us / 1e6 / cpus, others, disk_ms / 1e3))
print("beside  from second  CPU us a transaction  response ms  used by the neighbour, by all others, of the disk's time")
while rows:
    some = [row for row in rows[:15] if row[0] == rows[0][0]]
    some = some[:next((at for at in range(1, len(some)) if some[at][1] - some[at - 1][1] > 4), len(some))]
    rows = rows[len(some):]
    done, means = sum(row[2] for row in some), [statistics.mean(row[index] for row in some) for index in (5, 6, 7)]
    cpu_us, ms = sum(row[4] for row in some) / done, response([row[2:4] for row in some])
    print(f"{some[0][0]:7} {some[0][1]:11} {cpu_us:21.0f} {ms:12.2f} {means[0]:8.2f} {means[1]:8.2f} {means[2]:8.2f}")
    if some[0][0] in ("less", "more"):
        print("        in each second, ms:", " ".join(f"{row[3]:.1f}" for row in some))
PY
