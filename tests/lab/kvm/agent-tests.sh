#!/bin/sh
# In the version 2 host: the agent's own tests, with a file system on the scratch disk.
mke2fs -q /dev/vda && mkdir -p /disk && mount -t ext4 /dev/vda /disk || exit 120
export GLEANER_TEST_DISK=/disk GLEANER_INSIDE_LAB=yes
echo bfq >/sys/block/vda/queue/scheduler
exec ./agent-tests --test-threads=2 --show-output
