//! Reads the claimed microshards as one binary COPY: one statement, so one moment of the table, and one row in memory
//! (I8). A value that cannot be right is an error with the microshard's id; nothing is skipped (I10). Writes nothing.

use anyhow::{Context, Result, ensure};

use super::check::{self, Purpose, Shape};
use super::copy::{CopyReader, Row};
use super::predicate::{held_by, of_languages, of_run, required, slice_of, takeable};
use super::{Claim, ClaimMode, Names, Postgres, Record, Selection};
use crate::hex::decode_sha256;

/// Fields of the SELECT below.
const WIDTH: usize = 8;

impl Postgres {
    /// Calls `take` for every microshard of `claim` that `selection` admits, in no particular order, and returns how
    /// many there were. An error of `take` ends the reading and is returned.
    pub fn read(
        &mut self,
        claim: &Claim,
        selection: &Selection,
        take: &mut dyn FnMut(Record) -> Result<()>,
    ) -> Result<u64> {
        // Not repeated after a lost connection: records that were taken cannot be taken back from here.
        self.attempt("read the manifest", |transaction, names| {
            transaction.batch_execute("SET TRANSACTION READ ONLY")?;
            let shape = check::microshards(transaction, names, Purpose::Read(claim.mode))?;
            let sql = format!("COPY ({}) TO STDOUT (FORMAT binary)", select(names, &shape, claim, selection)?);
            let mut reader = CopyReader::new(transaction.copy_out(&sql)?, WIDTH)?;
            let mut records = 0;
            while let Some(row) = reader.next()? {
                take(record(&row, &claim.run_id)?)?;
                records += 1;
            }
            Ok(records)
        })
    }
}

fn select(names: &Names, shape: &Shape, claim: &Claim, selection: &Selection) -> Result<String> {
    let cast =
        |ours: &str, to: &str| shape.column(ours).map_or(format!("NULL::{to}"), |theirs| format!("{theirs}::{to}"));
    let raw = |ours: &str| shape.column(ours).unwrap_or("NULL::timestamptz").to_owned();
    let fields = [
        cast("microshard_id", "int8"),
        cast("language", "text"),
        cast("uri", "text"),
        cast("segment_count", "int8"),
        cast("byte_size", "int8"),
        cast("sha256", "text"),
        raw("created_at"),
        raw("updated_at"),
    ];
    let id = required(shape, "microshard_id")?;
    let mut sql = format!(
        "SELECT {} FROM {} AS t WHERE {}",
        fields.join(", "),
        names.microshards()?,
        of_run(shape, &claim.run_id)
    );
    match claim.mode {
        ClaimMode::Rows => {
            sql += &format!(" AND {}", held_by(shape, &claim.claimed_by)?);
        }
        ClaimMode::Slices => {
            let slices = claim.slices.iter().map(i16::to_string).collect::<Vec<_>>().join(",");
            sql += &format!(" AND {} = ANY ('{{{slices}}}'::int8[])", slice_of(id));
            sql += &format!(" AND {}", takeable(shape, claim.claimed_at));
        }
        ClaimMode::None => sql += &format!(" AND {}", takeable(shape, claim.claimed_at)),
    }
    if claim.mode != ClaimMode::Rows {
        sql += &of_languages(shape, &selection.languages)?;
        if let Some(limit) = selection.limit {
            // Two phases in one order: pending first, expired claims behind.
            let phase = shape.column("status").map(|status| format!("{status} <> 'pending', ")).unwrap_or_default();
            sql += &format!(" ORDER BY {phase}{id} LIMIT {limit}");
        }
    }
    Ok(sql)
}

fn record(row: &Row<'_>, run_id: &str) -> Result<Record> {
    let microshard_id = row.bigint(0)?.context("a microshard has no id")?;
    fields(row, microshard_id, run_id).with_context(|| format!("microshard {microshard_id} of run {run_id}"))
}

fn fields(row: &Row<'_>, microshard_id: i64, run_id: &str) -> Result<Record> {
    let language = row.text(1)?.filter(|language| !language.is_empty()).context("it has no language")?;
    let uri = row.text(2)?.filter(|uri| !uri.is_empty()).context("it has no uri")?;
    let count = |at: usize, name: &str| -> Result<Option<u64>> {
        let Some(number) = row.bigint(at).with_context(|| format!("its {name}"))? else { return Ok(None) };
        Ok(Some(u64::try_from(number).ok().with_context(|| format!("its {name} is {number}, less than nothing"))?))
    };
    let segment_count = count(3, "segment_count")?.map(u32::try_from).transpose();
    Ok(Record {
        microshard_id: Some(microshard_id),
        run_id: run_id.to_owned(),
        language: language.to_owned(),
        uri: uri.to_owned(),
        segment_count: segment_count.ok().context("its segment_count is over 4 billion")?,
        byte_size: count(4, "byte_size")?,
        sha256: row.text(5)?.map(digest).transpose()?,
        created_at: row.timestamp(6).context("its created_at")?,
        updated_at: row.timestamp(7).context("its updated_at")?,
    })
}

/// 64 hex digits, in either case.
fn digest(text: &str) -> Result<[u8; 32]> {
    ensure!(text.len() == 64, "its sha256 has {} characters, not 64 hex digits", text.len());
    decode_sha256(text).context("its sha256 is not 64 hex digits")
}
