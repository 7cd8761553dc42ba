#!/bin/sh
# In the version 2 host: a real database, on the scratch disk that postgres/image.sh built, beside the agent's loop.
mkdir -p /disk && mount -t ext4 /dev/vda /disk || exit 120
share=$(cat /disk/sharedir)
mkdir -p "$share" "$(cat /disk/pkglibdir)" && ln -s /disk/timezonesets "$share/timezonesets" && chmod 1777 /tmp /dev/shm || exit 120
export GLEANER_INSIDE_LAB=yes
exec ./lab-tests --test-threads=1 --nocapture database_memory_from_inside
