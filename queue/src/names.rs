//! What the manifest calls a microshard, its id and its uri, and who is called so already. The first snapshot of a run
//! only has to tell that it names nothing twice: its names are sorted and compared. They go into the table `names`, where
//! they can be looked up, when the run is snapshotted again.

use std::time::Instant;

use rusqlite::{OptionalExtension, Row, params};

use crate::error::{Error, Named, Result};
use crate::file::{Queue, SHORT_BATCH};
use crate::lock::with_suffix;
use crate::sorter::Sorter;
use crate::staging::Item;

/// Microshards read at a time, so that no read keeps the WAL from being reset.
const READ_BATCH: usize = 50_000;

/// Names on their way into order, each as a hash, with the seq of the microshard.
pub(crate) struct Names(Sorter);

impl Names {
    pub(crate) fn none_yet(queue: &Queue) -> Result<Names> {
        Sorter::create(&with_suffix(&queue.path, ".names")).map(Names)
    }

    pub(crate) fn add(&mut self, run: i64, seq: i64, id: i64, uri: &str) -> Result<()> {
        for hash in [id_hash(run, id), uri_hash(run, uri)] {
            self.0.add(|record| {
                record.extend_from_slice(&hash.to_be_bytes());
                record.extend_from_slice(&seq.to_be_bytes());
                16
            })?;
        }
        Ok(())
    }

    fn for_each(&mut self, mut each: impl FnMut(i64, i64) -> Result<()>) -> Result<()> {
        self.0.for_each(|key, _| {
            let number =
                |at: usize| key.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| i64::from_be_bytes(*bytes));
            match (number(0), number(8)) {
                (Some(hash), Some(seq)) => each(hash, seq),
                _ => Err(Error::Input("a name's record was damaged on disk: snapshot again".to_owned())),
            }
        })
    }
}

impl Queue {
    /// Room for the names of a run's first snapshot. For a later one there is none, and they are in the table.
    pub(crate) fn names_for(&self, run: i64) -> Result<Option<Names>> {
        let first: bool = self
            .conn
            .query_row("SELECT NOT EXISTS(SELECT 1 FROM groups WHERE run = ?1)", [run], |row| row.get(0))
            .named("read", &self.path)?;
        if first {
            return Names::none_yet(self).map(Some);
        }
        self.name_run(run)?;
        Ok(None)
    }

    /// Tells an id or a uri that two of these microshards share.
    pub(crate) fn check_unique(&self, names: &mut Names) -> Result<()> {
        let mut same = (0, Vec::new());
        names.for_each(|hash, seq| {
            if same.0 != hash {
                same = (hash, Vec::new());
            }
            for other in &same.1 {
                self.compare(*other, seq)?;
            }
            same.1.push(seq);
            Ok(())
        })
    }

    /// Their hashes are the same: are they?
    fn compare(&self, one: i64, other: i64) -> Result<()> {
        let named = |seq: i64| -> Result<(i64, String)> {
            self.conn
                .prepare_cached("SELECT microshard_id, uri FROM microshards WHERE seq = ?1")
                .and_then(|mut select| select.query_row([seq], |row| Ok((row.get(0)?, row.get(1)?))))
                .named("read", &self.path)
        };
        let ((id, uri), (other_id, other_uri)) = (named(one)?, named(other)?);
        match (one == other, id == other_id, uri == other_uri) {
            (false, true, _) => Err(duplicate_id(id)),
            (false, _, true) => Err(duplicate_uri(id, other_id)),
            _ => Ok(()),
        }
    }

    /// Puts the names of a run's microshards into the table, unless they are there. In short transactions, as a runner
    /// may be at work. Callers hold the intake lock.
    pub(crate) fn name_run(&self, run: i64) -> Result<()> {
        let named: bool = self
            .conn
            .query_row("SELECT named FROM runs WHERE run = ?1", [run], |row| row.get(0))
            .named("read", &self.path)?;
        if named {
            return Ok(());
        }
        let mut names = self.names_of(run)?;
        let mut batch = Vec::new();
        names.for_each(|hash, seq| {
            batch.push((hash, seq));
            if batch.len() < SHORT_BATCH {
                return Ok(());
            }
            self.add_names(batch.drain(..))
        })?;
        self.add_names(batch.drain(..))?;
        self.execute("UPDATE runs SET named = 1 WHERE run = ?1", params![run])?;
        Ok(())
    }

