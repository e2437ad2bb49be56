//! Taking a snapshot into the queue: microshards are staged, which sorts them, then `copying.rs` copies them in plan order
//! and cuts them. A first snapshot builds the file under another name; on any error the queue is as it was.

use std::path::{Path, PathBuf};

use crate::copying::Copying;
use crate::error::{Error, Named, Result};
use crate::file::{Queue, remove};
use crate::lock::{Acquired, Lock, LockKind, with_suffix};
use crate::staging::{Item, Staging};

/// What a group's new microshards come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupTotals {
    /// Their language.
    pub language: String,
    /// How many.
    pub microshards: u64,
    /// Rows; `None` where the manifest lacks a count.
    pub rows: Option<u64>,
    /// Bytes; `None` where the manifest lacks a size.
    pub bytes: Option<u64>,
}

impl GroupTotals {
    pub(crate) fn none_of(language: &str) -> GroupTotals {
        GroupTotals { language: language.to_owned(), microshards: 0, rows: Some(0), bytes: Some(0) }
    }

    pub(crate) fn add(&mut self, item: &Item) {
        self.microshards += 1;
        self.rows = self.rows.zip(item.rows).map(|(sum, rows)| sum + u64::from(rows));
        self.bytes = self.bytes.zip(item.bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
    }
}

/// The size of one microshard, as the manifest counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Rows, 0 where unknown.
    pub rows: u64,
    /// Bytes, 0 where unknown.
    pub bytes: u64,
}

/// One shard: so many of the group's next microshards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// How many, at least one.
    pub microshards: u64,
    /// Kept back, as an incomplete remainder.
    pub held: bool,
    /// What closed it, for `plan`: `rows`, `bytes`, `microshards`, `end`.
    pub closed_by: &'static str,
}

/// Calls its argument for each microshard of a group, in plan order; may be called more than once.
pub type SizesPass<'a> = dyn FnMut(&mut dyn FnMut(Size)) -> Result<()> + 'a;

/// Decides the shards; pure.
pub trait Planner {
    /// Cuts a group. The cuts must add up to the group's microshards.
    fn cut(&self, group: &GroupTotals, sizes: &mut SizesPass<'_>) -> Result<Vec<Cut>>;
}

/// Gives the base name of a shard's object from run, language, the snapshot's number and the shard's; pure.
pub type NameShard = dyn Fn(&str, &str, u32, u32) -> String;

/// Where a snapshot's number comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// The manifest has handed it out.
    Given(u32),
    /// The queue hands it out: the next it has not used, but not below this.
    From(u32),
}

/// The snapshot that is taken.
#[derive(Debug, Clone)]
pub struct NewSnapshot {
    /// The run.
    pub run_id: String,
    /// Its number within the run.
    pub number: Number,
    /// The caller's record of how the manifest is held.
    pub claim: String,
    /// Remainders of earlier snapshots went back to the manifest: what it does not list now is somebody else's.
    pub remainders_given_back: bool,
}

/// What a snapshot added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Planned {
    /// Microshards that are new in the queue.
    pub added: u64,
    /// Microshards that were there already.
    pub known: u64,
    /// Of the known, those that the manifest lists under another uri than the queue has, which stays as it is.
    pub known_elsewhere: u64,
    /// Shards planned, those held included.
    pub shards: u64,
    /// Microshards held back as remainders.
    pub held: u64,
    /// Rows planned; `None` where the manifest lacks counts.
    pub rows: Option<u64>,
    /// The snapshot's number.
    pub number: u32,
}

/// A snapshot being taken. Holds the intake lock.
#[derive(Debug)]
pub struct Intake {
    staging: Staging,
    path: PathBuf,
    _lock: Lock,
}

impl Intake {
    /// Begins a snapshot into `path`, which may or may not exist.
    ///
    /// # Errors
    /// Where another snapshot is at work on it, or it is no queue.
    pub fn begin(path: &Path) -> Result<Intake> {
        if path.try_exists().named("look for", path)? {
            Queue::open(path)?;
        }
        let Acquired::Ours(lock) = Lock::acquire(path, LockKind::Intake)? else {
            return Err(Error::Input(format!(
                "another snapshot or retry is at work on {}: wait for it to end",
                path.display()
            )));
        };
        if !path.exists() {
            refuse_foreign_log(path)?;
        }
        Ok(Intake { staging: Staging::create(&with_suffix(path, ".staged"))?, path: path.to_owned(), _lock: lock })
    }

    /// Adds one microshard.
    pub fn add(&mut self, item: &Item) -> Result<()> {
        self.staging.add(item)
    }

    /// Plans what was added and makes it part of the queue. On an error the queue is as it was.
    pub fn plan(mut self, snapshot: &NewSnapshot, planner: &dyn Planner, name: &NameShard) -> Result<Planned> {
        if self.path.exists() {
            let queue = Queue::open(&self.path)?;
            remove(&with_suffix(&self.path, ".loading"))?;
            queue.drop_unplanned()?;
            if !snapshot.remainders_given_back {
                queue.restage_held(&snapshot.run_id, &mut self.staging)?;
            }
            return Copying::new(&queue, false, snapshot)?.run(&mut self.staging, planner, name);
        }
        refuse_foreign_log(&self.path)?;
        let temporary = with_suffix(&self.path, ".loading");
        remove(&temporary)?;
        let result = self.plan_new(&temporary, snapshot, planner, name);
        if result.is_err() {
            remove(&temporary)?;
        }
        result
    }

    fn plan_new(
        &mut self,
        temporary: &Path,
        snapshot: &NewSnapshot,
        planner: &dyn Planner,
        name: &NameShard,
    ) -> Result<Planned> {
        let queue = Queue::create_new(temporary)?;
        let planned = Copying::new(&queue, true, snapshot)?.run(&mut self.staging, planner, name)?;
        queue.index_new()?;
        queue.finish_new(&self.path)?;
        Ok(planned)
    }
}

/// What a queue that was removed has left in its log would be read into the new one. It may be all that somebody has of
/// results, so it is not removed here.
fn refuse_foreign_log(path: &Path) -> Result<()> {
    let log = with_suffix(path, "-wal");
    match std::fs::metadata(&log) {
        Ok(metadata) if metadata.len() > 0 => Err(Error::Input(format!(
            "{} is the log of a queue file that is not here any more: put it back beside its file, or remove it with its \
             -shm, then snapshot again",
            log.display()
        ))),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).named("look for", &log),
        _ => Ok(()),
    }
}
