#!/bin/bash
# In the machine that test-systemd.sh boots: installs the packages beside this file and tries the units.
set -uo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
cd /test
failures=0
check() { # WHAT COMMAND...: it must succeed
    local what=$1; shift
    if "$@" >/tmp/said 2>&1; then echo "  good    $what"; else
        echo "  FAILED  $what"; tail -20 /tmp/said | sed 's/^/          /'; failures=$((failures + 1)); fi
}
not() { ! "$@"; }
none() { [ -z "$(ls -d "$@" 2>/dev/null)" ]; }
until_() { # SECONDS WHAT COMMAND...: it must succeed in that time
    local seconds=$1 what=$2 start=$SECONDS; shift 2
    until "$@" >/tmp/said 2>&1; do
        [ $((SECONDS - start)) -lt "$seconds" ] || { check "$what (within $seconds s)" "$@"; return; }
        sleep 0.5
    done
    echo "  good    $what"
}
active() { systemctl is-active --quiet "$1"; }
property() { systemctl show --property "$2" --value "$1"; }
pid() { property "$1" MainPID; }
said() { journalctl --unit "$1" --no-pager --output cat | grep -q -- "$2"; }
connected() { # HOST [ACTING]
    gleaner hosts --json | python3 -c '
import json, sys
hosts = {host["host"]: host for host in json.load(sys.stdin)}
host = hosts[sys.argv[1]]
assert host["connected"] and host["report"], host
assert len(sys.argv) < 3 or host["facts"]["levers"]["acting"] == (sys.argv[2] == "yes"), host["facts"]["levers"]' "$@"
}
volunteer_works() { [ -n "$(cat /sys/fs/cgroup/gleaner/volunteer/cgroup.procs)" ]; }
volunteer_gone() { [ ! -e /sys/fs/cgroup/gleaner ]; }
shop=/sys/fs/cgroup/system.slice/shop.service
limited() { grep -q '^[0-9]' $shop/cpu.max; }
restarts() { [ "$(property "$1" NRestarts)" -gt "$2" ]; }
ours() { grep -l "^$1" /proc/[0-9]*/comm; }
job_is() { gleaner job show folder --json | grep -q "\"phase\": *\"$1\""; }

echo "systemd $(systemctl --version | sed -n '1s/systemd \([^ ]*\).*/\1/p'), Linux $(uname -r), $(stat -f -c %T /sys/fs/cgroup)"

echo "install"
check "the packages install" dpkg -i ./*.deb
check "nothing runs before there are certificates" not eval 'active gleaner-agent || active gleaner-aggregator'
check "that is no failure" not eval 'systemctl is-failed gleaner-agent || systemctl is-failed gleaner-aggregator'

echo "start, observing"
sed -i 's/^#evaluation_interval_s.*/evaluation_interval_s = 2/; s/^#profile_period_s.*/profile_period_s = 2/; s/^#control_interval_s.*/control_interval_s = 3/' /etc/gleaner/aggregator.toml
sed -i 's|^#cgroups.*|cgroups = ["system.slice/shop.service"]|' /etc/gleaner/agent.toml
check "an authority is made" gleaner pki init /etc/gleaner
check "a certificate of a host without a token is made" gleaner pki issue-agent d1
systemd-run --quiet --unit shop --property CPUAccounting=yes sh -c 'while :; do sleep 0.1; done'
check "the aggregator starts" systemctl start gleaner-aggregator
check "as its own user" test "$(stat -c %U /proc/"$(pid gleaner-aggregator)")" = gleaner
check "without any capability" grep -q '^CapEff:.*0000000000000000$' /proc/"$(pid gleaner-aggregator)"/status
check "a host is invited" eval 'gleaner host invite h1 --address 127.0.0.1:7441 >/tmp/token'
check "and joins with the token" eval 'gleaner-agent join - </tmp/token'
check "which tells it where the aggregator is" grep -qx 'address = "127.0.0.1:7441"' /etc/gleaner/agent.toml
check "once" not eval 'gleaner-agent join - </tmp/token'
check "which the audit knows" eval 'gleaner audit | grep -q invite'
check "the agent starts" systemctl start gleaner-agent
until_ 60 "the agent is connected to the aggregator, and observes" connected h1 no
check "advice is given" gleaner advise --for 10m --risk 1%
sed 's/^/          /' /tmp/said
check "a trial beside an agent that observes is refused, and says so" eval '! gleaner-agent try system.slice/shop.service --cpu 50 --for 1 >/tmp/try 2>&1 && grep -q "only observes" /tmp/try'
check "the service stops" systemctl stop gleaner-agent
check "the trial puts everything back" eval 'gleaner-agent try system.slice/shop.service --cpu 50 --for 2 && ! limited'
check "the service starts" systemctl start gleaner-agent
until_ 60 "and is connected" connected h1 no
check "observing, it makes no cgroup" volunteer_gone
for unit in gleaner-agent gleaner-aggregator; do
    systemd-analyze security --no-pager $unit | sed -n "s/.*Overall exposure level for \(.*\)/  score   \1/p"
