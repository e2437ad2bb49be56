//! One line of a listing, whatever its syntax: which columns it has, whether it is selected, and its record. Every
//! refusal names the file, the line and the column as it is called there.

#![expect(clippy::indexing_slicing, reason = "arrays with a place for each column")]

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::value;
use crate::manifest::{Record, Selection};

/// A column of a listing that means something to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    MicroshardId,
    RunId,
    Language,
    Uri,
    SegmentCount,
    ByteSize,
    Sha256,
    CreatedAt,
    UpdatedAt,
    Status,
}

impl Column {
    pub(super) const ALL: [Column; COLUMNS] = [
        Column::MicroshardId,
        Column::RunId,
        Column::Language,
        Column::Uri,
        Column::SegmentCount,
        Column::ByteSize,
        Column::Sha256,
        Column::CreatedAt,
        Column::UpdatedAt,
        Column::Status,
    ];

    /// Our name of it, the manifest table's.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Column::MicroshardId => "microshard_id",
            Column::RunId => "run_id",
            Column::Language => "language",
            Column::Uri => "uri",
            Column::SegmentCount => "segment_count",
            Column::ByteSize => "byte_size",
            Column::Sha256 => "sha256",
            Column::CreatedAt => "created_at",
            Column::UpdatedAt => "updated_at",
            Column::Status => "status",
        }
    }
}

const COLUMNS: usize = 10;

/// What a listing calls its columns.
#[derive(Debug, Clone, Default)]
pub(super) struct Columns {
    renamed: [Option<String>; COLUMNS],
}

impl Columns {
    pub(super) fn rename(&mut self, column: Column, theirs: &str) {
        self.renamed[column as usize] = Some(theirs.to_owned());
    }

    pub(super) fn theirs(&self, column: Column) -> &str {
        self.renamed[column as usize].as_deref().unwrap_or(column.name())
    }
}

/// A line's fields by column; `None` where it has no such column, or nothing in it.
#[derive(Debug, Default)]
pub(super) struct Fields<'a>(pub(super) [Option<Cow<'a, str>>; COLUMNS]);

impl Fields<'_> {
    fn get(&self, column: Column) -> Option<&str> {
        self.0[column as usize].as_deref().filter(|text| !text.is_empty())
    }
}

/// Which columns a listing has.
pub(super) type Present = [bool; COLUMNS];

/// Runs named in a message; there may be any number.
const RUNS_NAMED: usize = 5;

