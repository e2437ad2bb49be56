#!/usr/bin/env bash
# A whole export at full size, from Postgres to Postgres: what each command takes, how large the queue gets, and whether
# Postgres agrees that every microshard was consumed exactly once. nginx serves the same 20,000 objects under as many names
# as it takes (it ignores what follows the `?`). Needs cargo, python3, psql, PostgreSQL's server programs, nginx, GNU time.
#   benches/full.sh [microshards] [objects] [frames]
set -euo pipefail
source "$(dirname "$0")/common.sh"

microshards=${1:-876000} objects=${2:-20000} frames=${3:-single}

prepare() {
    need psql nginx
    begin
    echo "building ..." >&2
    build
    echo "generating $objects objects and a manifest of $microshards microshards ..." >&2
    "$program" demo --generate-only --microshards "$objects" --dir "$dir/data" >/dev/null
    start_nginx "$dir/data"
    start_postgres
    manifest | load_manifest export
    database=$postgres/export
    queue=$dir/queue.db
}

# The generated manifest again and again, each time with other ids and uris, until there are enough. Each time is a day
# later, so that copies of one microshard are far apart: beside each other they would cost the encoder nothing.
manifest() {
    python3 - "$dir/data/manifest.csv" "$microshards" "$origin" <<'PYTHON'
import csv, datetime, itertools, sys
path, microshards, origin = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with open(path, newline="") as file:
    rows = list(csv.DictReader(file))
many = csv.DictWriter(sys.stdout, rows[0].keys())
many.writeheader()
for number, row in zip(range(microshards), itertools.cycle(rows)):
    copy = number // len(rows)
    created_at = datetime.datetime.fromisoformat(row["created_at"].replace("Z", "+00:00")) + datetime.timedelta(days=copy)
    many.writerow(row | {"microshard_id": int(row["microshard_id"]) + copy * 1_000_000, "created_at": created_at,
                         "uri": f"{origin}/{row['uri']}?copy={copy}"})
PYTHON
}

# Runs one of the commands, and watches the queue's log meanwhile.
watched() {
    local name=$1 watch
    shift
    echo "$name ..." >&2
    watch_log >"$dir/$name.wal" &
    watch=$!
    take "$name" "$program" "$name" --queue "$queue" "$@"
    touch "$dir/$name.ended"
    wait "$watch"
    rm "$dir/$name.ended"
}

# Prints the largest size the log had.
watch_log() {
    local size largest=0
    until [[ -e $dir/$name.ended ]]; do
        size=$(stat -c %s "$queue-wal" 2>/dev/null || echo 0)
        [[ $size -le $largest ]] || largest=$size
        sleep 0.2
    done
    echo "$largest"
}

print_table() {
    local name wall user system kb
    echo "| command | wall | microshards/s | CPU | peak memory | largest WAL |"
    echo "|---|---:|---:|---:|---:|---:|"
    while IFS=$'\t' read -r name wall user system kb; do
        awk -v name="$name" -v wall="$wall" -v user="$user" -v sys="$system" -v kb="$kb" \
            -v wal="$(<"$dir/$name.wal")" -v microshards="$microshards" 'BEGIN {
            printf "| %s | %.1f s | %.0f | %.1f s | %.0f MiB | %.1f MB |\n",
                name, wall, microshards / wall, user + sys, kb / 1024, wal / 1e6 }'
    done <"$dir/took"
}

# Fails where the manifest does not hold every microshard in exactly one shard that is there.
check() {
    psql "$database" -AtX -v ON_ERROR_STOP=1 <<SQL | tee "$dir/checked"
select 'microshards consumed: ' || count(*) filter (where status = 'consumed') || ' of ' || count(*) from final_export_microshards;
select 'shards: ' || count(*) || ', of microshards: ' || sum(microshard_count) || ', of rows: ' || sum(segment_count) from final_export_shards;
select case when
    (select count(*) = $microshards and bool_and(status = 'consumed') from final_export_microshards)
    and (select sum(microshard_count) = $microshards from final_export_shards)
    and (select sum(segment_count) from final_export_shards) = (select sum(segment_count) from final_export_microshards)
    and not exists (
        select from final_export_shards s
        full join (select shard_id, count(*) microshards, sum(segment_count) rows from final_export_microshards group by 1) m
        using (shard_id)
        where s.microshard_count is distinct from m.microshards or s.segment_count is distinct from m.rows)
    then 'exactly once: yes' else 'exactly once: NO' end;
SQL
    grep -qx 'exactly once: yes' "$dir/checked"
}

prepare
watched snapshot --manifest "$database"
watched run --output "$dir/shards" --threads 256 --frames "$frames"
watched sync-back --manifest "$database"
watched verify
echo
echo "$microshards microshards, --threads 256 --frames $frames; $(<"$dir/machine")"
echo
print_table
echo
echo "queue file: $(stat -c %s "$queue" | awk '{ printf "%.1f MB", $1 / 1e6 }'); shards: $(du -s --block-size=MB "$dir/shards" | cut -f1)"
check
