#!/usr/bin/env bash
# check-units.sh: what can be said of the units, their drop-ins and the users without packages and without a running systemd:
# systemd finds no fault with them, the users are made as they should be, and the agent's sandbox leaves what it needs.
# Prints what it checked. Needs systemd's own programs; no root.
set -uo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C
for program in systemd-analyze systemd-sysusers; do
    command -v $program >/dev/null || { echo "SKIPPED: check-units.sh: there is no $program here"; exit 0; }
done
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
failures=0
check() { # WHAT COMMAND...: it must succeed
    local what=$1; shift
    if "$@" >"$work/said" 2>&1; then echo "  good    $what"; else
        echo "  FAILED  $what"; sed 's/^/          /' "$work/said"; failures=$((failures + 1)); fi
}

# A system with the units, and programs that only have the names.
root=$work/root units=$work/root/usr/lib/systemd/system
mkdir -p "$units/gleaner-agent.service.d" "$root"/{bin,etc,usr/bin,usr/sbin}
cp systemd/*.service docs/examples/*.service /usr/lib/systemd/system/*.target "$units/"
for program in bin/sh usr/bin/{gleaner-agent,gleaner-aggregator,systemd-tmpfiles,systemd-run} usr/sbin/slurmd; do
    printf '#!/bin/sh\n' >"$root/$program" && chmod 755 "$root/$program"
done
faultless() { # UNIT...: systemd says nothing of them
    systemd-analyze --root="$root" verify --man=no "$@" 2>&1 | grep -v 'couldn.t retrieve kernel system call list' | tee "$work/faults"
    [ ! -s "$work/faults" ]
}

# The values of a setting, of the agent's unit and the drop-in there is; an empty one forgets those before.
setting() { # KEY
    find "$units/gleaner-agent.service" "$units/gleaner-agent.service.d" -type f -exec cat {} + |
        awk -F= -v key="$1" '$1 == key { value = substr($0, length(key) + 2); if (value == "") { n = 0 } else values[++n] = value }
            END { for (i = 1; i <= n; i++) print values[i] }'
}
has() { # KEY VALUE
    setting "$1" | grep -qx -- "$2"
}
can() { # CAPABILITY...: the agent keeps them
    local capability
    for capability; do setting CapabilityBoundingSet | grep -qw "CAP_$capability" || { echo "no CAP_$capability"; return 1; }; done
}
not() { ! "$@"; }
# What a filter of system calls comes to: each group with all that it holds.
systemd-analyze syscall-filter 2>/dev/null | awk '/^@/ { group = $1 } /^    [@a-z]/ { print group, $1 }' >"$work/groups"
members() { # GROUP
    local member
    awk -v group="$1" '$1 == group { print $2 }' "$work/groups" | while read -r member; do
        case $member in @*) members "$member" ;; *) echo "$member" ;; esac
    done
}
allowed() {
    local line sign name words
    : >"$work/allowed"
    [ -n "$(setting SystemCallFilter)" ] || { echo '*' >"$work/allowed"; return; }
    setting SystemCallFilter >"$work/filter"
    while read -r line; do
        sign=+; case $line in ~*) sign=- line=${line#\~} ;; esac
        read -ra words <<<"$line"
        for name in "${words[@]}"; do
            case $name in @*) members "$name" ;; *) echo "$name" ;; esac
        done | sort -u >"$work/named"
        case $sign in
            +) sort -u "$work/allowed" "$work/named" -o "$work/allowed" ;;
            -) comm -23 "$work/allowed" "$work/named" >"$work/rest" && mv "$work/rest" "$work/allowed" ;;
        esac
    done <"$work/filter"
}
calls() { # NAME...: the filter lets them pass
    local name
    grep -qx '\*' "$work/allowed" && return
    for name; do grep -qx "$name" "$work/allowed" || { echo "no $name"; return 1; }; done
}
own="perf_event_open pidfd_getfd bpf pidfd_open pidfd_send_signal sched_setscheduler sched_setaffinity ioprio_set setpriority
    close_range memfd_create prctl flock fsync rename prlimit64"
become="setgroups setresgid setresuid capset"

echo "units"
check "systemd finds no fault with those of the packages" faultless gleaner-agent.service gleaner-aggregator.service
check "nor with slurmd's" faultless gleaner-slurmd.service
check "the state folder of the agent's config is the unit's" eval \
    'has StateDirectory gleaner-agent && [ "$(sed -n "s/^#*state_dir *= *//p" systemd/agent.toml)" = "\"/var/lib/$(setting StateDirectory)\"" ]'
