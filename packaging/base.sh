#!/usr/bin/env bash
# base.sh FILE: makes FILE, a tar of a small Debian with systemd, from the mirror that apt uses here; once.
# Needs on Debian: root, mmdebstrap.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,3p' "$0" >&2; exit 64; }
mkdir -p "$(dirname "$1")"
exec 9>"$1.lock" && flock 9
[ ! -s "$1" ] || exit 0
command -v mmdebstrap >/dev/null || { echo "base.sh: no mmdebstrap: apt-get install mmdebstrap" >&2; exit 69; }
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
# The mirror of the first line of apt's own sources that has this release.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' | awk -v release="$release" '$2 == release {print $1; exit}')
mmdebstrap --quiet --format=tar --variant=minbase --include=systemd-sysv,passwd,python3 \
    "$release" "$1.new" "${mirror:-http://deb.debian.org/debian}"
mv "$1.new" "$1"
