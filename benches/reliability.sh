#!/usr/bin/env bash
# The figures of docs/reliability.md, one after the other, on this machine: half an hour or so. Root.
# FAULT_MINUTES (10), KILLS (1000), CUTS (1000), SOAK_SECONDS (120) and FUZZ_SECONDS per target (60) by the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo; echo "== $*"; }
say "kills"; GLEANER_BEDS=1 GLEANER_KILLS=${KILLS:-1000} cargo test -q -p gleaner --test faults -- --nocapture killed
say "faults"; GLEANER_BEDS=1 GLEANER_FAULT_MINUTES=${FAULT_MINUTES:-10} cargo test -q -p gleaner --test faults -- --nocapture hour
say "power cuts on paper"; GLEANER_BEDS=1 GLEANER_CUTS=${CUTS:-1000} cargo test -q -p gleaner --test faults -- --nocapture power
say "power cuts of a block device"; GLEANER_BEDS=1 cargo test -q -p gleaner --test faults -- --nocapture block_device
say "hostile peers"; GLEANER_BEDS=1 GLEANER_SOAK_SECONDS=${SOAK_SECONDS:-120} cargo test -q -p gleaner-aggregator --test soak -- --nocapture
say "load"
cargo build --release --quiet --workspace && cargo build --release --quiet -p gleaner-aggregator --example load && benches/load.sh
say "fuzzing"; fuzz/run.sh "${FUZZ_SECONDS:-60}"
