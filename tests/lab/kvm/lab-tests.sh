#!/bin/sh
# In the version 2 host, with real KVM guests: the lab's own tests.
mkdir -p /var/lib/gleaner-lab
mount -o remount,size=300M /tmp
export GLEANER_INSIDE_LAB=yes GLEANER_LAB_IMAGES=/images GLEANER_AGENT=/t/gleaner-agent PATH=$PATH:/t
exec ./lab-tests --test-threads=1 --nocapture guests
