#!/bin/sh
# push-latency.sh APPLICATION URL: measures a page every second and hands the response time in (docs/writing-sources.md).
# A page that cannot be had hands in nothing: then the response time is missing, which is what it is. Needs curl.
set -u
application=$1 url=$2
while :; do
    if seconds=$(curl --silent --fail --output /dev/null --max-time 10 --write-out '%{time_total}' "$url"); then
        gleaner app respond "$application" "$(echo "$seconds" | awk '{print 1000 * $1}')" >/dev/null
    fi
    sleep 1
done
