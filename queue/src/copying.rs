//! From staging into the queue, in plan order. Microshards are copied in short transactions, so that a runner at work is
//! not held up; they count only when the last transaction adds their shards. What a killed snapshot leaves behind lies
//! beyond the last shard and is removed by the next one.

use std::time::Instant;

use rusqlite::{Row, Statement, params};

use crate::error::{Error, Named, Result};
use crate::file::{Queue, SHORT_BATCH, now_ms};
use crate::intake::{Cut, GroupTotals, NameShard, NewSnapshot, Number, Planned, Planner, Size};
use crate::names::{Names, duplicate_id, duplicate_uri};
use crate::reopening::Ranges;
use crate::staging::{Item, NAME_MAX, Staging};
use crate::step::sql_step;

const INSERT: &str = "INSERT INTO microshards(run, microshard_id, uri, rows, bytes, sha256, created_at, updated_at)
   VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

/// A group's range in the queue.
struct Group {
    totals: GroupTotals,
    first: i64,
    last: i64,
}

/// The copy from staging to queue, and the cutting.
pub(crate) struct Copying<'a> {
    queue: &'a Queue,
    /// The file is being loaded for the first time: nobody else has it open.
    new: bool,
    /// The run's names, where this is its first snapshot; else they are in the table.
    names: Option<Names>,
    /// What is planned anew where the manifest lists it again.
    reopened: Ranges,
    run: i64,
    snapshot: i64,
    run_id: String,
    first_new: i64,
    next_id: i64,
    groups: Vec<Group>,
    planned: Planned,
}

