#!/usr/bin/env bash
# The isolation matrix: antagonists in the volunteer beside real foregrounds, under several ways to protect the foreground; docs/isolation.md.
#   isolation.sh [OPTIONS OF isolation...]        here; without options all usual cells under every row, five rounds (hours)
#   isolation.sh --day [OPTIONS...]               desktop sessions for 10 minutes beside all antagonists at once
#   isolation.sh --host v2 [OPTIONS...]           in a booted host with cgroup version 2 and a stock kernel (tests/lab); what
#                                                 that host lacks (databases, guests) is left out
# Results: isolation.json and isolation.svg in the folder RESULTS (target/isolation). BIN is a folder with both programs instead of a release
# build; LIMIT_S bounds the booted host (3600). Needs root and a quiet machine.
set -euo pipefail
cd "$(dirname "$0")/.."
host= day= options=()
while [ $# -gt 0 ]; do case $1 in
  --host) host=${2:-}; [ "$host" = v2 ] || { echo "isolation.sh: --host knows only v2" >&2; exit 64; }; shift 2;;
  --day) day=yes; shift;;
  -h|--help) sed -n '2,8p' "$0"; exit 0;;
  *) options+=("$1"); shift;;
esac; done
[ -z "$day" ] || options=(--cells interactive:all --seconds 600 --settle 10 --rounds 1 "${options[@]}")
target=${CARGO_TARGET_DIR:-target}
bin=${BIN:-$target/release}
# Features as of the whole workspace, so that nothing is built twice.
[ -n "${BIN:-}" ] || cargo build --quiet --release --workspace --bin isolation --bin gleaner
results=${RESULTS:-$target/isolation}; mkdir -p "$results"

if [ -z "$host" ]; then
  exec "$bin/isolation" --gleaner "$bin/gleaner" --json "$results/isolation.json" --svg "$results/isolation.svg" "${options[@]}"
fi

images=$target/lab/kvm; mkdir -p "$images"
tests/lab/kvm/images.sh "$images"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
# Without symbols they are a quarter the size, which the host's memory has to hold.
for program in isolation gleaner; do strip -o "$work/$program" "$bin/$program"; done
# Its own memory is the bound there, so that the kernel's own choice of whom to kill is measured.
{
  echo '#!/bin/sh'
  echo 'mke2fs -q /dev/vda && mkdir -p /disk && mount -t ext4 /dev/vda /disk || exit 120'
  printf 'cd /t; ./isolation --gleaner /t/gleaner --memory-limit host --scratch /disk --json /tmp/j --svg /tmp/s'
  printf " '%s'" "${options[@]}"
  printf '; code=$?\nfor file in j s; do [ ! -e /tmp/$file ] || { echo "RESULT $file"; cat /tmp/$file; echo; }; done\nexit $code\n'
} >"$work/isolation-host.sh"
limit=${LIMIT_S:-3600}
tests/lab/kvm/host.sh -m 900 -D 512 -T "$limit" "$images" "$work/isolation-host.sh" "$work/isolation" "$work/gleaner" |
  awk -v results="$results" '/^RESULT j$/ {to = results "/isolation.json"; printf "" >to; next} /^RESULT s$/ {to = results "/isolation.svg"; printf "" >to; next}
    to {print >to; next} {print; fflush()}'
