//! `cat`: prints rows of one shard, wherever it is.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::Exit;
use crate::cat::{Object, RowRange, Wanted, cat};
use crate::cli;
use crate::patience::Patience;
use crate::shown::shown_uri;
use crate::store::{self, ObjectUri, StoreError, StoreSettings, uri};

pub(super) fn run(args: &cli::Cat, out: &mut dyn Write) -> Result<Exit> {
    let settings = StoreSettings::from_args(&args.store)?;
    if Path::new(&args.shard).is_dir() {
        bail!("{} is a directory: name one shard in it, as index.json lists them", args.shard);
    }
    let uri = resolve(&args.shard)?;
    let store = store::open_origin(&uri.origin, &settings, 1)?;
    let patience = Patience::default();
    let notice = |text: &str| {
        // Nobody to tell is no reason to stop.
        let _ = writeln!(io::stderr(), "{text}");
    };
    let mut shard = Object::new(store.as_ref(), &uri.key, &patience, &notice);
    let wanted = match args.microshard {
        Some(id) => Wanted::Microshard(id),
        None => Wanted::Rows(args.rows.map_or(RowRange::ALL, |(start, end)| RowRange { start, end })),
    };
    cat(&mut shard, wanted, out).map_err(|error| named(error, &uri))?;
    Ok(Exit::Done)
}

/// Unlike a manifest's, a path is typed here: relative to where we are, and `..` is meant.
fn resolve(shard: &str) -> Result<ObjectUri> {
    if shard.contains("://") {
        return Ok(ObjectUri::resolve(shard, None)?);
    }
    let path = uri::without_dots(Path::new(shard)).with_context(|| format!("failed to get {}", shown_uri(shard)))?;
    Ok(ObjectUri::resolve(&path.to_string_lossy(), None)?)
}

/// Stores name their objects themselves, and standard output is not the shard's.
fn named(error: anyhow::Error, uri: &ObjectUri) -> anyhow::Error {
    if error.is::<StoreError>() || error.is::<io::Error>() {
        return error;
    }
    error.context(format!("failed to print {uri}"))
}
