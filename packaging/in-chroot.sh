#!/bin/bash
# In the clean Debian of test-debs.sh: /debs/old and /debs/new hold the packages.
set -uo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
packages="gleaner gleaner-agent gleaner-aggregator" helper=gleaner-agent-xen
failures=0
check() { # WHAT COMMAND...: it must succeed
    local what=$1; shift
    if "$@" >/tmp/said 2>&1; then echo "  good    $what"; else echo "  FAILED  $what"; sed 's/^/          /' /tmp/said; failures=$((failures + 1)); fi
}
not() { ! "$@"; }
none() { [ -z "$(ls -d "$@" 2>/dev/null)" ]; }
# Kind, permissions, owner, name, target and checksum of everything there is, but for what dpkg and the programs that
# change accounts keep for themselves (their logs, locks and copies of the last state).
tree() {
    local except=() path
    for path in /proc /sys /dev /tmp /debs /in-chroot.sh /var/log/dpkg.log '/var/lib/dpkg/*-old' '/var/lib/dpkg/lock*' \
        '/var/lib/dpkg/triggers/*' /etc/passwd- /etc/shadow- /etc/group- /etc/gshadow- '/etc/sub[ug]id*' /etc/.pwd.lock; do
        except+=(-path "$path" -o)
    done
    find / -xdev \( "${except[@]}" -false \) -prune -o -printf '%y %m %u:%g %p %l\n' | sort
    find / -xdev \( "${except[@]}" -false \) -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
}
same() { diff "$1" "$2"; }
versions() { # WANTED
    for package in $packages $helper; do [ "$(dpkg-query -W -f '${Version}' "$package")" = "$1" ] || return 1; done
}
old=$(dpkg-deb -f /debs/old/gleaner_*.deb Version) new=$(dpkg-deb -f /debs/new/gleaner_*.deb Version)
config_changed() { grep -q '# changed' /etc/gleaner/agent.toml && grep -q '# changed' /etc/gleaner/aggregator.toml; }
enabled() { [ -L "/etc/systemd/system/multi-user.target.wants/$1.service" ]; }

tree >/tmp/before

echo "install $old"
check "the packages install, with what they depend on" dpkg -i /debs/old/*.deb
check "all have version $old" versions "$old"
for program in gleaner gleaner-agent gleaner-aggregator; do
    check "$program runs" "$program" --version
    check "$program has a manual page" eval "test -s /usr/share/man/man[18]/$program.[18].gz"
    check "$program has its copyright and changelog" test -s "/usr/share/doc/$program/copyright" -a -s "/usr/share/doc/$program/changelog.Debian.gz"
done
for program in gleaner-agent gleaner-aggregator; do
    check "$program's config has a manual page" test -s "/usr/share/man/man5/$program.toml.5.gz"
done
check "what is installed takes less than 70 MB" eval '[ "$(dpkg-query -W -f "\${Installed-Size}\n" $packages | awk "{ sum += \$1 } END { print sum }")" -lt 70000 ]'
check "the debug symbols are in packages of their own" eval 'for package in $packages; do [ -s /debs/symbols/$package-dbgsym_*.deb ] || exit 1; done'
for shell in bash-completion/completions/gleaner zsh/vendor-completions/_gleaner fish/vendor_completions.d/gleaner.fish; do
    check "completions: $shell" test -s "/usr/share/$shell"
done
check "the agent's helper for Xen is where the agent looks, with a licence of its own" eval '/usr/libexec/gleaner/$helper --version && grep -q GPL-3.0-only /usr/share/doc/$helper/copyright'
check "and the drop-in that makes and ends domains" grep -q 'ExecStartPre=-+.* domains make$' /usr/lib/systemd/system/gleaner-agent.service.d/gleaner-agent-xen.conf
check "nothing is made without files, and nothing ended" eval 'gleaner-agent domains make && gleaner-agent domains end'
check "the agent's config is good" gleaner-agent --check
check "the aggregator's config is good" gleaner-aggregator --check
check "the agent only observes" not grep -q '^enabled *= *true' /etc/gleaner/agent.toml
check "nor does the unit make it act" not grep -q -- --act /usr/lib/systemd/system/gleaner-agent.service /lib/systemd/system/gleaner-agent.service
check "the aggregator has a user" getent passwd gleaner
check "and so has the volunteer, which cannot log in" eval 'getent passwd gleaner-volunteer | grep -q nologin$'
check "both units are enabled" eval 'enabled gleaner-agent && enabled gleaner-aggregator'
check "systemd finds no fault with the units" systemd-analyze verify --man=no gleaner-agent.service gleaner-aggregator.service
rm -rf /run/systemd # left by the last check
check "what dpkg installed is as it was packed" dpkg --verify $packages $helper

echo "use"
check "an authority is made" gleaner pki init /etc/gleaner
check "a host's certificate is made" gleaner pki issue-agent h1
mv /etc/gleaner/h1.crt /etc/gleaner/agent.crt; mv /etc/gleaner/h1.key /etc/gleaner/agent.key
mkdir -p /var/lib/gleaner/jobs /var/lib/gleaner-agent /etc/systemd/system/gleaner-agent.service.d
echo state >/var/lib/gleaner/state.redb
echo '# changed' | tee -a /etc/gleaner/agent.toml >>/etc/gleaner/aggregator.toml
printf '[Service]\nMemoryMax=64M\n' >/etc/systemd/system/gleaner-agent.service.d/own.conf

echo "upgrade to $new"
key=$(sha256sum /etc/gleaner/agent.key)
check "the packages install over the old ones" dpkg -i /debs/new/*.deb
check "all have version $new" versions "$new"
check "changed configs are kept" config_changed
check "keys are kept" test "$key" = "$(sha256sum /etc/gleaner/agent.key)"
check "the aggregator's key is its user's alone" test "$(stat -c '%U %a' /etc/gleaner/aggregator.key)" = "gleaner 600"
check "state is kept" test -s /var/lib/gleaner/state.redb
check "once more, with nothing to change" dpkg -i /debs/new/*.deb
check "back to the old version" dpkg -i /debs/old/*.deb

echo "remove"
check "the packages are removed" dpkg -r $packages $helper
check "programs and units are gone" none /usr/libexec/gleaner /usr/bin/gleaner* /lib/systemd/system/gleaner* /usr/lib/systemd/system/gleaner*
check "configs, keys and state stay" test -s /etc/gleaner/agent.toml -a -s /etc/gleaner/agent.key -a -s /var/lib/gleaner/state.redb
check "installing again finds them" eval 'dpkg -i /debs/new/*.deb && config_changed && gleaner-agent --check'

echo "purge"
check "the agent is purged" dpkg -P gleaner-agent $helper
check "what the aggregator needs stays" test -s /etc/gleaner/ca.crt -a -s /etc/gleaner/ca.key -a ! -e /etc/gleaner/agent.key
check "the rest is purged" dpkg -P gleaner gleaner-aggregator
check "no user and no group stays" not eval 'getent passwd | grep -q ^gleaner || getent group | grep -q ^gleaner'
tree >/tmp/after
check "everything is as before the first install ($(wc -l </tmp/before) lines of files, owners and checksums)" same /tmp/before /tmp/after
check "the other order: aggregator before agent" eval 'dpkg -i /debs/new/*.deb && gleaner pki init /etc/gleaner && dpkg -P gleaner-aggregator gleaner gleaner-agent $helper'
tree >/tmp/after
check "everything is as before once more" same /tmp/before /tmp/after

echo "$failures failed"
[ "$failures" = 0 ]
