//! Results back to Postgres, a chunk in one short transaction (I4): the shard's row and its microshards' state become
//! true together or not at all. A shard is accepted only if nobody else has touched any of its microshards since the
//! snapshot (I1); it is refused whole. Running the same chunk again changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use postgres::Transaction;
use postgres_protocol::escape::escape_literal;

use super::check::{self, Purpose, Shape};
use super::predicate::required;
use super::stage::{Chunk, array};
use super::{Claim, ClaimMode, Names, Postgres, SyncFailure, SyncShard, Synced, release};

impl Postgres {
    /// Writes one chunk: what became of each shard, and of each failure, in their order. An error means that nothing of
    /// the chunk was written, or that all was and the answer was lost: running it again is right in both cases.
    pub fn sync_back(
        &mut self,
        claim: &Claim,
        shards: &[SyncShard],
        failures: &[SyncFailure],
    ) -> Result<(Vec<Synced>, Vec<Synced>)> {
        if shards.is_empty() && failures.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let chunk = Chunk::new(shards, failures)?;
        let mut synced = self.repeat("sync back", |transaction, names, _| {
            let shape = check::microshards(transaction, names, Purpose::Sync(claim.mode))?;
            let has_created_by = check::shards(transaction, names)?;
            chunk.stage(transaction, names, &shape, claim)?;
            Writer { transaction, names, shape: &shape, claim, chunk: &chunk }.write(has_created_by)
        })?;
        let of_failures = synced.split_off(shards.len());
        Ok((synced, of_failures))
    }
}

/// How the members of one group are.
#[derive(Clone, Copy, Default)]
struct Tally {
    /// As the group wants them.
    already: usize,
    /// As the snapshot left them.
    ours: usize,
}

/// Writes a chunk that is staged: its rows are locked and judged.
struct Writer<'a, 't> {
    transaction: &'a mut Transaction<'t>,
    names: &'a Names,
    shape: &'a Shape,
    claim: &'a Claim,
    chunk: &'a Chunk<'a>,
}