check "it may write its certificates" has ReadWritePaths /etc/gleaner
check "it may write cgroups" not has ProtectControlGroups yes
check "it leaves no core dump" has LimitCORE 0
check "it cannot make real-time threads" has RestrictRealtime yes
allowed
check "its system calls pass" calls $own
check "those that make it another user do not" eval '(for call in setgroups setresgid setresuid; do not calls $call || exit 1; done)'
check "nor has it the right to" not can SETUID
for conf in volunteer-command local-engine; do
    cp "docs/examples/$conf.conf" "$units/gleaner-agent.service.d/"
    allowed
    check "systemd finds no fault with $conf.conf" faultless gleaner-agent.service
    check "with it the agent can become another user" eval 'can SETUID SETGID SETPCAP && calls $become'
    check "and do what it could before" eval 'can DAC_OVERRIDE SYS_PTRACE KILL NET_ADMIN BPF && calls $own'
    check "and nobody gets new privileges" has NoNewPrivileges yes
    rm "$units/gleaner-agent.service.d/$conf.conf"
done
cp systemd/gleaner-agent-xen.conf "$units/gleaner-agent.service.d/"
check "systemd finds no fault with gleaner-agent-xen.conf" faultless gleaner-agent.service
check "with it domains are made and ended outside of the sandbox, in scopes of their own" eval \
    'setting ExecStartPre | grep -q "^-+/usr/bin/systemd-run --scope .* domains make$" && setting ExecStopPost | grep -q "^-+/usr/bin/systemd-run --scope .* domains end$"'
check "which a shutdown neither refuses nor ends at once" eval \
    'for key in ExecStartPre ExecStopPost; do setting $key | grep systemd-run | grep -q -- " -p DefaultDependencies=no " || exit 1; done'
check "after the limits have been given back" eval 'setting ExecStopPost | head -n 1 | grep -q " restore --keep-domains$"'
rm "$units/gleaner-agent.service.d/gleaner-agent-xen.conf"
conf=scheduling-points
cp "docs/examples/$conf.conf" "$units/gleaner-agent.service.d/"
last() { setting "$1" | tail -n 1; }
allowed
check "systemd finds no fault with $conf.conf" faultless gleaner-agent.service
check "with it the agent can make real-time threads" eval 'can SYS_NICE && calls sched_setscheduler && [ "$(last RestrictRealtime)" = no ]'
check "one for each of 1,024 CPUs" eval '[ "$(last TasksMax)" -gt 1024 ]'
check "and what it starts cannot" eval '[ "$(last LimitRTPRIO)" = 0 ] && has NoNewPrivileges yes'
rm "$units/gleaner-agent.service.d/$conf.conf"

echo "users"
echo 'root:x:0:0::/root:/bin/sh' >"$root/etc/passwd"; echo 'root:x:0:' >"$root/etc/group"
check "they can be made" eval 'cat systemd/*.sysusers | systemd-sysusers --dry-run --root="$root" -'
cp "$work/said" "$work/made"
check "the volunteer's and the aggregator's, and no other" eval \
    '[ "$(sed -n "s/^Creating user .\([^ ]*\). .*/\1/p" "$work/made" | sort | tr "\n" " ")" = "gleaner gleaner-volunteer " ]'
check "the volunteer's has no home" grep -q '^u gleaner-volunteer - "[^"]*" /nonexistent$' systemd/gleaner-agent.sysusers
check "the example of the config names it" grep -q 'user = "gleaner-volunteer"' systemd/agent.toml
check "the aggregator runs as its own" grep -qx 'User=gleaner' systemd/gleaner-aggregator.service

echo "$failures failed"
[ "$failures" = 0 ]
