#!/bin/sh
# In the control domain: the lab's own tests. The agent finds its helper beside itself.
export GLEANER_INSIDE_LAB=yes GLEANER_AGENT=/t/gleaner-agent
exec ./lab-tests --test-threads=1 --nocapture xen
