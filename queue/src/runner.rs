//! The runner's life: it starts by taking back the claims of the one that died, beats while it works, and says when it
//! stops. Callers hold the runner lock, so whoever held claims before is dead.

use rusqlite::{OptionalExtension, params};

use crate::claim::{Member, member};
use crate::error::{Error, Named, Result};
use crate::file::{Queue, now_ms};
use crate::finish::Failure;
use crate::lock::{Lock, LockKind};
use crate::step::{passed, sql_step};

/// Deaths of runners in a row without a shard published; then `run` refuses until somebody has looked.
pub const DEATHS_MAX: u32 = 6;
/// Deaths on one and the same microshard; then it fails.
const SUSPECT_DEATHS_MAX: u32 = 2;
const DIED: &str = "the process died while decoding it";
/// A beat that is older is called quiet: seven beats missed.
const QUIET_MS: i64 = 15_000;
/// Where there are no locks, a runner that has been quiet for so long may be taken over.
const TAKE_OVER_MS: i64 = 15 * 60_000;
/// Longer than any wait that is asked for.
const DEFERRED_MAX_MS: i64 = 3_600_000;

/// Read at every start, and nothing is decoded before. CROSS JOIN, in the order of `troubles`: left to itself SQLite
/// reads every microshard of the queue, so as not to sort. Public for the test that reads its query plan.
#[doc(hidden)]
pub const SUSPECTS: &str = "SELECT m.seq, m.microshard_id, m.uri, m.rows, m.bytes, m.sha256, t.tries, t.since
   FROM troubles t CROSS JOIN microshards m ON m.seq = t.seq WHERE t.deaths > 0 ORDER BY t.seq";

/// Who works on a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runner {
    /// Fresh for every run.
    pub owner: String,
    /// Process id.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// Unix milliseconds.
    pub started_at_ms: i64,
    /// Unix milliseconds.
    pub beat_at_ms: i64,
    /// Unix milliseconds; `None` while it works, or where it died.
    pub stopped_at_ms: Option<i64>,
    /// Deaths in a row without a shard published.
    pub deaths: u32,
}

/// How the runner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunnerState {
    /// At work, and beating.
    Running,
    /// It holds the lock but has not beaten for a while.
    Quiet,
    /// It left claims behind, and its lock is free.
    Dead,
    /// None is at work.
    Idle,
}

impl RunnerState {
    /// The word `status` prints.
    pub fn word(self) -> &'static str {
        match self {
            RunnerState::Running => "running",
            RunnerState::Quiet => "quiet",
            RunnerState::Dead => "dead",
            RunnerState::Idle => "idle",
        }
    }
}

/// What a starting runner found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Shards that a dead runner had claimed, pending again.
    pub shards: u64,
    /// Microshards that were being decoded when it died and are tried again.
    pub suspects: u64,
}

impl Queue {
    /// Starts a runner: claims of a dead one go back to pending at once, with the same members.
    /// `suspects` are the microshards that were being decoded when it died, by seq.
    ///
    /// # Errors
    /// After too many deaths in a row without progress: what the dead runner had is given back, but none starts. And
    /// where the queue cannot be written; then it is as it was.
    pub fn start_runner(&self, owner: &str, host: &str, suspects: &[i64]) -> Result<Recovery> {
        let (recovery, deaths) = self.transaction(|| self.take_over(owner, host, suspects))?;
        if deaths >= DEATHS_MAX {
            return Err(Error::Input(format!(
                "{deaths} runs in a row died without publishing a shard: look at the kernel's log (out of memory?), \
                 lower --memory or --builders, then run again"
            )));
        }
        Ok(recovery)
    }