done
check "the agent's exposure is at most 4.0" systemd-analyze security --threshold=40 gleaner-agent
check "the aggregator's exposure is at most 2.5" systemd-analyze security --threshold=25 gleaner-aggregator

echo "reload"
sed -i 's/^#sigma.*/sigma = 2.5/; /^\[act\]/,/^\[/ s/^#enabled.*/enabled = true/' /etc/gleaner/agent.toml
sed -i 's/^#report_stale_after_s.*/report_stale_after_s = 6/; s/^#max_agents.*/max_agents = 500/' /etc/gleaner/aggregator.toml
check "both reload" systemctl reload gleaner-agent gleaner-aggregator
until_ 20 "the agent says what it took over and what not" said gleaner-agent 'taken over: forecast.sigma; needs a restart: act.enabled'
until_ 20 "and so does the aggregator" said gleaner-aggregator 'taken over: controller.report_stale_after_s; needs a restart: max_agents'
check "the agent still observes" connected h1 no
cp /etc/gleaner/agent.toml /tmp/good.toml; echo 'nonsense = 1' >>/etc/gleaner/agent.toml
systemctl reload gleaner-agent
until_ 20 "a file with mistakes is not taken over" said gleaner-agent 'the changed config is not taken over: .*`[a-z]*.nonsense` is unknown'
check "and harms nobody" connected h1
cp /tmp/good.toml /etc/gleaner/agent.toml

echo "act"
mkdir -p /etc/systemd/system/gleaner-agent.service.d /etc/systemd/system/gleaner-aggregator.service.d
cp /usr/share/doc/gleaner-agent/examples/volunteer-command.conf /etc/systemd/system/gleaner-agent.service.d/
printf '[Service]\nReadWritePaths=/srv/folder\n' | tee /etc/systemd/system/gleaner-agent.service.d/folder.conf >/etc/systemd/system/gleaner-aggregator.service.d/folder.conf
# Not to wait for a whole minute below.
printf '[Service]\nWatchdogSec=15\n' >/etc/systemd/system/gleaner-aggregator.service.d/watchdog.conf
install -d -o gleaner -g gleaner /srv/folder /srv/folder/tasks
for number in $(seq 100 139); do echo 'sleep 4' >/srv/folder/tasks/$number; done; chown -R gleaner: /srv/folder
install -m 755 folder-engine.py folder-worker.sh /usr/local/bin/
sed -i 's|^#command = .*|command = ["/usr/local/bin/folder-worker.sh", "/srv/folder", "h1"]|' /etc/gleaner/agent.toml
check "a volunteer's program without a user is refused, by root" eval '! gleaner-agent --check >/tmp/said 2>&1; grep -q "volunteer.user. is missing" /tmp/said'
# The user of the batch system: its engine and its workers share the folder.
sed -i 's|^command = .*|&\nuser = "gleaner"|' /etc/gleaner/agent.toml
systemctl daemon-reload
check "both restart" systemctl restart gleaner-aggregator gleaner-agent
until_ 60 "the agent acts" connected h1 yes
# What it finds of this host inside its sandbox is what root finds outside.
gleaner hosts --json >/tmp/hosts; gleaner-agent doctor --json >/tmp/doctor
check "its sandbox hides nothing it can use" python3 -c '
import json
inside = {offer["capability"]: "value" in offer["state"] for offer in json.load(open("/tmp/hosts"))[0]["facts"]["offers"]}
outside = {offer["capability"]: "value" in offer["state"] for offer in json.load(open("/tmp/doctor"))["offers"]}
lost = [name for name in outside if outside[name] and not inside.get(name)]
print("lost:", lost, "of", [name for name in outside if outside[name]])
assert not lost'
sed 's/^/          /' /tmp/said
# A second host, in another place of the same machine; it only observes.
sed 's/^# Name of this host.*/name = "d1"/; s|^#state_dir.*|state_dir = "/var/lib/d1"|; s|^#certificate.*|certificate = "/etc/gleaner/d1.crt"|; s|^#key.*|key = "/etc/gleaner/d1.key"|
    s/^enabled.*//; s/^command.*//; s/^user = .*//' /etc/gleaner/agent.toml >/tmp/d1.toml
