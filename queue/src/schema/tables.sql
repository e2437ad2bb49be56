-- One file, one job: microshards planned into shards. Times are Unix milliseconds unless named otherwise.

CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE runs(
  run    INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE,
  weight INTEGER NOT NULL DEFAULT 1 CHECK(weight > 0),
  last_id INTEGER NOT NULL DEFAULT 0,        -- the greatest id of its microshards
  named  INTEGER NOT NULL DEFAULT 0,         -- 1: its microshards are in `names`, since its second snapshot
  turn   REAL NOT NULL DEFAULT 0             -- shards claimed / weight: the run with the smallest has the next turn
) STRICT;

CREATE TABLE snapshots(
  snapshot   INTEGER PRIMARY KEY,
  run        INTEGER NOT NULL REFERENCES runs,
  number     INTEGER NOT NULL,               -- within the run, as the manifest handed it out
  claim      TEXT NOT NULL,                  -- the caller's record of how the manifest is held; opaque here
  planned_at INTEGER,                        -- NULL while microshards are still being copied
  released_at INTEGER,
  UNIQUE(run, number)
) STRICT;

-- One row per (run, language): the counters, kept by triggers in the transactions that change what they count.
CREATE TABLE groups(
  grp INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs, language TEXT NOT NULL,
  pending     INTEGER NOT NULL DEFAULT 0 CHECK(pending     >= 0),   -- shards by state
  waiting     INTEGER NOT NULL DEFAULT 0 CHECK(waiting     >= 0),
  claimed     INTEGER NOT NULL DEFAULT 0 CHECK(claimed     >= 0),
  published   INTEGER NOT NULL DEFAULT 0 CHECK(published   >= 0),
  failed      INTEGER NOT NULL DEFAULT 0 CHECK(failed      >= 0),
  held        INTEGER NOT NULL DEFAULT 0 CHECK(held        >= 0),
  synced      INTEGER NOT NULL DEFAULT 0 CHECK(synced      >= 0),   -- of the published
  m_pending   INTEGER NOT NULL DEFAULT 0 CHECK(m_pending   >= 0),   -- microshards by their shard's state, exceptions left out
  m_claimed   INTEGER NOT NULL DEFAULT 0 CHECK(m_claimed   >= 0),
  m_published INTEGER NOT NULL DEFAULT 0 CHECK(m_published >= 0),
  m_held      INTEGER NOT NULL DEFAULT 0 CHECK(m_held      >= 0),
  m_failed    INTEGER NOT NULL DEFAULT 0 CHECK(m_failed    >= 0),   -- exceptions that failed
  work_left   INTEGER NOT NULL DEFAULT 0 CHECK(work_left   >= 0),   -- planned rows (or microshards) of live shards
  rows        INTEGER NOT NULL DEFAULT 0,                           -- rows, bytes of published shards
  bytes_in    INTEGER NOT NULL DEFAULT 0,
  bytes_out   INTEGER NOT NULL DEFAULT 0,
  UNIQUE(run, language)
) STRICT;

CREATE TABLE shards(
  shard    INTEGER PRIMARY KEY,              -- plan order
  grp      INTEGER NOT NULL REFERENCES groups,
  snapshot INTEGER NOT NULL REFERENCES snapshots,
  number   INTEGER NOT NULL,                 -- dense within (group, snapshot)
  name     TEXT NOT NULL UNIQUE,             -- base name of the object, without its extension
  first    INTEGER NOT NULL, last INTEGER NOT NULL CHECK(last >= first),   -- its microshards, by seq
  members  INTEGER NOT NULL CHECK(members >= 0),   -- of those, the ones that are no exceptions
  work     INTEGER NOT NULL CHECK(work >= 0),      -- planned rows, or microshards where the manifest has no counts
  rows_planned INTEGER,                            -- rows as the manifest counts them
  bytes_planned INTEGER,                           -- input bytes as the manifest counts them
  closed_by TEXT NOT NULL,                         -- which limit closed it
  state    INTEGER NOT NULL CHECK(state BETWEEN 0 AND 5),  -- 0 pending 1 waiting 2 claimed 3 published 4 failed 5 held
  attempt  INTEGER NOT NULL DEFAULT 0,       -- the fence: goes up at every claim
  lost     INTEGER NOT NULL DEFAULT 0,       -- leases that ran out
  deferrals INTEGER NOT NULL DEFAULT 0,      -- in a row, without progress
  owner TEXT, lease_expires_at INTEGER, not_before INTEGER,
  key TEXT, rows INTEGER, bytes_in INTEGER, bytes_out INTEGER, sha256 BLOB, published_at INTEGER,
  synced_at INTEGER, refused TEXT,           -- why sync-back refused it
  error TEXT,                                -- why it failed, waits or is held
  CHECK((state = 2) = (lease_expires_at IS NOT NULL)),
  CHECK((state = 2) = (owner IS NOT NULL)),
  CHECK((state = 1) = (not_before IS NOT NULL)),
  CHECK((state = 3) = (sha256 IS NOT NULL)),
  CHECK((state = 3) = (key IS NOT NULL AND rows IS NOT NULL AND bytes_out IS NOT NULL AND published_at IS NOT NULL)),
  CHECK(synced_at IS NULL OR state = 3),
  CHECK(state <> 4 OR error IS NOT NULL),
  UNIQUE(grp, snapshot, number)
) STRICT;

