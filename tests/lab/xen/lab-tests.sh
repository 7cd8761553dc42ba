#!/bin/sh
# In the control domain: the lab's own tests. The agent finds its helper beside itself.
# Under credit only those of what a scheduler does: the others say the same under credit2, which the same bed boots first.
export GLEANER_INSIDE_LAB=yes GLEANER_AGENT=/t/gleaner-agent
case $(xl info | sed -n 's/^xen_scheduler *: *//p') in
  credit) set -- xen:: xen_harm xen_volunteer;;
  *) set -- xen;;
esac
exec ./lab-tests --test-threads=1 --nocapture "$@"