impl<'a> Copying<'a> {
    pub(crate) fn new(queue: &'a Queue, new: bool, snapshot: &NewSnapshot) -> Result<Copying<'a>> {
        let conn = &queue.conn;
        let path = &queue.path;
        if snapshot.run_id.len() > NAME_MAX {
            let bytes = snapshot.run_id.len();
            return Err(Error::Input(format!(
                "the run id has {bytes} bytes, at most {NAME_MAX} fit into the names of shards"
            )));
        }
        sql_step("copying: begin").and_then(|()| conn.execute_batch("BEGIN IMMEDIATE")).named("write", path)?;
        conn.execute("INSERT INTO runs(run_id) VALUES(?1) ON CONFLICT DO NOTHING", [&snapshot.run_id])
            .named("write", path)?;
        let run: i64 = conn
            .query_row("SELECT run FROM runs WHERE run_id = ?1", [&snapshot.run_id], |row| row.get(0))
            .named("read", path)?;
        let number = match snapshot.number {
            Number::Given(number) => number,
            Number::From(least) => conn
                .query_row(
                    "SELECT max(?2, coalesce(max(number) + 1, 0)) FROM snapshots WHERE run = ?1",
                    params![run, least],
                    |row| row.get(0),
                )
                .named("read", path)?,
        };
        conn.execute(
            "INSERT INTO snapshots(run, number, claim) VALUES(?1, ?2, ?3)",
            params![run, number, snapshot.claim],
        )
        .named("write", path)?;
        let snapshot_row = conn.last_insert_rowid();
        let (first_new, next_id) = conn
            .query_row(
                "SELECT (SELECT coalesce(max(seq), 0) + 1 FROM microshards), last_id + 1 FROM runs WHERE run = ?1",
                [run],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .named("read", path)?;
        sql_step("copying: commit").and_then(|()| conn.execute_batch("COMMIT")).named("write", path)?;
        let names = queue.names_for(run)?;
        let reopened = if names.is_some() { Ranges::default() } else { queue.reopened(run)? };
        Ok(Copying {
            queue,
            new,
            names,
            reopened,
            run,
            snapshot: snapshot_row,
            run_id: snapshot.run_id.clone(),
            first_new,
            next_id,
            groups: Vec::new(),
            planned: Planned { number, ..Planned::default() },
        })
    }

    pub(crate) fn run(mut self, staging: &mut Staging, planner: &dyn Planner, name: &NameShard) -> Result<Planned> {
        let result = self.copy(staging).and_then(|()| self.check_unique()).and_then(|()| self.plan(planner, name));
        if let Err(error) = result {
            if !self.new {
                // Where that fails too, as on a full disk, the first error says why; the next snapshot cleans up.
                let _ = self.queue.roll_back().and_then(|()| self.queue.drop_unplanned());
            }
            return Err(error);
        }
        Ok(self.planned)
    }

    fn copy(&mut self, staging: &mut Staging) -> Result<()> {
        let path = &self.queue.path;
        let conn = &self.queue.conn;
        sql_step("copying: begin").and_then(|()| conn.execute_batch("BEGIN IMMEDIATE")).named("write", path)?;
        let mut insert = conn.prepare(INSERT).named("write", path)?;
        let mut seen = 0;
        let mut begun = Instant::now();
        staging.for_each_in_plan_order(|item| {
            seen += 1;
            if seen % SHORT_BATCH == 0 && !self.new {
                sql_step("copying: commit").and_then(|()| conn.execute_batch("COMMIT")).named("write", path)?;
                self.queue.give_way(begun.elapsed())?;
                sql_step("copying: begin").and_then(|()| conn.execute_batch("BEGIN IMMEDIATE")).named("write", path)?;
                begun = Instant::now();
            }
            if self.names.is_none()
                && let Some(same_uri) = self.known(item)?
            {
                self.planned.known += 1;
                self.planned.known_elsewhere += u64::from(!same_uri);
                return Ok(());
            }
            self.insert(&mut insert, item)
        })?;
        sql_step("copying: commit").and_then(|()| conn.execute_batch("COMMIT")).named("write", path)
    }

    fn check_unique(&mut self) -> Result<()> {
        self.names.take().map_or(Ok(()), |mut names| self.queue.check_unique(&mut names))
    }

    /// Whether an earlier snapshot brought this microshard, and then whether with the same uri. The same id or uri twice in
    /// one manifest is an error.
    fn known(&self, item: &Item) -> Result<Option<bool>> {
        if let Some(id) = item.microshard_id
            && let Some((seq, same_uri)) = self.queue.with_id(self.run, id, &item.uri)?
        {
            if seq >= self.first_new {
                return Err(duplicate_id(id));
            }
            if !self.reopened.contain(seq) {
                return Ok(Some(same_uri));
            }
            // It is planned anew, and the manifest may have given it another uri meanwhile.
            return match self.queue.with_uri(self.run, &item.uri)? {
                Some((seq, other)) if !self.reopened.contain(seq) => Err(duplicate_uri(other, id)),
                _ => Ok(None),
            };
        }
        match (self.queue.with_uri(self.run, &item.uri)?, item.microshard_id) {
            (Some((_, other)), Some(id)) => Err(duplicate_uri(other, id)),
            (Some((seq, other)), None) if seq >= self.first_new => Err(duplicate_uri(other, self.next_id)),
            (Some((seq, _)), None) => Ok((!self.reopened.contain(seq)).then_some(true)),
            (None, _) => Ok(None),
        }
    }

    fn insert(&mut self, insert: &mut Statement<'_>, item: &Item) -> Result<()> {
        let id = item.microshard_id.unwrap_or(self.next_id);
        self.next_id = self.next_id.max(id.saturating_add(1));
        let seq = insert
            .insert(params![
                self.run,
                id,
                item.uri,
                item.rows,
                item.bytes.map(|bytes| bytes as i64),
                item.sha256,
                item.created_at,
                item.updated_at
            ])
            .named("write", &self.queue.path)?;
        match &mut self.names {
            Some(names) => names.add(self.run, seq, id, &item.uri)?,
            None => self.queue.name_microshard(self.run, seq, id, &item.uri)?,
        }
        self.planned.added += 1;
        self.count(item, seq);
        Ok(())
    }

    fn count(&mut self, item: &Item, seq: i64) {
        if self.groups.last().is_none_or(|group| group.totals.language != item.language) {
            self.groups.push(Group { totals: GroupTotals::none_of(&item.language), first: seq, last: seq });
        }
        if let Some(group) = self.groups.last_mut() {
            group.last = seq;
            group.totals.add(item);
        }
    }

    /// Cuts every group and adds the shards, in one transaction: the moment the snapshot counts.
    fn plan(&mut self, planner: &dyn Planner, name: &NameShard) -> Result<()> {
        let path = &self.queue.path;
        let conn = &self.queue.conn;
        let cuts = self
            .groups
            .iter()
            .map(|group| planner.cut(&group.totals, &mut |each| self.queue.sizes(group.first, group.last, each)))
            .collect::<Result<Vec<_>>>()?;
        sql_step("copying: begin").and_then(|()| conn.execute_batch("BEGIN IMMEDIATE")).named("write", path)?;
        self.queue.drop_held(self.run, self.first_new)?;
        self.planned.rows = Some(0);
        for (group, cuts) in self.groups.iter().zip(cuts) {
            let sum: u64 = cuts.iter().map(|cut| cut.microshards).sum();
            assert_eq!(sum, group.totals.microshards, "the plan of {} loses microshards", group.totals.language);
            self.planned.rows = self.planned.rows.zip(group.totals.rows).map(|(sum, rows)| sum + rows);
            self.planned.shards += cuts.len() as u64;
            self.planned.held += cuts.iter().filter(|cut| cut.held).map(|cut| cut.microshards).sum::<u64>();
            self.add_shards(group, &cuts, name)?;
        }
        // Turns are taken from now on, also beside runs that are done: they may come back (`TAKE_TURN`).
        conn.execute(
            "UPDATE runs SET last_id = ?2, turn = max(turn, coalesce((SELECT min(r.turn) FROM runs r
               JOIN groups g ON g.run = r.run WHERE r.run <> ?1), 0)) WHERE run = ?1",
            [self.run, self.next_id - 1],
        )
        .named("write", path)?;
        conn.execute("UPDATE snapshots SET planned_at = ?2 WHERE snapshot = ?1", params![self.snapshot, now_ms()])
            .named("write", path)?;
        sql_step("copying: commit").and_then(|()| conn.execute_batch("COMMIT")).named("write", path)
    }

    fn add_shards(&self, group: &Group, cuts: &[Cut], name: &NameShard) -> Result<()> {
        let path = &self.queue.path;
        let language = &group.totals.language;
        let grp = self.queue.group(self.run, language)?;
        let mut first = group.first;
        for (number, cut) in (0_u32..).zip(cuts) {
            let last = first + cut.microshards as i64 - 1;
            let shard_name = name(&self.run_id, language, self.planned.number, number);
            let added = self
                .queue
                .conn
                .prepare_cached(
                    "INSERT INTO shards(grp, snapshot, number, name, first, last, members, work, rows_planned, bytes_planned, closed_by, state)
                     SELECT ?1, ?2, ?3, ?4, ?5, ?6, count(*), iif(count(rows) = count(*), sum(rows), count(*)),
                            iif(count(rows) = count(*), sum(rows), NULL),
                            iif(count(bytes) = count(*), sum(bytes), NULL), ?7, ?8
                     FROM microshards WHERE seq BETWEEN ?5 AND ?6",
                )
                .and_then(|mut insert| {
                    insert.execute(params![
                        grp,
                        self.snapshot,
                        number,
                        shard_name,
                        first,
                        last,
                        cut.closed_by,
                        if cut.held { 5 } else { 0 }
                    ])
                });
            if let Err(error) = &added
                && error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation)
            {
                return Err(Error::Input(format!(
                    "the shard name {shard_name} of language {language:?} is taken by another run or language: \
                     names are reduced to [A-Za-z0-9_.-], so rename one of them"
                )));
            }
            added.named("write", path)?;
            first = last + 1;
        }
        Ok(())
    }
}

