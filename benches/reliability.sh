#!/usr/bin/env bash
# The figures of docs/reliability.md, one after the other, on this machine: half an hour or so. Root.
# FAULT_MINUTES (10), KILLS (1000), CUTS (1000), DEVICE_CUTS (1; 200 take an hour), SOAK_SECONDS (120) and FUZZ_SECONDS per
# target (60) by the environment; ONLY=device runs that part alone.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo; echo "== $*"; }
# A boot cuts power at most CUTS_A_BOOT times: as many boots, each with a seed of its own, as it takes to reach DEVICE_CUTS.
CUTS_A_BOOT=50
device_cuts() {
  local wanted=${DEVICE_CUTS:-1} cuts=0 boots=0 seed=${GLEANER_FAULT_SEED:-1} log here
  log=$(mktemp)
  while ((cuts < wanted)); do
    here=$((wanted - cuts > CUTS_A_BOOT ? CUTS_A_BOOT : wanted - cuts))
    GLEANER_BEDS=1 GLEANER_DEVICE_CUTS=$here GLEANER_FAULT_SEED=$((seed + boots)) cargo test -q -p gleaner --test faults -- --nocapture block_device 2>&1 | tee "$log"
    here=$(grep -c '^cut [0-9]*: ' "$log" || true)
    ((here > 0)) || { echo "the boot with seed $((seed + boots)) cut nothing"; rm "$log"; return 1; }
    cuts=$((cuts + here)) boots=$((boots + 1))
    echo "so far: $cuts of $wanted cuts of a block device in $boots boots, nothing lost"
  done
  rm "$log"
}
if [ "${ONLY:-}" = device ]; then device_cuts; exit; fi
say "kills"; GLEANER_BEDS=1 GLEANER_KILLS=${KILLS:-1000} cargo test -q -p gleaner --test faults -- --nocapture killed
say "faults"; GLEANER_BEDS=1 GLEANER_FAULT_MINUTES=${FAULT_MINUTES:-10} cargo test -q -p gleaner --test faults -- --nocapture hour
say "power cuts on paper"; GLEANER_BEDS=1 GLEANER_CUTS=${CUTS:-1000} cargo test -q -p gleaner --test faults -- --nocapture power
say "power cuts of a block device"; device_cuts
say "hostile peers"; GLEANER_BEDS=1 GLEANER_SOAK_SECONDS=${SOAK_SECONDS:-120} cargo test -q -p gleaner-aggregator --test soak -- --nocapture
say "load"
cargo build --release --quiet --workspace && cargo build --release --quiet -p gleaner-aggregator --example load && benches/load.sh
say "fuzzing"; fuzz/run.sh "${FUZZ_SECONDS:-60}"
