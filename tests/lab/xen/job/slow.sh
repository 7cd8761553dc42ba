#!/bin/sh
# The dedicated host's worker, an old and slow machine: a line of the text each half second.
while read -r line; do echo "$line"; sleep 0.5; done | ./count.sh