    fn names_of(&self, run: i64) -> Result<Names> {
        let mut names = Names::none_yet(self)?;
        let last: i64 = self
            .conn
            .query_row("SELECT coalesce(max(seq), 0) FROM microshards", [], |row| row.get(0))
            .named("read", &self.path)?;
        let mut select = self
            .conn
            .prepare("SELECT seq, microshard_id, uri FROM microshards WHERE seq BETWEEN ?1 AND ?2 AND run = ?3")
            .named("read", &self.path)?;
        for first in (0..=last).step_by(READ_BATCH) {
            let mut rows = select.query([first, first + READ_BATCH as i64 - 1, run]).named("read", &self.path)?;
            while let Some(row) = rows.next().named("read", &self.path)? {
                let (seq, id, uri) = name(row).named("read", &self.path)?;
                names.add(run, seq, id, uri)?;
            }
        }
        Ok(names)
    }

    fn add_names(&self, names: impl Iterator<Item = (i64, i64)>) -> Result<()> {
        let begun = Instant::now();
        self.transaction(|| {
            for (hash, seq) in names {
                self.add_name(hash, seq)?;
            }
            Ok(())
        })?;
        self.give_way(begun.elapsed())
    }

    fn add_name(&self, hash: i64, seq: i64) -> Result<()> {
        // It may be there: from a snapshot that was killed.
        self.execute("INSERT INTO names VALUES(?1, ?2) ON CONFLICT DO NOTHING", params![hash, seq])?;
        Ok(())
    }

    /// Puts the names of one microshard into the table, inside the caller's transaction.
    pub(crate) fn name_microshard(&self, run: i64, seq: i64, id: i64, uri: &str) -> Result<()> {
        self.add_name(id_hash(run, id), seq)?;
        self.add_name(uri_hash(run, uri), seq)
    }

    /// The newest microshard of the run with this id: its seq, and whether it has this uri. The run is named.
    pub(crate) fn with_id(&self, run: i64, id: i64, uri: &str) -> Result<Option<(i64, bool)>> {
        self.conn
            .prepare_cached(
                "SELECT m.seq, m.uri = ?4 FROM names n JOIN microshards m ON m.seq = n.seq
                 WHERE n.hash = ?1 AND m.run = ?2 AND m.microshard_id = ?3 ORDER BY n.seq DESC LIMIT 1",
            )
            .and_then(|mut select| {
                let values = params![id_hash(run, id), run, id, uri];
                select.query_row(values, |row| Ok((row.get(0)?, row.get(1)?))).optional()
            })
            .named("read", &self.path)
    }

    /// The newest microshard of the run with this uri: its seq and id. The run is named.
    pub(crate) fn with_uri(&self, run: i64, uri: &str) -> Result<Option<(i64, i64)>> {
        self.conn
            .prepare_cached(
                "SELECT m.seq, m.microshard_id FROM names n JOIN microshards m ON m.seq = n.seq
                 WHERE n.hash = ?1 AND m.run = ?2 AND m.uri = ?3 ORDER BY n.seq DESC LIMIT 1",
            )
            .and_then(|mut select| {
                let values = params![uri_hash(run, uri), run, uri];
                select.query_row(values, |row| Ok((row.get(0)?, row.get(1)?))).optional()
            })
            .named("read", &self.path)
    }

    /// The newest microshard of the run that has the item's id, or else its uri. The run is named.
    pub(crate) fn find(&self, run: i64, item: &Item) -> Result<Option<i64>> {
        if let Some(id) = item.microshard_id
            && let Some((seq, _)) = self.with_id(run, id, &item.uri)?
        {
            return Ok(Some(seq));
        }
        Ok(self.with_uri(run, &item.uri)?.map(|(seq, _)| seq))
    }
}

fn name<'row>(row: &'row Row<'_>) -> rusqlite::Result<(i64, i64, &'row str)> {
    Ok((row.get(0)?, row.get(1)?, row.get_ref(2)?.as_str()?))
}

pub(crate) fn duplicate_id(id: i64) -> Error {
    Error::Input(format!("the manifest lists microshard {id} twice: its rows would be written twice"))
}

/// The uri itself may hold a secret.
pub(crate) fn duplicate_uri(one: i64, other: i64) -> Error {
    Error::Input(format!(
        "the manifest lists one uri twice, as microshards {one} and {other}: its rows would be written twice"
    ))
}

/// FNV-1a: hashes only narrow a search, what they name is then compared.
fn hash(seed: i64, bytes: &[u8]) -> i64 {
    let start = 0xcbf2_9ce4_8422_2325_u64 ^ seed as u64;
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)) as i64
}

fn id_hash(run: i64, id: i64) -> i64 {
    hash(run, &id.to_le_bytes())
}

fn uri_hash(run: i64, uri: &str) -> i64 {
    hash(run, uri.as_bytes())
}
