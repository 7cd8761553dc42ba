#!/bin/sh
# folder-worker.sh FOLDER HOST: works on the tasks of folder-engine.py, as many at once as $GLEANER_SLOTS says (1 without).
# On an interactive host the agent starts it in the volunteer (volunteer.command); on a dedicated one anybody does.
set -u
folder=$1 host=$2
mkdir -p "$folder/running/$host" "$folder/done/$host"

run() { # TASK: it is ours, in running/HOST
    start=$(date +%s)
    sh "$folder/running/$host/$1" </dev/null >"$folder/$1.out" 2>&1 &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do touch -c "$folder/running/$host/$1"; sleep 1; done
    # Whoever took it back meanwhile has it run again: then this result counts for nothing.
    if mv "$folder/running/$host/$1" "$folder/done/$host/$1" 2>/dev/null; then
        echo $(($(date +%s) - start)) >"$folder/seconds/$1.new" && mv "$folder/seconds/$1.new" "$folder/seconds/$1"
    fi
}

slot() {
    while :; do
        if [ -e "$folder/open/$host" ]; then
            for path in "$folder"/tasks/*; do
                task=${path##*/}
                # Touched first: a task that looks old would be taken back at once.
                if touch -c "$path" && mv "$path" "$folder/running/$host/$task" 2>/dev/null; then run "$task"; break; fi
            done
        fi
        sleep 1
    done
}

# What an earlier worker of this host left was lost when that was killed.
for path in "$folder/running/$host"/*; do
    [ ! -e "$path" ] || mv "$path" "$folder/tasks/"
done
slots=${GLEANER_SLOTS:-1}
while [ "$slots" -gt 1 ]; do slot & slots=$((slots - 1)); done
slot
