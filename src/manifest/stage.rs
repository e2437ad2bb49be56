//! One chunk of results on its way into Postgres, as temporary tables that end with their transaction. A shard with its
//! members, or a failure with its one member, is a group; a group is accepted or refused whole. The manifest's rows are
//! locked here, in the order of their ids, so that two machines cannot lock each other out.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use postgres::Transaction;
use postgres_protocol::escape::escape_literal;

use super::check::Shape;
use super::copy::{CopyWriter, Value};
use super::predicate::{held_by, in_state, required, takeable};
use super::{Claim, ClaimMode, Member, Names, SyncFailure, SyncShard};

/// Shards and failures that go together in one transaction. Groups are numbered: the shards, then the failures.
pub(super) struct Chunk<'a> {
    pub(super) shards: &'a [SyncShard],
    pub(super) failures: &'a [SyncFailure],
    /// The lowest and the highest id. A range lets the planner use the key's index: without one each chunk scans the
    /// table, 49.8 s instead of 17.4 s for 876,000 rows in chunks of 50,000.
    pub(super) range: (i64, i64),
}

impl<'a> Chunk<'a> {
    /// Refuses a chunk in which one id or one shard comes twice: that would be a fault of the queue, and loss here (I1).
    pub(super) fn new(shards: &'a [SyncShard], failures: &'a [SyncFailure]) -> Result<Chunk<'a>> {
        let mut ids = BTreeMap::new();
        let mut keys = BTreeMap::new();
        let chunk = Chunk { shards, failures, range: (0, 0) };
        for (group, member) in chunk.members() {
            if let Some(other) = ids.insert(member.microshard_id, group) {
                let (id, one, two) = (member.microshard_id, chunk.name(other), chunk.name(group));
                bail!("microshard {id} comes twice, as {one} and as {two}: the queue is at fault, nothing was written");
            }
        }
        for (at, shard) in shards.iter().enumerate() {
            if keys.insert(&shard.shard_id, at).is_some() {
                bail!("shard {} comes twice: the queue is at fault, nothing was written", shard.shard_id);
            }
        }
        let end = |entry: Option<(&i64, &usize)>| entry.map_or(0, |(id, _)| *id);
        Ok(Chunk { range: (end(ids.first_key_value()), end(ids.last_key_value())), ..chunk })
    }

    /// Every member with its group.
    fn members(&self) -> impl Iterator<Item = (usize, &Member)> {
        let of_shards = self.shards.iter().enumerate();
        let of_shards = of_shards.flat_map(|(at, shard)| shard.members.iter().map(move |member| (at, member)));
        let failures = self.failures.iter().zip(self.shards.len()..);
        of_shards.chain(failures.map(|(failure, group)| (group, &failure.member)))
    }

    /// How many members a group has.
    pub(super) fn size(&self, group: usize) -> usize {
        self.shards.get(group).map_or(1, |shard| shard.members.len())
    }

    fn name(&self, group: usize) -> String {
        self.shards.get(group).map_or("a failure".to_owned(), |shard| format!("a member of shard {}", shard.shard_id))
    }

    /// Creates and fills the temporary tables, and locks and judges the manifest's rows.
    pub(super) fn stage(
        &self,
        transaction: &mut Transaction<'_>,
        names: &Names,
        shape: &Shape,
        claim: &Claim,
    ) -> Result<()> {
        transaction.batch_execute(&create(shape))?;
        self.copy_members(transaction)?;
        self.copy_groups(transaction)?;
        // Statistics, else the planner guesses a few hundred rows and may loop over them.
        transaction.batch_execute("ANALYZE pg_temp.compact_members; ANALYZE pg_temp.compact_groups")?;
        transaction.batch_execute(&judge(names, shape, claim, self.range)?)?;
        Ok(())
    }

    fn copy_members(&self, transaction: &mut Transaction<'_>) -> Result<()> {
        let copy = transaction.copy_in("COPY pg_temp.compact_members FROM STDIN (FORMAT binary)")?;
        let mut writer = CopyWriter::new(copy)?;
        for (group, member) in self.members() {
            let seen = member.updated_at.map_or(Value::Null, Value::Timestamp);
            writer.row(&[Value::Int(i32::try_from(group)?), Value::Bigint(member.microshard_id), seen])?;
        }
        writer.finish()?.finish()?;
        Ok(())
    }

    fn copy_groups(&self, transaction: &mut Transaction<'_>) -> Result<()> {
        let copy = transaction.copy_in("COPY pg_temp.compact_groups FROM STDIN (FORMAT binary)")?;
        let mut writer = CopyWriter::new(copy)?;
        for (group, shard) in self.shards.iter().enumerate() {
            let sha256 = hex(&shard.sha256);
            writer.row(&[
                Value::Int(i32::try_from(group)?),
                Value::Text(&shard.shard_id),
                Value::Text(&shard.language),
                Value::Bigint(i64::from(shard.seq)),
                Value::Text(&shard.uri),
                Value::Bigint(i64::try_from(shard.rows)?),
                Value::Bigint(i64::try_from(shard.members.len())?),
                Value::Bigint(i64::try_from(shard.bytes)?),
                Value::Text(&sha256),
                Value::Null,
                Value::Null,
            ])?;
        }
        for (failure, group) in self.failures.iter().zip(self.shards.len()..) {
            // The sentence may quote the object; Postgres keeps any text but this one character.
            let sentence = failure.sentence.replace('\0', "\u{fffd}");
            let mut row = [const { Value::Null }; 11];
            row[0] = Value::Int(i32::try_from(group)?);
            row[9] = Value::Text(&sentence);
            row[10] = Value::Bigint(i64::from(failure.attempts));
            writer.row(&row)?;
        }
        writer.finish()?.finish()?;
        Ok(())
    }
}