impl Writer<'_, '_> {
    #[expect(
        clippy::indexing_slicing,
        reason = "groups are the places of shards and failures, and `tallies` has one for each"
    )]
    fn write(mut self, has_created_by: bool) -> Result<Vec<Synced>> {
        let tallies = self.tallies()?;
        let mut refused = self.touched()?;
        let shards = self.chunk.shards.len();
        let accepted = |refused: &BTreeMap<usize, String>, group: &usize| !refused.contains_key(group);
        // Without rows there is no object: its microshards are consumed, and the table of shards never hears of it.
        let has_object = |group: &usize| self.chunk.shards[*group].rows > 0;

        // A shard that consumed microshards before must be in the table: only a new one is inserted.
        let new = (0..shards)
            .filter(|group| accepted(&refused, group) && has_object(group) && tallies[*group].already == 0)
            .collect::<Vec<_>>();
        let inserted = self.insert_shards(&new, has_created_by)?;
        let known = (0..shards).filter(|group| accepted(&refused, group) && has_object(group)).collect::<Vec<_>>();
        refused.extend(self.differing_shards(&known)?);

        let to_write = |groups: std::ops::Range<usize>| {
            groups.filter(|group| accepted(&refused, group) && tallies[*group].ours > 0).collect::<Vec<_>>()
        };
        let rows = |groups: &[usize]| groups.iter().map(|group| tallies[*group].ours as u64).sum::<u64>();
        let consumed = to_write(0..shards);
        let failed = to_write(shards..tallies.len());
        self.update(&consumed, "consumed", rows(&consumed))?;
        self.update(&failed, "failed", rows(&failed))?;
        self.give_back(&refused)?;

        let verdict = |group: usize| match refused.remove(&group) {
            Some(why) => Synced::Refused(why),
            None if tallies[group].ours > 0 || inserted.contains(&group) => Synced::Written,
            None => Synced::Already,
        };
        Ok((0..tallies.len()).map(verdict).collect())
    }

    fn tallies(&mut self) -> Result<Vec<Tally>> {
        let sql = "SELECT group_no, count(*) FILTER (WHERE verdict = 'already'), count(*) FILTER (WHERE verdict = 'ours') \
                   FROM pg_temp.compact_seen GROUP BY group_no";
        let mut tallies = vec![Tally::default(); self.chunk.shards.len() + self.chunk.failures.len()];
        for row in self.transaction.query_typed(sql, &[])? {
            let (group, already, ours): (i32, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let tally = Tally { already: usize::try_from(already)?, ours: usize::try_from(ours)? };
            let group = usize::try_from(group)?;
            // More rows than members: ids are not unique there, and no update of ours would be right.
            ensure!(
                tally.already + tally.ours <= self.chunk.size(group),
                "column `{}` of `{}` is not unique: make it the primary key",
                self.names.theirs("microshard_id"),
                self.names.table
            );
            *tallies.get_mut(group).context("a group that was not sent")? = tally;
        }
        Ok(tallies)
    }

    /// The groups in which somebody else has touched a row, and how the first such row is now.
    fn touched(&mut self) -> Result<BTreeMap<usize, String>> {
        let sql = "SELECT DISTINCT ON (m.group_no) m.group_no, m.member_id, s.status, s.shard_id, s.claimed_by, \
                   s.member_id IS NOT NULL, count(*) OVER (PARTITION BY m.group_no) \
                   FROM pg_temp.compact_members m LEFT JOIN pg_temp.compact_seen s USING (group_no, member_id) \
                   WHERE s.verdict IS NULL OR s.verdict = 'touched' ORDER BY m.group_no, m.member_id";
        let mut touched = BTreeMap::new();
        for row in self.transaction.query_typed(sql, &[])? {
            let (group, id, count): (i32, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(6)?);
            let text = |at: usize| row.try_get::<_, Option<&str>>(at);
            let how = if row.try_get(5)? {
                describe(text(2)?, text(3)?, text(4)?, self.claim)
            } else {
                "is no longer in the manifest".to_owned()
            };
            let more = if count > 1 { format!(" (and {} more were touched)", count - 1) } else { String::new() };
            touched.insert(usize::try_from(group)?, format!("microshard {id} {how}{more}"));
        }
        Ok(touched)
    }

    /// Inserts the shards' rows where there are none, and returns the groups for which there were none.
    fn insert_shards(&mut self, groups: &[usize], has_created_by: bool) -> Result<BTreeSet<usize>> {
        let (column, value) = match has_created_by {
            true => (", created_by", format!(", {}", escape_literal(&self.claim.claimed_by))),
            false => ("", String::new()),
        };
        // In the order of the key, so that two machines cannot wait for each other.
        let sql = format!(
            "WITH inserted AS (INSERT INTO {} (shard_id, run_id, language, seq, uri, segment_count, microshard_count, \
             byte_size, sha256{column}) SELECT shard_id, {}, language, seq, uri, rows, members, bytes, sha256{value} \
             FROM pg_temp.compact_groups WHERE group_no = ANY ({}) ORDER BY shard_id \
             ON CONFLICT (shard_id) DO NOTHING RETURNING shard_id) \
             SELECT g.group_no FROM inserted i JOIN pg_temp.compact_groups g ON g.shard_id = i.shard_id",
            self.names.shards()?,
            escape_literal(&self.claim.run_id),
            array(groups),
        );
        let rows = self.transaction.query_typed(&sql, &[])?;
        rows.iter().map(|row| Ok(usize::try_from(row.try_get::<_, i32>(0)?)?)).collect()
    }

    /// The groups whose shard's row is missing or says something else than we would have written.
    fn differing_shards(&mut self, groups: &[usize]) -> Result<BTreeMap<usize, String>> {
        let sql = format!(
            "SELECT g.group_no, g.shard_id, s.shard_id IS NOT NULL, s.sha256::text, s.byte_size::text, s.uri::text \
             FROM pg_temp.compact_groups g LEFT JOIN {} s ON s.shard_id = g.shard_id WHERE g.group_no = ANY ({}) AND NOT \
             coalesce(s.sha256 = g.sha256 AND s.byte_size = g.bytes AND s.segment_count = g.rows AND s.uri = g.uri \
             AND s.microshard_count = g.members AND s.run_id = {}, false)",
            self.names.shards()?,
            array(groups),
            escape_literal(&self.claim.run_id),
        );
        let mut differing = BTreeMap::new();
        for row in self.transaction.query_typed(&sql, &[])? {
            let (group, shard_id, exists): (i32, &str, bool) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let text = |at: usize| row.try_get::<_, Option<&str>>(at).map(|text| text.unwrap_or("unknown"));
            let table = &self.names.shards_table;
            let why = match exists {
                true => {
                    let (sha256, bytes, uri) = (text(3)?, text(4)?, text(5)?);
                    format!("`{table}` has another shard {shard_id}: {uri}, {bytes} bytes, sha256 {sha256}")
                }
                false => format!("its microshards are consumed by shard {shard_id}, which `{table}` does not have"),
            };
            differing.insert(usize::try_from(group)?, why);
        }
        Ok(differing)
    }

    /// Ends the microshards of `groups` in `state`; `rows` of them, or it is an error (I5).
    fn update(&mut self, groups: &[usize], state: &str, rows: u64) -> Result<()> {
        if groups.is_empty() {
            return Ok(());
        }
        let (id, (low, high)) = (required(self.shape, "microshard_id")?, self.chunk.range);
        let attempts = self.shape.column("attempt_count").unwrap_or_default();
        let set = [
            ("status", escape_literal(state)),
            ("shard_id", "g.shard_id".to_owned()),
            ("claimed_by", escape_literal(&self.claim.claimed_by)),
            ("lease_expires_at", "NULL".to_owned()),
            ("error", "g.sentence".to_owned()),
            ("attempt_count", format!("greatest({attempts}, g.attempts)")),
            ("updated_at", "now()".to_owned()),
        ];
        let set = set.iter().map(|(ours, value)| (*ours, value.as_str())).collect::<Vec<_>>();
        let sql = format!(
            "UPDATE {} AS t SET {} FROM pg_temp.compact_seen s JOIN pg_temp.compact_groups g USING (group_no) \
             WHERE s.group_no = ANY ({}) AND s.verdict = 'ours' AND {id} = s.member_id AND {id} BETWEEN {low} AND {high}",
            self.names.microshards()?,
            self.shape.set(self.names, &set),
            array(groups),
        );
        let updated = self.transaction.execute_typed(&sql, &[])?;
        ensure!(updated == rows, "{updated} rows became {state} instead of {rows}: nothing was written");
        Ok(())
    }

    /// What the claim still holds of refused groups goes back to pending: others can take it.
    fn give_back(&mut self, refused: &BTreeMap<usize, String>) -> Result<()> {
        if refused.is_empty() || self.claim.mode != ClaimMode::Rows {
            return Ok(());
        }
        let (id, (low, high)) = (required(self.shape, "microshard_id")?, self.chunk.range);
        let groups = refused.keys().copied().collect::<Vec<_>>();
        let sql = format!(
            "{} AND {id} BETWEEN {low} AND {high} \
             AND {id} IN (SELECT member_id FROM pg_temp.compact_members WHERE group_no = ANY ({}))",
            release::to_pending(self.names, self.shape, self.claim)?,
            array(&groups),
        );
        self.transaction.execute_typed(&sql, &[])?;
        Ok(())
    }
}

/// How a touched row is now.
fn describe(status: Option<&str>, shard_id: Option<&str>, claimed_by: Option<&str>, claim: &Claim) -> String {
    let by = claimed_by.unwrap_or("nobody");
    match (status, claim.mode) {
        (Some("consumed"), _) => format!("is now consumed by shard {}", shard_id.unwrap_or("unknown")),
        (Some("claimed"), ClaimMode::Rows) if by == claim.claimed_by => {
            "was updated after the snapshot read it".to_owned()
        }
        (Some("pending"), ClaimMode::Slices | ClaimMode::None) => "was updated after the snapshot read it".to_owned(),
        (Some("pending"), ClaimMode::Rows) => "is now pending".to_owned(),
        (Some(status), _) => format!("is now {status} by {by}"),
        (None, _) => "has no status now".to_owned(),
    }
}
