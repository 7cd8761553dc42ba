#!/usr/bin/env bash
# Runs every fuzz target for SECONDS (10), or the named ones: run.sh [SECONDS [TARGET...]]. Works with the stable compiler, needs a
# C++ compiler; with cargo-fuzz and a nightly one, `cargo fuzz run TARGET` adds the address sanitizer. What it finds is kept in
# fuzz/artifacts.
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
    mkdir -p "corpus/$name" artifacts
    echo "$name: $("$target/$host/release/$name" "corpus/$name" -max_total_time="$seconds" -artifact_prefix=artifacts/ -max_len=4096 2>&1 | tail -1)"
done
[ -z "$(ls artifacts)" ] || { echo "found: $(ls artifacts)"; exit 1; }
