#!/bin/sh
# engine.sh FOLDER: an engine for `exec` over workers that are reached over the network. FOLDER has
#   hosts/HOST     the command that works on a text, and that which says which start of the worker this is
#   tasks/N        texts that wait; running/HOST/N where they are worked on; done/HOST/N afterwards
#   counts/N       results;  seconds/N  how long it took, in hundredths
#   open/HOST      how many of them HOST may work on
#   log            which of them were lost, and so retried
# Tasks are given out by dispatch.sh, which goes on where this one is ended.
cd "$1" || exit 1
# Sets n to the number of files of a folder.
count() { set -- "$1"/*; if [ -e "$1" ]; then n=$#; else n=0; fi; }

progress() {
  total=0 finished=0 busy=0 workers=
  for host in hosts/*; do # what is done first: one that moves on meanwhile is counted late, never twice
    host=${host#hosts/}
    count "done/$host"; ended=$n
    count "running/$host"; running=$n
    finished=$((finished + ended)) busy=$((busy + running))
    workers="$workers $host $running $ended"
  done
  count tasks; total=$((finished + busy + n))
  end=; [ $finished -lt $total ] || end=',"ended":"completed"'
  retried=$(grep -c lost log)
  cat seconds/* 2>/dev/null | awk -v total="$total" -v finished=$finished -v retried="$retried" -v workers="$workers" -v end="$end" '
    { sum += $1 / 100 }
    END {
      printf "{\"progress\":{\"fraction_done\":%f,\"tasks_total\":%d,\"tasks_done\":%d,\"tasks_retried\":%d", total ? finished / total : 0, total, finished, retried
      if (NR) printf ",\"mean_task_s\":%f", sum / NR
      count = split(workers, part, " ")
      printf ",\"workers\":{"
      for (i = 1; i < count; i += 3) printf "%s\"%s\":{\"tasks_running\":%d,\"done\":%f}", (i > 1 ? "," : ""), part[i], part[i + 1], total ? part[i + 2] / total : 0
      printf "}%s}}\n", end
    }'
}

workers() { # "HOST":SLOTS, ...
  for host in hosts/*; do
    host=${host#hosts/}
    case $1 in
      *"\"$host\":"*) slots=${1#*"\"$host\":"}; echo "${slots%%[,\}]*}" >"open/$host.new"; mv "open/$host.new" "open/$host";;
      *) rm -f "open/$host";;
    esac
  done
}

while read -r question; do
  case $question in
    '{"hello"'*)
      touch log
      [ -e dispatcher ] && kill -0 "$(cat dispatcher)" || setsid ./dispatch.sh </dev/null >>log 2>&1 &
      echo '{"hello":{"version":1}}';;
    '{"workers"'*) workers "${question#*:}"; echo '{"workers":{}}';;
    '{"progress"'*) progress;;
    '{"cancel"'*) workers; touch cancelled; echo '{"cancel":{}}';;
    *) echo '{"error":"an unknown question"}';;
  esac
done
