#!/usr/bin/env bash
# Runs every fuzz target for SECONDS (10), or the named ones: run.sh [SECONDS [TARGET...]]. Each begins with its kept inputs in
# fuzz/seeds; new ones go to fuzz/corpus, and `KEEP=1 run.sh ...` adds those that reach new code to fuzz/seeds. Works with the stable
# compiler, needs a C++ compiler; with cargo-fuzz and a nightly one, `cargo fuzz run TARGET` adds the address sanitizer. What it
# finds is kept in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-10}; shift || true
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
target=${CARGO_TARGET_DIR:-../target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p') # with a target named, the flags are not those of build scripts
RUSTFLAGS=$flags cargo build --release --locked --quiet --target "$host" --target-dir "$target"
targets=("$@"); [ $# -gt 0 ] || mapfile -t targets < <(ls fuzz_targets | sed 's/\.rs$//')
for name in "${targets[@]}"; do
    mkdir -p "corpus/$name" "seeds/$name" artifacts
    fuzz() { "$target/$host/release/$name" "$@" -artifact_prefix=artifacts/ -max_len=4096 2>&1 | tail -1; }
    # Every kept input at least once, then mutations of them.
    echo "$name: $(fuzz "corpus/$name" "seeds/$name" -timeout=30 -rss_limit_mb=2048 -max_total_time="$seconds")"
    [ -z "${KEEP:-}" ] || fuzz -merge=1 "seeds/$name" "corpus/$name" >/dev/null
done
[ -z "$(ls artifacts)" ] || { echo "found: $(ls artifacts)"; exit 1; }
