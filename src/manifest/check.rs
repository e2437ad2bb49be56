//! Looks at the tables before anything is done with them: every column that is missing or of a wrong type is named in
//! one error. A missing optional column is fine and reads as NULL; what exists is kept in `Shape`, and SQL is made from that.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use postgres::Transaction;
use postgres::types::Type;

use super::names::{COLUMNS, Kind};
use super::{ClaimMode, Names};

/// The columns of the microshards table that exist, under our names.
#[derive(Debug)]
pub(super) struct Shape {
    /// Ours to (theirs as `t."name"`, type).
    columns: BTreeMap<&'static str, (String, String)>,
}

/// What is going to be done with the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Read microshards, claimed in this way.
    Read(ClaimMode),
    /// Write results and give claims back.
    Sync(ClaimMode),
}

impl Purpose {
    /// The columns it cannot do without.
    fn required(self) -> &'static [&'static str] {
        match self {
            Purpose::Read(ClaimMode::None) => &["microshard_id", "language", "uri"],
            // What sync-back will need is asked for now: better than after an hour of work.
            Purpose::Read(ClaimMode::Slices) => {
                &["microshard_id", "language", "uri", "status", "claimed_by", "shard_id"]
            }
            Purpose::Read(ClaimMode::Rows) => {
                &["microshard_id", "language", "uri", "status", "claimed_by", "lease_expires_at", "shard_id"]
            }
            Purpose::Sync(ClaimMode::Rows) => {
                &["microshard_id", "status", "claimed_by", "lease_expires_at", "shard_id"]
            }
            Purpose::Sync(_) => &["microshard_id", "status", "claimed_by", "shard_id"],
        }
    }
}

/// What is written into each microshard's row, with the type that `init-manifest` gives it: it can be added to a table
/// that has been in use without it.
const ADDABLE: [(&str, &str); 4] = [
    ("status", "text NOT NULL DEFAULT 'pending'"),
    ("claimed_by", "text"),
    ("lease_expires_at", "timestamptz"),
    ("shard_id", "text"),
];

/// Columns of the shards table that sync-back writes.
const SHARD_COLUMNS: [&str; 9] =
    ["shard_id", "run_id", "language", "seq", "uri", "segment_count", "microshard_count", "byte_size", "sha256"];

impl Shape {
    /// Their column as `t."name"`, where it exists: in every statement the microshards table is `t`, so that no name of
    /// theirs can be mistaken for one of ours.
    pub(super) fn column(&self, ours: &str) -> Option<&str> {
        self.columns.get(ours).map(|(theirs, _)| theirs.as_str())
    }

    /// The items of a SET for those of our columns that exist.
    pub(super) fn set(&self, names: &Names, values: &[(&str, &str)]) -> String {
        let exist = values.iter().filter(|(ours, _)| self.columns.contains_key(*ours));
        exist.map(|(ours, value)| format!("{} = {value}", names.column(ours))).collect::<Vec<_>>().join(", ")
    }

    /// Their column's type, where it exists; for a temporary table's column that is compared with it.
    pub(super) fn type_of(&self, ours: &str) -> Option<&str> {
        self.columns.get(ours).map(|(_, type_name)| type_name.as_str())
    }
}

/// Checks the microshards table for `purpose`.
pub(super) fn microshards(transaction: &mut Transaction<'_>, names: &Names, purpose: Purpose) -> Result<Shape> {
    let found = columns_of(transaction, &names.microshards()?)?;
    if found.is_empty() {
        bail!(
            "there is no table `{}`: check --table and the database, or create it with `compact-local init-manifest`",
            names.table
        );
    }
    let mut columns = BTreeMap::new();
    let (mut faults, mut additions) = (Vec::new(), Vec::new());
    for (ours, kind) in COLUMNS {
        let theirs = names.theirs(ours);
        match found.get(theirs) {
            Some(type_name) if fits(kind, type_name) => {
                columns.insert(ours, (format!("t.{}", names.column(ours)), type_name.clone()));
            }
            Some(type_name) => faults.push(format!("`{theirs}` is {type_name}, not {}", describe(kind))),
            None if purpose.required().contains(&ours) || names.columns.contains_key(ours) => {
                if let Some((_, type_name)) = ADDABLE.iter().find(|(addable, _)| *addable == ours) {
                    additions.push(format!("ADD COLUMN {} {type_name}", names.column(ours)));
                }
                let ours = if ours == theirs { String::new() } else { format!(" (for {ours})") };
                faults.push(format!("`{theirs}`{ours} is missing"));
            }
            None => {}
        }
    }
    if !faults.is_empty() {
        let add = match additions.as_slice() {
            [] => String::new(),
            some => format!(
                "; add those that are not there with: ALTER TABLE {} {};",
                names.microshards()?,
                some.join(", ")
            ),
        };
        bail!(
            "the table `{}` does not fit: {}; name columns that are called otherwise with --column ours=theirs{add}",
            names.table,
            faults.join("; ")
        );
    }
    Ok(Shape { columns })
}

/// Checks the shards table for sync-back. Returns whether it has `created_by`.
pub(super) fn shards(transaction: &mut Transaction<'_>, names: &Names) -> Result<bool> {
    let table = names.shards()?;
    let found = columns_of(transaction, &table)?;
    if found.is_empty() {
        bail!(
            "there is no table `{}`: check --shards-table and the database, or create it with `compact-local init-manifest`",
            names.shards_table
        );
    }
    let missing: Vec<_> = SHARD_COLUMNS.iter().filter(|name| !found.contains_key(**name)).collect();
    let mut faults: Vec<String> = missing.iter().map(|name| format!("`{name}` is missing")).collect();
    if missing.is_empty() && !is_unique(transaction, &table)? {
        faults.push("`shard_id` is not unique, make it the primary key".to_owned());
    }
    if !faults.is_empty() {
        bail!("the table `{}` does not fit: {}", names.shards_table, faults.join("; "));
    }
    Ok(found.contains_key("created_by"))
}

/// Column names and types of a table that was quoted before; empty where there is no such table.
fn columns_of(transaction: &mut Transaction<'_>, table: &str) -> Result<BTreeMap<String, String>> {
    let sql = "SELECT a.attname::text, coalesce(b.typname, t.typname)::text \
               FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype \
               WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped";
    let rows = transaction.query_typed(sql, &[(&table, Type::TEXT)])?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

fn is_unique(transaction: &mut Transaction<'_>, table: &str) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
               WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL \
               AND a.attname = 'shard_id')";
    Ok(transaction.query_typed_one(sql, &[(&table, Type::TEXT)])?.try_get(0)?)
}

fn fits(kind: Kind, type_name: &str) -> bool {
    match kind {
        Kind::Integer => ["int2", "int4", "int8"].contains(&type_name),
        Kind::Text => ["text", "varchar", "bpchar"].contains(&type_name),
        Kind::Instant => type_name == "timestamptz",
        Kind::Timestamp => ["timestamptz", "timestamp"].contains(&type_name),
    }
}

fn describe(kind: Kind) -> &'static str {
    match kind {
        Kind::Integer => "an integer",
        Kind::Text => "text",
        Kind::Instant => "timestamptz",
        Kind::Timestamp => "timestamptz or timestamp",
    }
}
