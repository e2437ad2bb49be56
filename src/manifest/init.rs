//! Creates the manifest's tables where they are absent. The SQL is `schema.sql` with names put in; what is printed is
//! what is run, but for one thing: of a table that exists nothing is run, so a foreign table gets no index of ours.

use anyhow::{Result, ensure};
use postgres::Transaction;
use postgres::types::Type;
use postgres_protocol::escape::escape_identifier;

use super::check::{self, Purpose};
use super::names::quote_beside;
use super::{ClaimMode, Names, Postgres};

const SCHEMA: &str = include_str!("schema.sql");

/// The SQL of `init-manifest` under these names, for `--print`. It may be run any number of times.
pub fn schema(names: &Names) -> Result<String> {
    filled(SCHEMA, names)
}

/// `template` with a name in the place of each `{placeholder}`. What was put in is never looked at again: a name may look
/// like a placeholder.
fn filled(template: &str, names: &Names) -> Result<String> {
    let mut sql = String::new();
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once('{')
        && let Some((placeholder, after)) = behind.split_once('}')
    {
        sql.push_str(before);
        sql.push_str(&match placeholder {
            "microshards" => names.microshards()?,
            "run_index" => quote_beside(&names.table, "_run"),
            "shards" => names.shards()?,
            "slices" => names.slices()?,
            "snapshots" => names.snapshots()?,
            ours => names.column(ours),
        });
        rest = after;
    }
    sql.push_str(rest);
    Ok(sql)
}

impl Postgres {
    /// Creates the tables that are absent, all or none, and returns their names. A table that exists is left as it is;
    /// should it lack a column that compact-local needs, that is an error and nothing is created.
    pub fn init(&mut self) -> Result<Vec<String>> {
        self.repeat("create the manifest's tables", |transaction, names, _| {
            // Two machines at once: IF NOT EXISTS does not protect from a table that appears in between.
            transaction
                .batch_execute("SELECT pg_advisory_xact_lock(hashtextextended('compact-local init-manifest', 0))")?;
            for table in [&names.table, &names.shards_table] {
                refuse_without_schema(transaction, table)?;
            }
            let mut created = Vec::new();
            for (name, table, sql) in tables(names)? {
                if !exists(transaction, &table)? {
                    transaction.batch_execute(&sql)?;
                    created.push(name);
                }
            }
            check::microshards(transaction, names, Purpose::Read(ClaimMode::Slices))?;
            check::shards(transaction, names)?;
            Ok(created)
        })
    }
}

/// Each table's name as typed, quoted, and its part of the SQL: the parts begin at CREATE TABLE.
fn tables(names: &Names) -> Result<Vec<(String, String, String)>> {
    let parts = SCHEMA.split("CREATE TABLE").skip(1).map(|part| filled(&format!("CREATE TABLE{part}"), names));
    let known = [
        (names.table.clone(), names.microshards()?),
        (names.shards_table.clone(), names.shards()?),
        (format!("{}_slices", names.table), names.slices()?),
        (format!("{}_snapshots", names.table), names.snapshots()?),
    ];
    let tables = known.into_iter().zip(parts).map(|((name, table), sql)| Ok((name, table, sql?)));
    let tables: Vec<_> = tables.collect::<Result<_>>()?;
    ensure!(tables.len() == 4, "schema.sql does not create the four tables");
    Ok(tables)
}

/// A schema is not ours to create: who may use it is decided with it.
fn refuse_without_schema(transaction: &mut Transaction<'_>, table: &str) -> Result<()> {
    let Some((schema, _)) = table.split_once('.') else { return Ok(()) };
    let quoted = escape_identifier(schema);
    let sql = "SELECT to_regnamespace($1) IS NOT NULL";
    let is_there: bool = transaction.query_typed_one(sql, &[(&quoted, Type::TEXT)])?.try_get(0)?;
    ensure!(
        is_there,
        "there is no schema `{schema}` for the table `{table}`: create it first, with: CREATE SCHEMA {quoted};"
    );
    Ok(())
}

fn exists(transaction: &mut Transaction<'_>, table: &str) -> Result<bool> {
    let sql = "SELECT to_regclass($1) IS NOT NULL";
    Ok(transaction.query_typed_one(sql, &[(&table, Type::TEXT)])?.try_get(0)?)
}
