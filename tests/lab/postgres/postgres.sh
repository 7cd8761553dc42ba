#!/usr/bin/env bash
# A real service with a response time: PostgreSQL in cgroups of its own, pgbench outside of them. Runs as root.
#   postgres.sh up DIR NAME PORT [SCALE]       makes DIR/NAME (first time), starts it, fills pgbench's tables (SCALE 10)
#   postgres.sh load DIR NAME PORT CLIENTS SECONDS [RATE] [select|tpcb|report]
#                                              pgbench, one line a second; RATE transactions a second, 0 = as fast as it can.
#                                              report: a sum over ROWS accounts, some 3 ms of CPU per 20,000
#   postgres.sh limit DIR NAME CPU [DISK]      CPU in percent of a core, DISK in MB/s, reads and writes each; - = no limit
#   postgres.sh down DIR NAME                  stops it and removes its groups; its data stay for the next `up`
# Options, before the verb:
#   -g GROUP   its groups are GROUP/NAME (gleaner-pg-PID of the calling shell; `up` notes it in DIR/NAME/group)
#   -b MIB     shared_buffers (32: little, so that memory and disk matter)
#   -t MS      what a client thinks after each transaction (0); pgbench's latencies contain it, the server's times do not
#   -r ROWS    rows of a report (20000)
#   -p DIR     PostgreSQL's programs (the newest below /usr/lib/postgresql)
# Version 1: GROUP/NAME below cpu, cpuacct, memory and blkio, as far as they are mounted; else version 2. Two roles: postgres, as
# which pgbench asks, and gleaner, which may read statistics; socket and log are in DIR/NAME.
set -euo pipefail
usage() { sed -n '2,16p' "$0"; exit 64; }
root=/sys/fs/cgroup group=gleaner-pg-$PPID buffers=32 think=0 rows=20000 programs=
while getopts g:b:t:r:p: option; do case $option in
  g) group=$OPTARG;; b) buffers=$OPTARG;; t) think=$OPTARG;; r) rows=$OPTARG;; p) programs=$OPTARG;; *) usage;;
esac; done
shift $((OPTIND - 1))
[ $# -ge 3 ] || usage
verb=$1 dir=$(realpath -m "$2") name=$3; shift 3
case $name in ''|*[!a-z0-9-]*) echo "NAME is \`$name\`; it must be of a-z, 0-9 and -" >&2; exit 64;; esac
home=$dir/$name
[ -n "$programs" ] || programs=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
[ -x "$programs/postgres" ] || { echo "no PostgreSQL in \`$programs\`; apt-get install postgresql" >&2; exit 69; }

as_postgres() { (cd / && exec setpriv --reuid=postgres --regid=postgres --clear-groups "$@"); }
psql() { as_postgres "$programs/psql" -X -q -A -t -h "$home" -p "$1" -U postgres -d postgres -v ON_ERROR_STOP=1 -c "$2"; }

# Its folders: one per mounted controller, or the one of version 2.
groups() {
  local controller found=
  for controller in cpu cpuacct memory blkio; do
    [ -e "$root/$controller/cgroup.procs" ] && found=1 && echo "$root/$controller/$group/$name"
  done
  [ -n "$found" ] || echo "$root/$group/$name"
}
group_of() { case $1 in cpu|memory|blkio) [ -e "$root/$1/cgroup.procs" ] && echo "$root/$1/$group/$name" && return;; esac; echo "$root/$group/$name"; }

# The disk that holds its data: a partition's number is its disk's.
disk() {
  local number; number=$(stat -c %Hd:%Ld "$home")
  cat "/sys/dev/block/$number/../dev" 2>/dev/null || echo "$number"
}

limit() { # CPU DISK
  local folder cpu=$1 disk=${2:--} bytes number
  folder=$(group_of cpu)
  if [ -e "$folder/cpu.cfs_quota_us" ]; then
    if [ "$cpu" = - ]; then echo -1; else echo $((cpu * 1000)); fi >"$folder/cpu.cfs_quota_us"
  else
    if [ "$cpu" = - ]; then echo max; else echo "$((cpu * 1000)) 100000"; fi >"$folder/cpu.max"
  fi
  folder=$(group_of blkio) number=$(disk)
  if [ -e "$folder/blkio.throttle.read_bps_device" ]; then
    if [ "$disk" = - ]; then bytes=0; else bytes=$((disk * 1000000)); fi
    echo "$number $bytes" >"$folder/blkio.throttle.read_bps_device"
    echo "$number $bytes" >"$folder/blkio.throttle.write_bps_device"
  elif [ -e "$folder/io.max" ]; then
    if [ "$disk" = - ]; then bytes=max; else bytes=$((disk * 1000000)); fi
    echo "$number rbps=$bytes wbps=$bytes" >"$folder/io.max"
  fi
}

