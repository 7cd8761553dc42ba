#!/bin/sh
# In the control domain: the lab's tests of what bounds the volunteer's memory and traffic, and that of an HVM domain. The agent finds its helper beside itself.
export GLEANER_INSIDE_LAB=yes GLEANER_LAB_BOUNDS=yes GLEANER_AGENT=/t/gleaner-agent
exec ./lab-tests --test-threads=1 --nocapture xen_bounds xen_hvm
