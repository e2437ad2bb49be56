//! `release`: what is unworked goes back to the manifest. What only waits to be retried is not unworked: its retry is
//! undone, so that it is failed again, with the sentence it had, and `retry` can bring it back (I1).

use rusqlite::params;

use crate::error::{Named, Result};
use crate::file::{Queue, now_ms};

/// What a held shard's `error` says where it was released; the statements of the queue have it as text.
pub(crate) const RELEASED: &str = "released to the manifest";

/// What `release` did to a snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Released {
    /// Microshards that are the manifest's again.
    pub microshards: u64,
    /// Microshards that were to be retried, and are failed again.
    pub failed_again: u64,
}

impl Queue {
    /// Takes a snapshot's unworked shards out of the queue: they become held, and stay so until a snapshot lists them
    /// again. Those that `retry` made are taken apart. Callers hold both locks, so claims are a dead runner's. The ids of
    /// the microshards that are released go to `each`.
    pub fn release_unworked(&self, snapshot: i64, each: &mut dyn FnMut(i64)) -> Result<Released> {
        self.transaction(|| {
            let failed_again = self.undo_retries(snapshot)?;
            self.execute(
                "UPDATE shards SET state = 5, owner = NULL, lease_expires_at = NULL, not_before = NULL, error = ?2
                 WHERE snapshot = ?1 AND state IN (0, 1, 2)",
                params![snapshot, RELEASED],
            )?;
            self.execute(
                "UPDATE shards SET error = ?2 WHERE snapshot = ?1 AND state = 5",
                params![snapshot, RELEASED],
            )?;
            self.execute("UPDATE snapshots SET released_at = ?2 WHERE snapshot = ?1", params![snapshot, now_ms()])?;
            Ok(Released { microshards: self.for_each_held(snapshot, each)?, failed_again })
        })
    }

    /// Takes apart the unworked shards that `retry` made; returns how many microshards are failed again.
    fn undo_retries(&self, snapshot: i64) -> Result<u64> {
        self.conn
            .execute_batch(
                "CREATE TEMP TABLE IF NOT EXISTS retries(shard INTEGER PRIMARY KEY);
                 CREATE TEMP TABLE IF NOT EXISTS origins(seq INTEGER PRIMARY KEY, copy INTEGER NOT NULL);
                 CREATE TEMP TABLE IF NOT EXISTS again(seq INTEGER PRIMARY KEY, shard INTEGER NOT NULL, sentence TEXT NOT NULL,
                   tries INTEGER NOT NULL, at INTEGER NOT NULL, synced_at INTEGER, refused TEXT);
                 DELETE FROM retries",
            )
            .named("write", &self.path)?;
        self.execute(
            "INSERT INTO retries SELECT DISTINCT e.retried_in FROM exceptions e JOIN shards s ON s.shard = e.retried_in
             WHERE s.snapshot = ?1 AND s.state IN (0, 1, 2, 5)",
            params![snapshot],
        )?;
        // The newest first: a retry of a retry goes back step by step.
        let retries: Vec<i64> = self
            .conn
            .prepare("SELECT shard FROM retries ORDER BY shard DESC")
            .and_then(|mut select| select.query_map([], |row| row.get(0))?.collect())
            .named("read", &self.path)?;
        let mut failed_again = 0;
        for shard in retries {
            failed_again += self.undo_retry(shard)?;
        }
        Ok(failed_again)
    }

    fn undo_retry(&self, shard: i64) -> Result<u64> {
        self.pair_with_copies(shard)?;
        // What failed here as well and is in yet another shard by now is looked for there.
        self.execute(
            "UPDATE exceptions SET retried_in = (SELECT c.retried_in FROM origins o JOIN exceptions c ON c.seq = o.copy
               WHERE o.seq = exceptions.seq)
             WHERE seq IN (SELECT o.seq FROM origins o JOIN exceptions c ON c.seq = o.copy WHERE c.state = 1)",
            params![],
        )?;
        let failed_again = self.fail_again(shard)?;
        self.remove_retry(shard)?;
        Ok(failed_again)
    }

    /// Which failure each of the shard's microshards is the copy of. Both have the same order: `retry` copied them so.
    fn pair_with_copies(&self, shard: i64) -> Result<()> {
        self.execute("DELETE FROM origins", params![])?;
        self.execute(
            "INSERT INTO origins SELECT e.seq, s.first - 1 + row_number() OVER (ORDER BY e.seq)
             FROM exceptions e JOIN shards s ON s.shard = e.retried_in WHERE e.retried_in = ?1",
            params![shard],
        )?;
        Ok(())
    }

    /// Written anew instead of changed, as the counters' triggers know the way from failed to retried only.
    fn fail_again(&self, shard: i64) -> Result<u64> {
        self.execute("DELETE FROM again", params![])?;
        self.execute(
            "INSERT INTO again SELECT seq, shard, sentence, tries, at, synced_at, refused FROM exceptions
             WHERE retried_in = ?1",
            params![shard],
        )?;
        self.execute("DELETE FROM exceptions WHERE seq IN (SELECT seq FROM again)", params![])?;
        let failed_again = self.execute(
            "INSERT INTO exceptions(seq, shard, state, sentence, tries, at, synced_at, refused)
             SELECT seq, shard, 0, sentence, tries, at, synced_at, refused FROM again",
            params![],
        )?;
        Ok(failed_again as u64)
    }

    fn remove_retry(&self, shard: i64) -> Result<()> {
        // Its name is on record: an object of it may be there, and another shard must not be called so.
        self.execute(
            "INSERT INTO meta SELECT 'retries:' || grp || ':' || snapshot, number FROM shards WHERE shard = ?1
             ON CONFLICT(key) DO UPDATE SET value = max(CAST(value AS INTEGER), CAST(excluded.value AS INTEGER))",
            params![shard],
        )?;
        self.execute("DELETE FROM exceptions WHERE shard = ?1", params![shard])?;
        for of_copies in [
            "DELETE FROM troubles WHERE seq BETWEEN (SELECT first FROM shards WHERE shard = ?1)
               AND (SELECT last FROM shards WHERE shard = ?1)",
            "DELETE FROM microshards WHERE seq BETWEEN (SELECT first FROM shards WHERE shard = ?1)
               AND (SELECT last FROM shards WHERE shard = ?1)",
            // Only what is held can be removed.
            "UPDATE shards SET state = 5, owner = NULL, lease_expires_at = NULL, not_before = NULL WHERE shard = ?1",
            "DELETE FROM shards WHERE shard = ?1",
        ] {
            self.execute(of_copies, params![shard])?;
        }
        Ok(())
    }
}
