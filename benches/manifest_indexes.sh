#!/usr/bin/env bash
# What indexes and fillfactor cost on the microshards table: the numbers behind src/manifest/schema.sql.
# Needs the Debian package postgresql; makes its own server in a temporary directory and removes it. About two minutes.
#   benches/manifest_indexes.sh [rows]
set -euo pipefail
rows=${1:-500000}
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
dir=$(mktemp -d); chmod 755 "$dir"
as=(); [ "$(id -u)" -ne 0 ] || { chown 65534:65534 "$dir"; as=(setpriv --reuid 65534 --regid 65534 --clear-groups); }
cd "$dir"
"${as[@]}" "$bin/initdb" -D "$dir/data" -A trust -U postgres --no-sync >/dev/null
trap '"${as[@]}" "$bin/pg_ctl" -D "$dir/data" -m immediate stop >/dev/null; cd /; rm -rf "$dir"' EXIT
"${as[@]}" "$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w -o "-c listen_addresses='' -k $dir -c shared_buffers=512MB -c max_wal_size=8GB -c fsync=off -c autovacuum=off" start >/dev/null
sql() { "$bin/psql" -h "$dir" -U postgres -XAtq -v ON_ERROR_STOP=1 -c "$1"; }
now() { date +%s%N; }
timed() { local t0 w0; t0=$(now); w0=$(sql "SELECT pg_current_wal_lsn()"); sql "$2" >/dev/null
  printf '  %-34s %7.2f s  %5d MB of WAL\n' "$1" "$(echo "($(now)-$t0)/1000000000" | bc -l)" "$(sql "SELECT (pg_current_wal_lsn()-'$w0')/1000000" | cut -d. -f1)"; }

run_index='CREATE INDEX ON m (run_id, microshard_id)'
pending="CREATE INDEX ON m (run_id, microshard_id) WHERE status = 'pending'; CREATE INDEX ON m (lease_expires_at) WHERE status = 'claimed'"
measure() { # title, fillfactor, indexes
  echo "$1"
  sql "SET client_min_messages = warning; DROP TABLE IF EXISTS m; CREATE TABLE m (microshard_id bigint PRIMARY KEY, run_id text, video_id text, language text, uri text,
    segment_count int, byte_size bigint, sha256 text, status text NOT NULL DEFAULT 'pending', claimed_by text, claimed_at timestamptz,
    lease_expires_at timestamptz, attempt_count int NOT NULL DEFAULT 0, error text, shard_id text,
    created_at timestamptz DEFAULT now(), updated_at timestamptz DEFAULT now()) WITH (fillfactor = $2)"
  [ -z "$3" ] || sql "$3"
  timed "load" "INSERT INTO m (microshard_id, run_id, video_id, language, uri, segment_count, byte_size, sha256)
    SELECT i, 'run-' || i % 2, 'video' || i, 'en', 's3://bucket/run/en/' || md5(i::text) || '.jsonl.zst', 70, 15000, repeat(md5(i::text), 2)
    FROM generate_series(1, $rows) i"
  sql "VACUUM ANALYZE m"; sql CHECKPOINT
  timed "read one run's pending" "COPY (SELECT * FROM m WHERE run_id = 'run-0' AND status = 'pending') TO '/dev/null' (FORMAT binary)"
  timed "claim 1,000 of a run" "WITH f AS MATERIALIZED (SELECT microshard_id FROM m WHERE run_id = 'run-1' AND status = 'pending'
    ORDER BY microshard_id LIMIT 1000 FOR UPDATE SKIP LOCKED) UPDATE m SET status = 'claimed', claimed_by = 'c', claimed_at = now(),
    lease_expires_at = now(), attempt_count = attempt_count + 1, updated_at = now() FROM f WHERE m.microshard_id = f.microshard_id"
  timed "claim a whole run ($((rows / 2)) rows)" "UPDATE m SET status = 'claimed', claimed_by = 'c', claimed_at = now(),
    lease_expires_at = now(), attempt_count = attempt_count + 1, updated_at = now() WHERE run_id = 'run-0' AND status = 'pending'"
  timed "find the expired" "SELECT count(*) FROM m WHERE run_id = 'run-1' AND status = 'claimed' AND lease_expires_at <= now()"
  timed "consume it, chunks of 50,000" "DO \$\$ BEGIN FOR i IN 0..($rows - 1) / 100000 LOOP
    UPDATE m SET status = 'consumed', shard_id = 'run-0-en-001-00001', updated_at = now()
    WHERE run_id = 'run-0' AND status = 'claimed' AND microshard_id BETWEEN i * 100000 + 1 AND (i + 1) * 100000; COMMIT; END LOOP; END \$\$"
  sql "SELECT '  HOT ' || 100 * n_tup_hot_upd / n_tup_upd || ' %, table ' || pg_size_pretty(pg_table_size('m')) || ', indexes ' || pg_size_pretty(pg_indexes_size('m'))
    FROM pg_stat_get_tuples_hot_updated('m'::regclass::oid) AS n_tup_hot_upd, pg_stat_get_tuples_updated('m'::regclass::oid) AS n_tup_upd"
}
measure "primary key only, fillfactor 100" 100 ""
measure "(run_id, microshard_id), fillfactor 100" 100 "$run_index"
measure "(run_id, microshard_id), fillfactor 45" 45 "$run_index"
measure "partial on pending and on claimed, fillfactor 100" 100 "$pending"
measure "partial on pending and on claimed, fillfactor 45" 45 "$pending"