impl Queue {
    /// The row of (run, language), made where it is absent.
    pub(crate) fn group(&self, run: i64, language: &str) -> Result<i64> {
        self.conn
            .prepare_cached("INSERT INTO groups(run, language) VALUES(?1, ?2) ON CONFLICT DO NOTHING")
            .and_then(|mut insert| insert.execute(params![run, language]))
            .named("write", &self.path)?;
        self.conn
            .query_row("SELECT grp FROM groups WHERE run = ?1 AND language = ?2", params![run, language], |row| {
                row.get(0)
            })
            .named("read", &self.path)
    }

    fn sizes(&self, first: i64, last: i64, each: &mut dyn FnMut(Size)) -> Result<()> {
        let mut select = self
            .conn
            .prepare_cached(
                "SELECT coalesce(rows, 0), coalesce(bytes, 0) FROM microshards WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq",
            )
            .named("read", &self.path)?;
        let mut rows = select.query([first, last]).named("read", &self.path)?;
        while let Some(row) = rows.next().named("read", &self.path)? {
            each(size(row).named("read", &self.path)?);
        }
        Ok(())
    }

    /// Ends a transaction that an error left open.
    pub(crate) fn roll_back(&self) -> Result<()> {
        if self.conn.is_autocommit() {
            return Ok(());
        }
        self.conn.execute_batch("ROLLBACK").named("roll back", &self.path)
    }
}

fn size(row: &Row<'_>) -> rusqlite::Result<Size> {
    Ok(Size { rows: row.get::<_, i64>(0)? as u64, bytes: row.get::<_, i64>(1)? as u64 })
}
