//! Names of tables and columns: ours, theirs, and both quoted for SQL. Nothing that was typed reaches SQL unquoted.
//! `--column ours=theirs` may rename any column of the microshards table, and no other.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use postgres_protocol::escape::escape_identifier;

use super::Names;

/// What a column holds, as far as SQL on it cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// smallint, integer or bigint.
    Integer,
    /// text or varchar, or char(n).
    Text,
    /// timestamptz: it is compared with the server's clock.
    Instant,
    /// timestamptz or timestamp: it is only read, compared with itself and set to now().
    Timestamp,
}

/// Our columns of the microshards table.
pub(super) const COLUMNS: [(&str, Kind); 17] = [
    ("microshard_id", Kind::Integer),
    ("run_id", Kind::Text),
    ("video_id", Kind::Text),
    ("language", Kind::Text),
    ("uri", Kind::Text),
    ("segment_count", Kind::Integer),
    ("byte_size", Kind::Integer),
    ("sha256", Kind::Text),
    ("status", Kind::Text),
    ("claimed_by", Kind::Text),
    ("claimed_at", Kind::Instant),
    ("lease_expires_at", Kind::Instant),
    ("attempt_count", Kind::Integer),
    ("error", Kind::Text),
    ("shard_id", Kind::Text),
    ("created_at", Kind::Timestamp),
    ("updated_at", Kind::Timestamp),
];

/// Longest identifier Postgres keeps, in bytes; a longer one would be cut, silently.
const IDENTIFIER_BYTES_MAX: usize = 63;

impl Names {
    /// The names as typed: `--table`, `--shards-table` and every `--column ours=theirs`. An error names the one that
    /// cannot be right.
    pub fn from_args(table: &str, shards_table: &str, columns: &[String]) -> Result<Names> {
        let mut renamed = BTreeMap::new();
        for column in columns {
            let (ours, theirs) =
                column.split_once('=').with_context(|| format!("--column {column}: write it as microshard_id=id"))?;
            ensure!(COLUMNS.iter().any(|(name, _)| *name == ours), "--column {column}: {}", unknown(ours));
            ensure!(!theirs.is_empty(), "--column {column}: their name is missing behind the `=`");
            check_length(theirs).with_context(|| format!("--column {column}"))?;
            if let Some(earlier) = renamed.insert(ours.to_owned(), theirs.to_owned()) {
                bail!("--column {ours} is given twice: {earlier} and {theirs}");
            }
        }
        let names = Names { table: table.to_owned(), shards_table: shards_table.to_owned(), columns: renamed };
        names.check_distinct()?;
        // The longest name that is made from the table's must fit as well.
        for name in [table, &format!("{table}{SNAPSHOTS}")] {
            quote_table(name).with_context(|| format!("--table {table}"))?;
        }
        quote_table(shards_table).with_context(|| format!("--shards-table {shards_table}"))?;
        Ok(names)
    }

    fn check_distinct(&self) -> Result<()> {
        let mut seen = BTreeMap::new();
        for (ours, _) in COLUMNS {
            let theirs = self.theirs(ours);
            if let Some(other) = seen.insert(theirs, ours)
                && self.columns.contains_key(ours)
                && self.columns.contains_key(other)
            {
                bail!("--column: {other} and {ours} are both said to be {theirs}");
            }
        }
        Ok(())
    }

    /// Their name of our column.
    pub(super) fn theirs<'a>(&'a self, ours: &'a str) -> &'a str {
        self.columns.get(ours).map_or(ours, String::as_str)
    }

    /// Our column, quoted under their name.
    pub(super) fn column(&self, ours: &str) -> String {
        escape_identifier(self.theirs(ours))
    }

    /// The microshards table, quoted.
    pub(super) fn microshards(&self) -> Result<String> {
        quote_table(&self.table)
    }

    /// The shards table, quoted.
    pub(super) fn shards(&self) -> Result<String> {
        quote_table(&self.shards_table)
    }

    /// The slice leases beside the microshards table, quoted.
    pub(super) fn slices(&self) -> Result<String> {
        quote_table(&format!("{}{SLICES}", self.table))
    }

    /// The snapshot numbers beside the microshards table, quoted.
    pub(super) fn snapshots(&self) -> Result<String> {
        quote_table(&format!("{}{SNAPSHOTS}", self.table))
    }
}

const SLICES: &str = "_slices";
const SNAPSHOTS: &str = "_snapshots";

/// `name` or `schema.name`, each part quoted.
pub(super) fn quote_table(name: &str) -> Result<String> {
    let parts: Vec<&str> = name.split('.').collect();
    ensure!(
        parts.len() <= 2 && parts.iter().all(|part| !part.is_empty()),
        "`{name}`: write a table as name or schema.name"
    );
    for part in &parts {
        ensure!(!part.contains(['"', '\0']), "`{name}`: write names without quotes, they are quoted for you");
        check_length(part)?;
    }
    Ok(parts.into_iter().map(escape_identifier).collect::<Vec<_>>().join("."))
}

/// The name without its schema, with a suffix, quoted: for an index.
pub(super) fn quote_beside(name: &str, suffix: &str) -> String {
    let base = name.rsplit('.').next().unwrap_or(name);
    escape_identifier(&format!("{base}{suffix}"))
}

fn check_length(identifier: &str) -> Result<()> {
    let bytes = identifier.len();
    ensure!(bytes <= IDENTIFIER_BYTES_MAX, "`{identifier}` has {bytes} bytes, Postgres keeps {IDENTIFIER_BYTES_MAX}");
    Ok(())
}

fn unknown(ours: &str) -> String {
    let known: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
    format!("`{ours}` is none of our columns, which are {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_part_by_part() {
        assert_eq!(quote_table("a.b").unwrap(), r#""a"."b""#);
        assert_eq!(quote_table("Robert; DROP TABLE x").unwrap(), r#""Robert; DROP TABLE x""#);
        for bad in ["", "a.", ".b", "a.b.c", "a\"b"] {
            assert!(quote_table(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_column_that_is_not_ours_is_refused() {
        let refused = |columns: &[&str]| {
            let columns: Vec<String> = columns.iter().map(|&column| column.to_owned()).collect();
            Names::from_args("t", "s", &columns).unwrap_err().to_string()
        };
        assert!(refused(&["id=microshard_id"]).contains("`id` is none of our columns"));
        assert!(refused(&["uri"]).contains("microshard_id=id"));
        assert!(refused(&["uri="]).contains("missing behind"));
        assert!(refused(&["uri=a", "uri=b"]).contains("given twice"));
        assert!(refused(&["uri=a", "language=a"]).contains("both said to be a"));
    }

    #[test]
    fn a_table_name_too_long_for_its_companions_is_refused() {
        assert!(Names::from_args(&"t".repeat(53), "s", &[]).is_ok());
        assert!(Names::from_args(&"t".repeat(54), "s", &[]).is_err());
    }
}
