#!/usr/bin/env bash
# The agent beside two known monitoring agents, collectd and netdata, each at 1 Hz on the same real guests: CPU seconds of all
# their processes and resident memory, over a minute each, one after the other.
# Needs root, a release build (`cargo build --release`), and on Debian: collectd-core netdata-core and what
# tests/lab/README.md lists. Usage: compare_agents.sh [GUESTS, 8 by default] [SECONDS, 60]
set -euo pipefail
cd "$(dirname "$0")/.."
guests=${1:-8} seconds=${2:-60}
bin=${CARGO_TARGET_DIR:-target}/release
work=$(mktemp -d) group=gleaner-compare-$$
hierarchies() { # where a group counts CPU and where it lies
    if [ -d /sys/fs/cgroup/cpuacct ]; then echo /sys/fs/cgroup/cpuacct; else echo /sys/fs/cgroup; fi
}
cpu_ns() { # of everything that ever ran in a group
    local dir; dir=$(hierarchies)/$group-$1
    if [ -e "$dir/cpuacct.usage" ]; then cat "$dir/cpuacct.usage"; else awk '/^usage_usec/ {print $2 * 1000}' "$dir/cpu.stat"; fi
}
members() { cat "$(hierarchies)/$group-$1/cgroup.procs"; }
end_group() {
    local pids; pids=$(members "$1" 2>/dev/null) || return 0
    # shellcheck disable=SC2086
    [ -z "$pids" ] || kill $pids 2>/dev/null || true
    for _ in $(seq 50); do [ -z "$(members "$1")" ] && break; sleep 0.1; done
    rmdir "$(hierarchies)/$group-$1" 2>/dev/null || true
}
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; for name in gleaner monitors collectd netdata; do end_group $name; done
      for n in $(seq "$guests"); do find /sys/fs/cgroup -depth -type d -path "*/$group-guest-$n*" -exec rmdir {} + 2>/dev/null || true; done; rm -rf "$work"' EXIT

echo "machine: $(nproc) CPUs, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), Linux $(uname -r); $guests guests"
tests/lab/kvm/images.sh "$work/images"
for n in $(seq "$guests"); do
    tests/lab/kvm/guest.sh "$work/images" "$work/guests" "guest-$n" -k boot -d 6 -g "$group-guest-$n" &
done
for n in $(seq "$guests"); do until grep -q LAB-READY "$work/guests/guest-$n/console" 2>/dev/null; do sleep 0.1; done; done

measure() { # NAME COMMAND...: runs it in a group of its own, lets it settle, counts
    local name=$1; shift
    mkdir -p "$(hierarchies)/$group-$name"
    (echo $BASHPID >"$(hierarchies)/$group-$name/cgroup.procs"; exec "$@" >"$work/$name.log" 2>&1) &
    sleep 15
    [ -n "$(members "$name")" ] || { echo "$name did not start:"; tail -5 "$work/$name.log"; return 0; }
    local before after rss
    before=$(cpu_ns "$name"); sleep "$seconds"; after=$(cpu_ns "$name")
    rss=$(for pid in $(members "$name"); do awk '/^VmRSS/ {print $2}' "/proc/$pid/status" 2>/dev/null; done | awk '{n += $1} END {print n / 1024}')
    awk -v name="$name" -v ns=$((after - before)) -v s="$seconds" -v rss="$rss" \
        'BEGIN {printf "%-10s %8.3f s of CPU in %d s (%.3f %% of a core), %7.1f MiB resident\n", name, ns / 1e9, s, ns / s / 1e7, rss}'
    end_group "$name"
}

cat >"$work/agent.toml" <<TOML
state_dir = "$work/state"
[sense]
monitors = false
TOML
measure gleaner "$bin/gleaner-agent" --config "$work/agent.toml" observe
# What the other two do not do: asking every guest's monitor each second.
sed -i 's/monitors = false/monitors = true/' "$work/agent.toml"
measure monitors "$bin/gleaner-agent" --config "$work/agent.toml" observe

if command -v collectd >/dev/null; then
    cat >"$work/collectd.conf" <<CONF
Interval 1
BaseDir "$work"
PIDFile "$work/collectd.pid"
LoadPlugin cpu
LoadPlugin load
LoadPlugin memory
LoadPlugin disk
LoadPlugin interface
LoadPlugin cgroups
LoadPlugin processes
LoadPlugin network
<Plugin processes>
$(for n in $(seq "$guests"); do echo "  ProcessMatch \"guest-$n\" \"guest=guest-$n,\""; done)
</Plugin>
<Plugin network>
  Server "127.0.0.1" "25826"
</Plugin>
CONF
    measure collectd collectd -f -C "$work/collectd.conf"
else echo "SKIPPED: collectd is not installed (collectd-core)"; fi

if command -v netdata >/dev/null; then
    mkdir -p "$work"/netdata/{cache,lib,log,run}
    cat >"$work/netdata.conf" <<CONF
[global]
    run as user = root
[db]
    mode = ram
    update every = 1
[directories]
    cache = $work/netdata/cache
    lib = $work/netdata/lib
    log = $work/netdata/log
[web]
    bind to = 127.0.0.1:19997
[ml]
    enabled = no
[plugins]
    python.d = no
    go.d = no
    node.d = no
    charts.d = no
    statsd = no
    timex = no
    tc = no
CONF
    measure netdata netdata -D -c "$work/netdata.conf" -P "$work/netdata.pid"
else echo "SKIPPED: netdata is not installed (netdata-core)"; fi