up() { # PORT SCALE
  local port=$1 scale=${2:-10} folder parent procs=() i
  [ -z "$(cat "$home/data/postmaster.pid" 2>/dev/null)" ] || ! as_postgres "$programs/pg_ctl" -s -D "$home/data" status >/dev/null ||
    { echo "$name runs already" >&2; exit 73; }
  mkdir -p "$home"; chown postgres "$home"
  as_postgres test -x "$home" || { echo "user postgres cannot enter \`$home\`" >&2; exit 77; }
  [ -e "$home/data/PG_VERSION" ] || as_postgres "$programs/initdb" -D "$home/data" -A trust -U postgres --no-sync >"$home/initdb.log"
  echo "$group" >"$home/group"
  for folder in $(groups); do
    mkdir -p "$folder"
    if [ -e "$folder/cgroup.controllers" ]; then # children have only what their parents pass on
      for parent in "$root" "$root/$group"; do
        for i in cpu memory io; do echo "+$i" >"$parent/cgroup.subtree_control" || true; done
      done
    fi
    procs+=("$folder/cgroup.procs")
  done
  # It enters before it starts, so that all it does is counted and limited.
  (
    for folder in "${procs[@]}"; do echo "$BASHPID" >"$folder"; done
    cd / && exec setsid setpriv --reuid=postgres --regid=postgres --clear-groups "$programs/postgres" -D "$home/data" \
      -c listen_addresses=127.0.0.1 -c port="$port" -c unix_socket_directories="$home" -c max_connections=100 \
      -c shared_buffers="${buffers}MB" -c shared_preload_libraries=pg_stat_statements \
      -c pg_stat_statements.track_utility=off -c checkpoint_timeout=30s
  ) >"$home/log" 2>&1 </dev/null &
  i=0
  until as_postgres "$programs/pg_isready" -q -h "$home" -p "$port"; do
    i=$((i + 1))
    [ $i -le 300 ] && kill -0 $! 2>/dev/null || { echo "$name does not start:" >&2; tail -5 "$home/log" >&2; exit 70; }
    sleep 0.1
  done
  psql "$port" "CREATE EXTENSION IF NOT EXISTS pg_stat_statements" 2>>"$home/log"
  if [ -z "$(psql "$port" "SELECT 1 FROM pg_roles WHERE rolname = 'gleaner'")" ]; then
    psql "$port" "CREATE ROLE gleaner LOGIN; GRANT pg_monitor TO gleaner"
  fi
  if [ "$(cat "$home/scale" 2>/dev/null)" != "$scale" ]; then
    as_postgres "$programs/pgbench" -h "$home" -p "$port" -U postgres -i -q -s "$scale" postgres >>"$home/log" 2>&1
    echo "$scale" >"$home/scale"
  fi
}

load() { # PORT CLIENTS SECONDS RATE KIND
  local port=$1 clients=$2 seconds=$3 rate=${4:-0} kind=${5:-select} options=() script=$home/${5:-select}.sql
  case $kind in
    select|tpcb) "$programs/pgbench" --show-script="$([ $kind = select ] && echo select-only || echo tpcb-like)" 2>"$script";;
    report) printf '%s\n' "\\set first random(1, 100000 * :scale - $rows)" \
      "SELECT count(*), sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :first AND :first + $rows;" >"$script";;
    *) usage;;
  esac
  [ "$think" = 0 ] || echo "\\sleep $think ms" >>"$script"
  [ "$rate" = 0 ] || options+=(-R "$rate")
  options+=(-D scale="$(cat "$home/scale")" -f "$script" -c "$clients" -j 2 -T "$seconds" -P 1)
  # In place of this shell, so that whoever ends it ends the load.
  cd / && exec setpriv --reuid=postgres --regid=postgres --clear-groups \
    "$programs/pgbench" -h "$home" -p "$port" -U postgres -n "${options[@]}" postgres 2>&1
}

down() {
  local folder
  limit - - 2>/dev/null || true # or it would take its time
  if as_postgres "$programs/pg_ctl" -s -D "$home/data" status >/dev/null 2>&1; then
    as_postgres "$programs/pg_ctl" -s -D "$home/data" -m fast -w -t 60 stop
  fi
  for folder in $(groups); do
    for _ in $(seq 50); do [ -d "$folder" ] && ! rmdir "$folder" 2>/dev/null || break; sleep 0.1; done
    rmdir "${folder%/*}" 2>/dev/null || true # unless another instance is below
  done
}

[ "$verb" = up ] || [ ! -e "$home/group" ] || group=$(cat "$home/group")
case $verb in
  up) [ $# -ge 1 ] && [ $# -le 2 ] || usage; up "$@";;
  load) [ $# -ge 3 ] && [ $# -le 5 ] || usage; load "$@";;
  limit) [ $# -ge 1 ] && [ $# -le 2 ] || usage; limit "$@";;
  down) [ $# = 0 ] || usage; down;;
  *) usage;;
esac
