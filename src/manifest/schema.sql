-- The manifest's tables. `compact-local init-manifest` creates those that are absent and leaves the others alone.
--
-- Indexes and fillfactor, measured by benches/manifest_indexes.sh on 1,000,000 rows, one run of 500,000 claimed row by
-- row, then consumed in chunks of 50,000 (PostgreSQL 15, 2 cores; seconds and MB of WAL):
--
--   index beside the key, fillfactor           claim          consume       HOT     find expired   table at the end
--   (run_id, microshard_id), 45              2.0 s 315 MB   2.0 s  72 MB   100 %      0.4 s          521 MB
--   (run_id, microshard_id), 100             7.4 s 542 MB   7.3 s 263 MB     0 %      0.3 s          490 MB
--   none, 100                                4.6 s 484 MB   4.8 s 225 MB     0 %      0.2 s          490 MB
--   partial on pending and on claimed, 45    4.5 s 410 MB   4.9 s 112 MB     0 %      0.5 s          521 MB
--   partial on pending and on claimed, 100   5.3 s 516 MB   4.9 s 229 MB     0 %      0.2 s          490 MB
--
-- So no index holds a column that changes, not even in its predicate: then every update is HOT, as long as the page has
-- room for it. A snapshot claims once for a whole run, so the 0.4 s that finding the expired costs are paid rarely.

CREATE TABLE IF NOT EXISTS {microshards} (
    {microshard_id}    bigint PRIMARY KEY,
    {run_id}           text NOT NULL,
    {video_id}         text,
    {language}         text NOT NULL,
    {uri}              text NOT NULL,
    {segment_count}    integer,
    {byte_size}        bigint,
    {sha256}           text,
    {status}           text NOT NULL DEFAULT 'pending' CHECK ({status} IN ('pending', 'claimed', 'consumed', 'failed')),
    {claimed_by}       text,
    {claimed_at}       timestamptz,
    {lease_expires_at} timestamptz,
    {attempt_count}    integer NOT NULL DEFAULT 0,
    {error}            text,
    {shard_id}         text,
    {created_at}       timestamptz DEFAULT now(),
    {updated_at}       timestamptz DEFAULT now()
) WITH (fillfactor = 45);
CREATE INDEX IF NOT EXISTS {run_index} ON {microshards} ({run_id}, {microshard_id});

CREATE TABLE IF NOT EXISTS {shards} (
    shard_id         text PRIMARY KEY,
    run_id           text NOT NULL,
    language         text NOT NULL,
    seq              integer NOT NULL,
    uri              text NOT NULL,
    segment_count    bigint NOT NULL,
    microshard_count integer NOT NULL,
    byte_size        bigint NOT NULL,
    sha256           text NOT NULL,
    created_by       text,
    created_at       timestamptz DEFAULT now()
);

-- Which machine works on which hash slice of a run, with --claim slices.
CREATE TABLE IF NOT EXISTS {slices} (
    run_id           text NOT NULL,
    slice            smallint NOT NULL CHECK (slice BETWEEN 0 AND 63),
    claimed_by       text,
    lease_expires_at timestamptz,
    PRIMARY KEY (run_id, slice),
    CHECK ((claimed_by IS NULL) = (lease_expires_at IS NULL))
);

-- The last snapshot number handed out for a run: a part of every shard's name, so that machines never collide.
CREATE TABLE IF NOT EXISTS {snapshots} (
    run_id      text PRIMARY KEY,
    last_number integer NOT NULL CHECK (last_number > 0)
);
