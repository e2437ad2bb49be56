//! A listing stands in for Postgres: a `.csv` or `.jsonl` file (also `.gz`, `.zst`), or a directory of microshards.
//! It is streamed from start to end and never written to; results go into a file of their own (`ResultsWriter`).
//! Nothing is skipped in silence: a line that cannot be read is an error with its number and column. Only these are
//! left out: rows of other runs and languages, rows whose `status`, where there is such a column, is not `pending`,
//! and hidden files. A timestamp without an offset is UTC.

mod csv;
mod directory;
mod jsonl;
mod line;
mod results;
mod value;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Record, Selection};
use crate::shown::{may_hold_login, shown_uri};
use crate::store::uri::without_dots;
use line::{Column, Columns, Lines};
pub use results::ResultsWriter;

/// A listing, found but not read.
#[derive(Debug, Clone)]
pub struct Listing {
    path: PathBuf,
    kind: Kind,
    columns: Columns,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Csv,
    Jsonl,
    Directory,
}

impl Listing {
    /// Finds the listing at `path` and tells its kind by the name; fails where there is none.
    pub fn open(path: &str) -> Result<Listing> {
        let metadata =
            std::fs::metadata(path).with_context(|| format!("failed to open the manifest {}", shown(path)))?;
        let kind = if metadata.is_dir() { Some(Kind::Directory) } else { kind_of_file(Path::new(path)) };
        let Some(kind) = kind else {
            bail!(
                "the manifest {path} is no listing: give a .csv or .jsonl file (.gz and .zst are read too) or a directory"
            );
        };
        // Absolute, so that the uris of a directory mean the same from any directory.
        let path = without_dots(Path::new(path)).with_context(|| format!("failed to make {path} absolute"))?;
        Ok(Listing { path, kind, columns: Columns::default() })
    }

    /// Looks for columns under other names: ours to theirs, as `--column microshard_id=id` says.
    pub fn with_columns(mut self, columns: &BTreeMap<String, String>) -> Result<Listing> {
        for (ours, theirs) in columns {
            let Some(column) = Column::ALL.into_iter().find(|column| column.name() == ours) else {
                let known = Column::ALL.map(Column::name).join(", ");
                bail!("--column {ours}={theirs}: a listing has no column {ours}; it may have {known}");
            };
            self.columns.rename(column, theirs);
        }
        Ok(self)
    }

    /// Gives every selected record to `take`, in the listing's order, and returns how many. What `take` returns stops it.
    ///
    /// A directory gives its files sorted by path, with absolute uris and without ids; each folder on its first level is
    /// a language.
    pub fn read(&self, selection: &Selection, take: &mut dyn FnMut(Record) -> Result<()>) -> Result<u64> {
        let lines = || Lines::new(&self.path, &self.columns, selection);
        match self.kind {
            Kind::Csv => csv::read(self.reader()?, lines(), take),
            Kind::Jsonl => jsonl::read(BufReader::new(self.reader()?), lines(), take),
            Kind::Directory => directory::read(&self.path, selection, take),
        }
    }

    fn reader(&self) -> Result<Box<dyn Read>> {
        let opened = || -> std::io::Result<Box<dyn Read>> {
            let file = File::open(&self.path)?;
            Ok(match extension(&self.path) {
                "gz" => Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::new(file))),
                "zst" => Box::new(zstd::Decoder::new(file)?),
                _ => Box::new(file),
            })
        };
        opened().with_context(|| format!("failed to open the manifest {}", self.path.display()))
    }
}

/// What was typed may have been meant as a connection string, with a password in it: a URL, or pairs.
fn shown(path: &str) -> String {
    let lower = path.to_ascii_lowercase();
    let has_pairs = path.contains('=') && (path.contains(char::is_whitespace) || lower.contains("pass"));
    if has_pairs || lower.contains("password") || may_hold_login(path) && !path.contains("://") {
        return "that --manifest names (neither a file nor a connection string)".to_owned();
    }
    shown_uri(path)
}

fn kind_of_file(path: &Path) -> Option<Kind> {
    let name = match extension(path) {
        "gz" | "zst" => Path::new(path.file_stem()?),
        _ => path,
    };
    match extension(name) {
        "csv" => Some(Kind::Csv),
        "jsonl" => Some(Kind::Jsonl),
        _ => None,
    }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}
