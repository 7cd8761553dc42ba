#!/bin/sh
# In the volunteer's domain: counts the words of the text that a client sends, and tells on another port which start of the
# domain this is.
nc -ll -p 7001 -e cat /proc/sys/kernel/random/boot_id &
nc -ll -p 7000 -e ./count.sh &
wait
