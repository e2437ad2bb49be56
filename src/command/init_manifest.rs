//! `init-manifest`: creates what is absent of the manifest's tables.

use std::io::Write;

use anyhow::{Result, bail};

use super::Exit;
use crate::cli::InitManifest;
use crate::manifest::{Names, Postgres, is_postgres, schema};

pub(super) fn run(args: &InitManifest, out: &mut dyn Write) -> Result<Exit> {
    let typed = &args.manifest;
    let names = Names::from_args(&typed.table, &typed.shards_table, &typed.column)?;
    if args.print {
        write!(out, "{}", schema(&names)?)?;
        return Ok(Exit::Done);
    }
    if !is_postgres(&typed.manifest) {
        bail!("init-manifest creates tables in Postgres; a listing needs none: go on with `compact-local snapshot`");
    }
    let mut postgres = Postgres::connect(typed.manifest.as_deref(), names)?;
    let created = postgres.init()?;
    match created.as_slice() {
        [] => writeln!(out, "{}: all tables are there already", postgres.redacted())?,
        created => writeln!(out, "{}: created {}", postgres.redacted(), created.join(", "))?,
    }
    Ok(Exit::Done)
}
