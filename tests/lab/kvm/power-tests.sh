#!/bin/sh
# In the version 2 host: cuts of power on its scratch disk. The file `seed` holds the seed, `cuts` how many cuts, if that was said.
export GLEANER_INSIDE_LAB=yes GLEANER_CUT_DISK=/dev/vda GLEANER_FAULT_SEED=$(cat seed) GLEANER_DEVICE_CUTS=$(cat cuts)
mkdir deps && mv faults-tests deps/ # a test program finds `gleaner` in the folder above its own
exec deps/faults-tests --exact block_device::power_cut_on_a_block_device_loses_nothing_that_was_acknowledged --nocapture
