#!/bin/sh
# dispatch.sh, in the engine's folder: gives texts to the hosts that are open, until all are done. A paused worker answers
# nothing, and its tasks wait with it; one that answers as another start of itself has lost them, and they wait for a
# worker again.
echo $$ >dispatcher

work() { # HOST N COMMAND
  read -r start _ </proc/uptime
  $3 <"running/$1/$2" >"counts/.$2.$1" &
  echo $! >"pids/$1/$2"
  if wait $! && [ "$(tail -n 1 "counts/.$2.$1")" = end ]; then
    read -r end _ </proc/uptime
    echo $((${end%.*}${end#*.} - ${start%.*}${start#*.})) >"seconds/.$2"; mv "seconds/.$2" "seconds/$2"
    mv "counts/.$2.$1" "counts/$2"; mv "running/$1/$2" "done/$1/$2"
  else
    echo "$2 was lost on $1"
    mv "running/$1/$2" "tasks/$2"
  fi
}

while set -- tasks/* running/*/* && [ -e "$1" -o -e "$2" ]; do
  for host in hosts/*; do
    host=${host#hosts/}
    { read -r command; read -r identity; } <"hosts/$host"
    start=$($identity </dev/null 2>/dev/null) && [ -n "$start" ] || continue
    set -- "running/$host"/*
    busy=$#; [ -e "$1" ] || busy=0
    if [ "$start" != "$(cat "starts/$host" 2>/dev/null)" ]; then
      [ $busy = 0 ] || for task; do kill "$(cat "pids/$host/${task##*/}")"; done
      echo "$start" >"starts/$host"
    fi
    slots=$(cat "open/$host" 2>/dev/null) || continue
    for task in tasks/*; do
      [ -e "$task" ] && [ $busy -lt "$slots" ] || break
      task=${task#tasks/}
      mv "tasks/$task" "running/$host/$task"
      work "$host" "$task" "$command" &
      busy=$((busy + 1))
    done
  done
  [ ! -e cancelled ] || exit 0
  sleep 0.5
done
