#!/bin/sh
# In the version 2 host, with QEMU: a guest that is the volunteer floods its tap, under the agent's own tests.
mkdir -p /var/run/netns /run/netns
export GLEANER_INSIDE_LAB=yes GLEANER_LAB_IMAGES=/images PATH=$PATH:/t
mv agent-tests-of-guests agent-tests
exec ./agent-tests --exact network_bound::tests::guests::a_flooding_guest_is_held_at_its_tap --nocapture