/// Takes line after line: selects, checks and counts.
pub(super) struct Lines<'a> {
    path: &'a Path,
    columns: &'a Columns,
    selection: &'a Selection,
    has_run_id: bool,
    has_status: bool,
    /// The selected run has a line, taken or not.
    run_seen: bool,
    /// Runs met, other than the selected one; the first few.
    runs: Vec<String>,
    taken: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn new(path: &'a Path, columns: &'a Columns, selection: &'a Selection) -> Lines<'a> {
        let (has_run_id, has_status, run_seen) = (false, false, false);
        Lines { path, columns, selection, has_run_id, has_status, run_seen, runs: Vec::new(), taken: 0 }
    }

    pub(super) fn columns(&self) -> &'a Columns {
        self.columns
    }

    pub(super) fn path(&self) -> std::path::Display<'a> {
        self.path.display()
    }

    /// Checks that the columns needed are there, all at once; `found` is what the listing calls its own.
    pub(super) fn check(&mut self, present: &Present, found: &[&str]) -> Result<()> {
        let needed = |column: Column| match column {
            Column::MicroshardId | Column::Language | Column::Uri => true,
            Column::RunId => self.selection.run_id.is_none(),
            _ => self.columns.renamed[column as usize].is_some(),
        };
        let absent = |column: &Column| needed(*column) && !present[*column as usize];
        let missing: Vec<Column> = Column::ALL.into_iter().filter(absent).collect();
        if let Some(first) = missing.first() {
            let names: Vec<_> = missing.iter().map(|column| self.columns.theirs(*column)).collect();
            let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
            let run = if missing.contains(&Column::RunId) { "; name the run with --run-id" } else { "" };
            bail!(
                "{} has no column {}; it has {found}. If one is called otherwise there, say so: --column {}=NAME{run}",
                self.path(),
                names.join(", "),
                first.name()
            );
        }
        self.has_run_id = present[Column::RunId as usize];
        self.has_status = present[Column::Status as usize];
        Ok(())
    }

    /// Gives the line's record to `take` if it is selected. Breaks when no further line is wanted.
    pub(super) fn line(
        &mut self,
        line: u64,
        fields: &Fields<'_>,
        take: &mut dyn FnMut(Record) -> Result<()>,
    ) -> Result<ControlFlow<()>> {
        if self.selection.limit.is_some_and(|limit| self.taken >= limit) {
            return Ok(ControlFlow::Break(()));
        }
        let parsing = Parsing { path: self.path, columns: self.columns, line, fields };
        let run_id = if self.has_run_id { Some(parsing.text(Column::RunId)?) } else { None };
        let pending = !self.has_status || parsing.text(Column::Status)? == "pending";
        if !self.is_of_run(run_id.as_deref(), pending) || !pending {
            return Ok(self.flow());
        }
        let language = parsing.text(Column::Language)?;
        let languages = &self.selection.languages;
        if !languages.is_empty() && !languages.contains(&language) {
            return Ok(ControlFlow::Continue(()));
        }
        let run_id = run_id.or_else(|| self.selection.run_id.clone()).unwrap_or_default();
        let record = parsing.record(run_id, language)?;
        take(record)?;
        self.taken += 1;
        Ok(ControlFlow::Continue(()))
    }

    /// Whether the line is of the run that is taken: the one selected, or the only one there is.
    fn is_of_run(&mut self, run_id: Option<&str>, pending: bool) -> bool {
        let Some(run_id) = run_id else { return true };
        let selected = self.selection.run_id.as_deref();
        if selected == Some(run_id) {
            self.run_seen = true;
            return true;
        }
        let counts = selected.is_some() || pending;
        if counts && self.runs.len() < RUNS_NAMED && !self.runs.iter().any(|known| known == run_id) {
            self.runs.push(run_id.to_owned());
        }
        selected.is_none() && self.runs.len() < 2
    }

    /// Once it is known that there are too many runs, a few of them are enough.
    fn flow(&self) -> ControlFlow<()> {
        let enough = self.selection.run_id.is_none() && self.runs.len() == RUNS_NAMED;
        if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The number of records taken; an error where the run was not to be told.
    pub(super) fn finish(self) -> Result<u64> {
        let runs = self.runs.join(", ");
        match &self.selection.run_id {
            None if self.runs.len() > 1 => {
                bail!("{} holds several runs: {runs}{}. Choose one with --run-id", self.path(), self.and_more())
            }
            Some(run_id) if !self.run_seen && !self.runs.is_empty() => {
                bail!("{} has no line of run {run_id}; it holds {runs}{}", self.path(), self.and_more())
            }
            _ => Ok(self.taken),
        }
    }

    fn and_more(&self) -> &'static str {
        if self.runs.len() == RUNS_NAMED { " and perhaps more" } else { "" }
    }
}

/// One line being turned into a record.
struct Parsing<'a> {
    path: &'a Path,
    columns: &'a Columns,
    line: u64,
    fields: &'a Fields<'a>,
}

impl Parsing<'_> {
    fn record(&self, run_id: String, language: String) -> Result<Record> {
        Ok(Record {
            microshard_id: Some(self.required(Column::MicroshardId, value::id)?),
            run_id,
            language,
            uri: self.text(Column::Uri)?,
            segment_count: self.optional(Column::SegmentCount, value::count)?,
            byte_size: self.optional(Column::ByteSize, value::count)?,
            sha256: self.optional(Column::Sha256, value::sha256)?,
            created_at: self.optional(Column::CreatedAt, value::timestamp_us)?,
            updated_at: self.optional(Column::UpdatedAt, value::timestamp_us)?,
        })
    }

    fn text(&self, column: Column) -> Result<String> {
        self.required(column, |text| Ok(text.to_owned()))
    }

    fn required<T>(&self, column: Column, parse: impl Fn(&str) -> value::Parsed<T>) -> Result<T> {
        self.optional(column, parse)?.with_context(|| format!("{}: the field is empty", self.place(column)))
    }

    fn optional<T>(&self, column: Column, parse: impl Fn(&str) -> value::Parsed<T>) -> Result<Option<T>> {
        let Some(text) = self.fields.get(column) else { return Ok(None) };
        match parse(text) {
            Ok(value) => Ok(Some(value)),
            Err(cause) => bail!("{}: {} {cause}", self.place(column), value::quoted(text)),
        }
    }

    fn place(&self, column: Column) -> String {
        format!("{}, line {}, column {}", self.path.display(), self.line, self.columns.theirs(column))
    }
}