CREATE TABLE microshards(
  seq INTEGER PRIMARY KEY,                   -- plan order: a shard is one range of it
  run INTEGER NOT NULL, microshard_id INTEGER NOT NULL, uri TEXT NOT NULL,
  rows INTEGER, bytes INTEGER, sha256 BLOB,
  created_at INTEGER, updated_at INTEGER     -- Unix microseconds, as the manifest has them
) STRICT;

-- Microshards by hashes of their ids and uris; may name what is gone, so what is found is compared.
CREATE TABLE names(hash INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY(hash, seq)) STRICT, WITHOUT ROWID;

-- A microshard has a row here only while its state is not its shard's.
CREATE TABLE exceptions(
  seq INTEGER PRIMARY KEY REFERENCES microshards,
  shard INTEGER NOT NULL REFERENCES shards,
  state INTEGER NOT NULL CHECK(state IN (0, 1)),  -- 0 failed, 1 retried
  sentence TEXT NOT NULL, tries INTEGER NOT NULL, at INTEGER NOT NULL,
  retried_in INTEGER REFERENCES shards,
  synced_at INTEGER, refused TEXT,
  CHECK((state = 1) = (retried_in IS NOT NULL))
) STRICT;

-- Microshards that were tried in vain and are tried again: how often, since when, and why.
CREATE TABLE troubles(
  seq INTEGER PRIMARY KEY REFERENCES microshards,
  tries INTEGER NOT NULL, since INTEGER NOT NULL, deaths INTEGER NOT NULL DEFAULT 0, sentence TEXT NOT NULL
) STRICT;

-- Uploads in parts that have begun and are not known to have ended.
CREATE TABLE uploads(key TEXT NOT NULL, upload_id TEXT NOT NULL, PRIMARY KEY(key, upload_id)) STRICT, WITHOUT ROWID;

CREATE TABLE runner(
  one INTEGER PRIMARY KEY CHECK(one = 1),
  owner TEXT NOT NULL, pid INTEGER NOT NULL, host TEXT NOT NULL,
  started_at INTEGER NOT NULL, beat_at INTEGER NOT NULL, stopped_at INTEGER,
  deaths INTEGER NOT NULL DEFAULT 0          -- in a row, without a shard published
) STRICT;

CREATE TRIGGER shards_added AFTER INSERT ON shards BEGIN
  UPDATE groups SET
    pending = pending + (new.state = 0), held = held + (new.state = 5),
    m_pending = m_pending + new.members * (new.state = 0), m_held = m_held + new.members * (new.state = 5),
    work_left = work_left + new.work * (new.state = 0)
  WHERE grp = new.grp;
END;

CREATE TRIGGER shards_changed AFTER UPDATE OF state, members, synced_at ON shards BEGIN
  UPDATE groups SET
    pending     = pending     - (old.state = 0) + (new.state = 0),
    waiting     = waiting     - (old.state = 1) + (new.state = 1),
    claimed     = claimed     - (old.state = 2) + (new.state = 2),
    published   = published   - (old.state = 3) + (new.state = 3),
    failed      = failed      - (old.state = 4) + (new.state = 4),
    held        = held        - (old.state = 5) + (new.state = 5),
    synced      = synced      - (old.synced_at IS NOT NULL) + (new.synced_at IS NOT NULL),
    m_pending   = m_pending   - old.members * (old.state < 2) + new.members * (new.state < 2),
    m_claimed   = m_claimed   - old.members * (old.state = 2) + new.members * (new.state = 2),
    m_published = m_published - old.members * (old.state = 3) + new.members * (new.state = 3),
    m_held      = m_held      - old.members * (old.state = 5) + new.members * (new.state = 5),
    work_left   = work_left   - old.work * (old.state < 3) + new.work * (new.state < 3),
    rows        = rows        + iif(new.state = 3 AND old.state <> 3, new.rows, 0),
    bytes_in    = bytes_in    + iif(new.state = 3 AND old.state <> 3, new.bytes_in, 0),
    bytes_out   = bytes_out   + iif(new.state = 3 AND old.state <> 3, new.bytes_out, 0)
  WHERE grp = new.grp;
END;

CREATE TRIGGER shards_removed AFTER DELETE ON shards BEGIN
  UPDATE groups SET held = held - 1, m_held = m_held - old.members WHERE grp = old.grp;
  SELECT RAISE(ABORT, 'only a held shard can be taken apart') WHERE old.state <> 5;
END;

CREATE TRIGGER exceptions_added AFTER INSERT ON exceptions BEGIN
  UPDATE shards SET members = members - 1 WHERE shard = new.shard;
  UPDATE groups SET m_failed = m_failed + 1 WHERE grp = (SELECT grp FROM shards WHERE shard = new.shard);
END;

CREATE TRIGGER exceptions_retried AFTER UPDATE OF state ON exceptions WHEN old.state <> new.state BEGIN
  UPDATE groups SET m_failed = m_failed - 1 WHERE grp = (SELECT grp FROM shards WHERE shard = new.shard);
END;

CREATE TRIGGER exceptions_removed AFTER DELETE ON exceptions BEGIN
  UPDATE shards SET members = members + 1 WHERE shard = old.shard;
  UPDATE groups SET m_failed = m_failed - (old.state = 0)
  WHERE grp = (SELECT grp FROM shards WHERE shard = old.shard);
END;