systemd-run --quiet --unit d1 gleaner-agent --config /tmp/d1.toml
systemd-run --quiet --unit d1-worker --uid gleaner --setenv GLEANER_SLOTS=2 /usr/local/bin/folder-worker.sh /srv/folder d1
until_ 60 "a dedicated host is there" connected d1 no
cat >/tmp/shop.toml <<'APP'
name = "shop"
target_ms = 100
response_time = "push"
[[tier]]
name = "all"
host = "h1"
workload = "system.slice/shop.service"
cpu_percent = { floor = 20, ceiling = 80 }
APP
check "an application is applied" gleaner app apply /tmp/shop.toml
systemd-run --quiet --unit customers sh -c 'while :; do gleaner app respond shop 80; sleep 1; done'
until_ 60 "its limits are set" limited
cat >/tmp/job.toml <<'JOB'
name = "folder"
program = ["/usr/local/bin/folder-engine.py", "/srv/folder"]
working_dir = "/srv/folder"
max_volunteers = 1
prices = { dedicated = 1.0, volunteer = 0.01 }
max_slots_per_host = 2
memory_per_slot_mib = 16
goal = { cost = {} }
[[dedicated]]
host = "d1"
JOB
check "a job is submitted" gleaner job submit-cluster /tmp/job.toml
until_ 120 "the volunteer works, as its own user" eval 'volunteer_works && [ "$(stat -c %U /proc/$(head -1 /sys/fs/cgroup/gleaner/volunteer/cgroup.procs))" = gleaner ]'
volunteers=$(head -1 /sys/fs/cgroup/gleaner/volunteer/cgroup.procs)
check "which has no capabilities and gets no privileges" eval '[ "$(grep -c "^Cap.*0000000000000000$" /proc/$volunteers/status)" = 5 ] && grep -q "^NoNewPrivs:.*1$" /proc/$volunteers/status'

echo "watchdog"
(while :; do echo "$SECONDS $(cat $shop/cpu.max) $([ -e /sys/fs/cgroup/gleaner ] && echo volunteer)"; sleep 0.2; done) >/tmp/watched &
watcher=$!
before=$(property gleaner-agent NRestarts) at=$SECONDS
kill -STOP "$(pid gleaner-agent)"
until_ 90 "a stopped agent is ended and started again by systemd" restarts gleaner-agent "$before"
echo "          after $((SECONDS - at)) s"
check "because it said nothing" said gleaner-agent 'Watchdog timeout'
check "its limit on the shop was put back meanwhile" grep -q '^[0-9]* max' /tmp/watched
check "its volunteer was taken away meanwhile" grep -qv volunteer /tmp/watched
check "by the unit's own restore" said gleaner-agent 'knobs restored'
until_ 60 "it is connected again" connected h1 yes
until_ 60 "the shop is limited again" limited
until_ 120 "the volunteer works again" volunteer_works
kill $watcher
before=$(property gleaner-aggregator NRestarts) at=$SECONDS
kill -STOP "$(pid gleaner-aggregator)"
until_ 90 "a stopped aggregator is ended and started again by systemd" restarts gleaner-aggregator "$before"
echo "          after $((SECONDS - at)) s"
until_ 90 "its job goes on" eval 'job_is running || job_is completed'
until_ 60 "the agents are connected again" eval 'connected h1 && connected d1'
before=$(property gleaner-agent NRestarts)
kill -KILL "$(pid gleaner-agent)"
until_ 60 "a killed agent is started again" restarts gleaner-agent "$before"
until_ 60 "and connected again" connected h1 yes
until_ 300 "the job is complete" job_is completed
check "every task was done once" test "$(ls /srv/folder/done/* | grep -c '^1')" = 40

echo "upgrade, while both run"
before="$(pid gleaner-agent) $(pid gleaner-aggregator)" old=$(dpkg-query -W -f '${Version}' gleaner-agent)
key=$(sha256sum /etc/gleaner/agent.key)
check "the newer packages install over the old ones" dpkg -i upgraded/*.deb
check "they are newer" dpkg --compare-versions "$(dpkg-query -W -f '${Version}' gleaner-agent)" gt "$old"
check "both were restarted" test "$(pid gleaner-agent)" != "${before% *}" -a "$(pid gleaner-aggregator)" != "${before#* }"
check "with the config that was changed" grep -q '^enabled = true' /etc/gleaner/agent.toml
check "and no other one beside it" eval 'none /etc/gleaner/*.dpkg-*'
check "with the same key" test "$key" = "$(sha256sum /etc/gleaner/agent.key)"
until_ 60 "the agents are connected again, without a token" eval 'connected h1 yes && connected d1'
check "the job is still known" job_is completed
until_ 60 "the shop is limited again" limited

echo "stop and remove"
until_ 60 "the shop is limited" limited
check "the agent stops" systemctl stop gleaner-agent
check "the shop has what it had" not limited
check "the volunteer is gone" volunteer_gone
check "the agent starts" systemctl start gleaner-agent
until_ 60 "the shop is limited again" limited
systemctl stop d1-worker d1
check "the packages are removed" dpkg -r gleaner gleaner-agent gleaner-aggregator
check "the shop has what it had" not limited
check "no cgroup of ours is there" volunteer_gone
check "no process of ours is there" not ours gleaner-a
check "the packages are purged" dpkg -P gleaner gleaner-agent gleaner-aggregator
check "nothing of ours is there" none /etc/gleaner /var/lib/gleaner* /run/gleaner /etc/systemd/system/gleaner* /usr/bin/gleaner*
check "nor a user" not eval 'getent passwd | grep ^gleaner'
check "no unit has failed" not eval 'systemctl list-units --failed --plain --no-legend | grep .'

if [ "$failures" != 0 ]; then journalctl --no-pager --output short-monotonic | grep -E 'gleaner|systemd\[1\]' | tail -60; fi
echo "$failures failed"
[ "$failures" = 0 ]