fn create(shape: &Shape) -> String {
    let seen = shape.type_of("updated_at").unwrap_or("timestamptz");
    format!(
        "CREATE TEMP TABLE compact_members (group_no int4, member_id int8, seen_updated_at {seen}) ON COMMIT DROP; \
         CREATE TEMP TABLE compact_groups (group_no int4, shard_id text, language text, seq int8, uri text, rows int8, \
         members int8, bytes int8, sha256 text, sentence text, attempts int8) ON COMMIT DROP"
    )
}

/// Locks the members' rows and notes how each is: `already` as the group wants it, `ours` to write, or `touched`.
fn judge(names: &Names, shape: &Shape, claim: &Claim, (low, high): (i64, i64)) -> Result<String> {
    let id = required(shape, "microshard_id")?;
    let (status, shard) = (required(shape, "status")?, required(shape, "shard_id")?);
    let mut untouched = match claim.mode {
        ClaimMode::Rows => held_by(shape, &claim.claimed_by)?,
        ClaimMode::Slices | ClaimMode::None => takeable(shape, claim.claimed_at),
    };
    if let Some(updated_at) = shape.column("updated_at") {
        untouched += &format!(" AND {updated_at} IS NOT DISTINCT FROM m.seen_updated_at");
    }
    // Failed by this very claim: it is being retried, or fails again.
    let failed = in_state(shape, "failed", &claim.claimed_by)?;
    let same_sentence =
        shape.column("error").map_or(String::new(), |error| format!(" AND {error} IS NOT DISTINCT FROM g.sentence"));
    // Tried once more in vain: the count is written again.
    let same_attempts = shape
        .column("attempt_count")
        .map_or(String::new(), |attempts| format!(" AND coalesce({attempts}, 0) >= g.attempts"));
    let by = required(shape, "claimed_by")?;
    Ok(format!(
        "CREATE TEMP TABLE compact_seen ON COMMIT DROP AS \
         SELECT m.group_no, m.member_id, {status}::text AS status, {shard}::text AS shard_id, {by}::text AS claimed_by, \
         CASE WHEN {status} = 'consumed' AND {shard} = g.shard_id THEN 'already' \
              WHEN g.shard_id IS NULL AND {failed}{same_sentence}{same_attempts} THEN 'already' \
              WHEN ({untouched}) OR ({failed}) THEN 'ours' ELSE 'touched' END AS verdict \
         FROM pg_temp.compact_members m JOIN pg_temp.compact_groups g USING (group_no) \
         JOIN {table} AS t ON {id} = m.member_id \
         WHERE {id} BETWEEN {low} AND {high} ORDER BY {id} FOR NO KEY UPDATE OF t; \
         ANALYZE pg_temp.compact_seen",
        table = names.microshards()?,
    ))
}

/// SQL: an array of group numbers.
pub(super) fn array(groups: &[usize]) -> String {
    let groups = groups.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    format!("{}::int4[]", escape_literal(&format!("{{{groups}}}")))
}

fn hex(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