    /// What was recovered, and the deaths in a row.
    fn take_over(&self, owner: &str, host: &str, suspects: &[i64]) -> Result<(Recovery, u32)> {
        self.mend_times()?;
        let recovery = self.recover(suspects)?;
        let died = recovery.shards > 0;
        let deaths = self.runner()?.map_or(0, |runner| runner.deaths) + u32::from(died);
        self.execute(
            "INSERT INTO runner(one, owner, pid, host, started_at, beat_at, deaths) VALUES(1, ?1, ?2, ?3, ?4, ?4, ?5)
             ON CONFLICT(one) DO UPDATE SET owner = ?1, pid = ?2, host = ?3, started_at = ?4, beat_at = ?4,
               stopped_at = NULL, deaths = ?5",
            params![owner, std::process::id(), host, now_ms(), deaths],
        )?;
        if deaths >= DEATHS_MAX {
            self.execute("UPDATE runner SET deaths = 0, stopped_at = ?1", params![now_ms()])?;
        }
        Ok((recovery, deaths))
    }

    fn recover(&self, suspects: &[i64]) -> Result<Recovery> {
        let shards = self
            .execute("UPDATE shards SET state = 0, owner = NULL, lease_expires_at = NULL WHERE state = 2", params![])?;
        let mut recovery = Recovery { shards: shards as u64, suspects: 0 };
        for seq in suspects {
            recovery.suspects += u64::from(self.suspect(*seq)?);
        }
        Ok(recovery)
    }

    /// Counts a death on a microshard; one that the process died on before fails. False where it is none of ours.
    fn suspect(&self, seq: i64) -> Result<bool> {
        let shard: Option<i64> = self
            .conn
            .query_row(
                "SELECT s.shard FROM shards s
                 WHERE s.shard = (SELECT shard FROM shards INDEXED BY shards_first WHERE first <= ?1 ORDER BY first DESC LIMIT 1)
                   AND s.state = 0 AND s.last >= ?1 AND NOT EXISTS (SELECT 1 FROM exceptions WHERE seq = ?1)",
                [seq],
                |row| row.get(0),
            )
            .optional()
            .named("read", &self.path)?;
        let Some(shard) = shard else { return Ok(false) };
        self.execute(
            "INSERT INTO troubles(seq, tries, since, deaths, sentence) VALUES(?1, 0, ?2, 1, ?3)
             ON CONFLICT(seq) DO UPDATE SET deaths = deaths + 1, sentence = ?3",
            params![seq, now_ms(), DIED],
        )?;
        let deaths: u32 = self
            .conn
            .query_row("SELECT deaths FROM troubles WHERE seq = ?1", [seq], |row| row.get(0))
            .named("read", &self.path)?;
        if deaths >= SUSPECT_DEATHS_MAX {
            let sentence = format!("{DIED}, and again when it was tried alone");
            self.add_exception(shard, &Failure { seq, sentence, tries: deaths })?;
        }
        Ok(true)
    }

    /// The microshards that a process died on and that have not been tried alone since.
    pub fn suspects(&self) -> Result<Vec<Member>> {
        self.conn
            .prepare(SUSPECTS)
            .and_then(|mut select| select.query_map([], member)?.collect())
            .named("read", &self.path)
    }

    /// The process did not die on it when it was tried alone: it is as good as any other.
    pub fn acquit(&self, seq: i64) -> Result<()> {
        self.execute("DELETE FROM troubles WHERE seq = ?1 AND tries = 0", params![seq])?;
        self.execute("UPDATE troubles SET deaths = 0 WHERE seq = ?1", params![seq])?;
        Ok(())
    }

    /// Nothing is deferred for so long: such a time comes from before the clock was set back.
    fn mend_times(&self) -> Result<()> {
        self.execute(
            "UPDATE shards SET not_before = ?1 WHERE state = 1 AND not_before > ?1 + ?2",
            params![now_ms(), DEFERRED_MAX_MS],
        )?;
        Ok(())
    }

    /// The runner's sign of life; `false` where another has taken over.
    pub(crate) fn beat(&self, owner: &str) -> Result<bool> {
        self.mend_times()?;
        let touched =
            self.execute("UPDATE runner SET beat_at = ?2 WHERE one = 1 AND owner = ?1", params![owner, now_ms()])?;
        Ok(touched == 1)
    }

