-- Partial over the live slice, so that no claim ever walks what is done. Built after the first load. Never ANALYZE: it
-- makes the planner prefer scans for the rest of the run.
CREATE INDEX shards_pending  ON shards(grp)              WHERE state = 0;   -- the rowid is its tail: plan order
CREATE INDEX shards_waiting  ON shards(not_before)       WHERE state = 1;
CREATE INDEX shards_claimed  ON shards(lease_expires_at) WHERE state = 2;
CREATE INDEX shards_held     ON shards(grp)              WHERE state = 5;
CREATE INDEX shards_unsynced ON shards(shard)            WHERE state = 3 AND synced_at IS NULL AND refused IS NULL;
CREATE INDEX shards_first    ON shards(first);
CREATE INDEX exceptions_shard ON exceptions(shard);
CREATE INDEX exceptions_unsynced ON exceptions(seq)      WHERE state = 0 AND synced_at IS NULL AND refused IS NULL;
CREATE INDEX groups_pending  ON groups(run)              WHERE pending > 0;
CREATE INDEX runs_turn       ON runs(turn);
