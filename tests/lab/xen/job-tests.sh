#!/bin/sh
# In the control domain: the test of a batch job. `gleaner` is found where cargo lays it for tests, two folders above the
# test's program, and has the agent's helper beside itself.
ln -s /t/gleaner /gleaner
export GLEANER_INSIDE_LAB=yes
exec ./xen-job-tests --exact --nocapture a_batch_job_from_inside
