#!/usr/bin/env bash
# image.sh FILE MIB: builds, once, a disk for a booted host (host.sh -i) with a PostgreSQL that is not started.
#   data/         its cluster, of user nobody's; table `pages` has MIB MiB, one row a page, with an index of `id`
#   pkglibdir, sharedir       the folders that it wants: one that may be empty, and one with timezonesets/
# Needs on Debian: postgresql, e2fsprogs, util-linux. Runs as root. Remove FILE to build anew.
set -euo pipefail
[ $# = 2 ] || { sed -n '2,5p' "$0"; exit 64; }
file=$1 mib=$2
export PATH=$PATH:/usr/sbin:/sbin
programs=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
[ -x "$programs/postgres" ] || { echo "image.sh: no PostgreSQL: apt-get install postgresql" >&2; exit 69; }
key=$({ cat "$0"; "$programs/postgres" --version; echo "$mib"; } | sha256sum | cut -c1-16)
[ -e "$file" ] && [ "$(cat "$file.key" 2>/dev/null)" = "$key" ] && exit 0
rm -f "$file" "$file.key"

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
disk=$work/disk; chmod 711 "$work"; mkdir "$disk"; chown nobody "$disk"
as_nobody() { (cd / && exec setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"); }
as_nobody "$programs/initdb" -D "$disk/data" -A trust -U postgres --locale=C -E UTF8 --wal-segsize=1 --no-sync >"$work/log"
# GMT is built in: the booted host has no time zones.
cat >>"$disk/data/postgresql.conf" <<END
listen_addresses = ''
unix_socket_directories = '/tmp'
shared_buffers = 8MB
max_connections = 10
max_parallel_workers_per_gather = 0
dynamic_shared_memory_type = mmap
wal_level = minimal
max_wal_senders = 0
autovacuum = off
jit = off
timezone = GMT
log_timezone = GMT
END
# One transaction, so that no log of the rows is written. What is not compressed fills its page.
as_nobody "$programs/postgres" --single -D "$disk/data" postgres >>"$work/log" 2>&1 <<END || { cat "$work/log" >&2; exit 70; }
BEGIN; CREATE TABLE pages (id int, filler char(7000)); ALTER TABLE pages ALTER filler SET STORAGE PLAIN; INSERT INTO pages SELECT number, '' FROM generate_series(1, $((mib * 128))) number; CREATE INDEX ON pages (id); COMMIT;
VACUUM (FREEZE, ANALYZE) pages
END
for folder in pkglibdir sharedir; do "$programs/pg_config" "--$folder" >"$disk/$folder"; done
cp -r "$(cat "$disk/sharedir")/timezonesets" "$disk/"
truncate -s "$((mib + 160))M" "$file.new"
mke2fs -q -t ext4 -d "$disk" "$file.new"
mv "$file.new" "$file"
echo "$key" >"$file.key"
