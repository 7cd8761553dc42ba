#!/bin/sh
# In the version 2 host, with real KVM guests: the lab's own tests, on a file system that takes direct I/O.
mke2fs -q /dev/vda && mkdir -p /disk && mount -t ext4 /dev/vda /disk || exit 120
export GLEANER_INSIDE_LAB=yes GLEANER_LAB_IMAGES=/images GLEANER_AGENT=/t/gleaner-agent TMPDIR=/disk PATH=$PATH:/t
exec ./lab-tests --test-threads=1 --nocapture guests