    pub(crate) fn stop_runner(&self, owner: &str) -> Result<()> {
        self.execute("UPDATE runner SET stopped_at = ?2 WHERE one = 1 AND owner = ?1", params![owner, now_ms()])?;
        Ok(())
    }

    /// The last runner; `None` where there never was one.
    pub fn runner(&self) -> Result<Option<Runner>> {
        self.conn
            .query_row("SELECT owner, pid, host, started_at, beat_at, stopped_at, deaths FROM runner", [], |row| {
                Ok(Runner {
                    owner: row.get(0)?,
                    pid: row.get(1)?,
                    host: row.get(2)?,
                    started_at_ms: row.get(3)?,
                    beat_at_ms: row.get(4)?,
                    stopped_at_ms: row.get(5)?,
                    deaths: row.get(6)?,
                })
            })
            .optional()
            .named("read", &self.path)
    }

    /// How the runner is, judged by lock, claims and beat; where there are no locks, by the beat alone.
    pub fn runner_state(&self) -> Result<RunnerState> {
        let held = match Lock::is_held(&self.path, LockKind::Runner)? {
            Some(held) => held,
            None => self.may_be_at_work()?,
        };
        if held {
            let beat_at_ms = self.runner()?.map_or(0, |runner| runner.beat_at_ms);
            let quiet = now_ms().saturating_sub(beat_at_ms) > QUIET_MS;
            return Ok(if quiet { RunnerState::Quiet } else { RunnerState::Running });
        }
        let claims: i64 = self
            .conn
            .query_row("SELECT coalesce(sum(claimed), 0) FROM groups", [], |row| row.get(0))
            .named("read", &self.path)?;
        Ok(if claims > 0 { RunnerState::Dead } else { RunnerState::Idle })
    }

    /// Whether, going by the beat alone, another runner may still be at work: it has not stopped, and was not quiet for
    /// so long that it may be taken over. One that was taken over finds out at its next beat.
    pub fn may_be_at_work(&self) -> Result<bool> {
        let runner = self.runner()?;
        Ok(runner.is_some_and(|runner| {
            runner.stopped_at_ms.is_none() && now_ms().saturating_sub(runner.beat_at_ms) <= TAKE_OVER_MS
        }))
    }

    /// Keeps the record of an upload in parts.
    pub(crate) fn upload_started(&self, key: &str, upload_id: &str) -> Result<()> {
        self.execute("INSERT INTO uploads VALUES(?1, ?2) ON CONFLICT DO NOTHING", params![key, upload_id])?;
        Ok(())
    }

    /// The upload is completed or aborted.
    pub fn upload_ended(&self, key: &str, upload_id: &str) -> Result<()> {
        self.execute("DELETE FROM uploads WHERE key = ?1 AND upload_id = ?2", params![key, upload_id])?;
        Ok(())
    }

    /// Uploads that began and are not known to have ended: (key, upload id).
    pub fn uploads(&self) -> Result<Vec<(String, String)>> {
        self.conn
            .prepare("SELECT key, upload_id FROM uploads ORDER BY key, upload_id")
            .and_then(|mut select| select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
            .named("read", &self.path)
    }

    pub(crate) fn begin(&self) -> Result<()> {
        sql_step("queue: begin").and_then(|()| self.conn.execute_batch("BEGIN IMMEDIATE")).named("write", &self.path)
    }

    pub(crate) fn commit(&self) -> Result<()> {
        sql_step("queue: commit").and_then(|()| self.conn.execute_batch("COMMIT")).named("commit to", &self.path)?;
        passed("queue: committed");
        Ok(())
    }

    /// Runs `work` in one write transaction; rolled back on an error.
    pub fn transaction<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.begin()?;
        let result = work().and_then(|value| self.commit().map(|()| value));
        if result.is_err() {
            self.roll_back()?;
        }
        result
    }
}
