//! A CSV listing: a header line, then a microshard a line. A byte order mark, `\r\n` and quoted fields are understood;
//! a line of another length than the header is an error. A quote that is never closed must not pull the rest of the
//! listing into memory (I8): what is read for one line is bounded.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, Read};

use anyhow::{Result, anyhow, bail};
use csv::{ErrorKind, StringRecord};

use super::line::{Column, Fields, Lines};
use crate::manifest::Record;

/// Where each of our columns is in the header.
type Places = [Option<usize>; Column::ALL.len()];

/// Bytes that may be read before a line must be complete; a longer one has a quote that is not closed.
const LINE_BYTES_MAX: usize = 1 << 20;

pub(super) fn read(
    listing: impl Read,
    mut lines: Lines<'_>,
    take: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<u64> {
    let left = Cell::new(LINE_BYTES_MAX);
    let mut csv = csv::ReaderBuilder::new().buffer_capacity(1 << 18).from_reader(Allowed { listing, left: &left });
    let header: Vec<String> = match csv.headers() {
        Ok(header) => header.iter().map(|name| name.trim().to_owned()).collect(),
        Err(error) => return Err(refused(&lines, 0, error)),
    };
    let places = places(&header, &mut lines)?;
    let mut record = StringRecord::new();
    let mut line = 1;
    while csv.read_record(&mut record).map_err(|error| refused(&lines, line, error))? {
        left.set(LINE_BYTES_MAX);
        line = record.position().map_or(line, csv::Position::line);
        let fields = Fields(places.map(|place| record.get(place?).map(Cow::Borrowed)));
        if lines.line(line, &fields, take)?.is_break() {
            break;
        }
    }
    lines.finish()
}

#[expect(clippy::indexing_slicing, reason = "an array with a place for each column")]
fn places(header: &[String], lines: &mut Lines<'_>) -> Result<Places> {
    let mut places = Places::default();
    for column in Column::ALL {
        let theirs = lines.columns().theirs(column);
        let mut found = header.iter().enumerate().filter(|(_, name)| *name == theirs).map(|(place, _)| place);
        places[column as usize] = found.next();
        if let (Some(first), Some(second)) = (places[column as usize], found.next()) {
            let path = lines.path();
            bail!("{path} has the column {theirs} twice, as fields {} and {}: rename one", first + 1, second + 1);
        }
    }
    let names: Vec<&str> = header.iter().map(String::as_str).collect();
    lines.check(&places.map(|place| place.is_some()), &names)?;
    Ok(places)
}

/// What is wrong with the line that follows line `after`.
fn refused(lines: &Lines<'_>, after: u64, error: csv::Error) -> anyhow::Error {
    let path = lines.path();
    match error.kind() {
        ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let line = pos.as_ref().map_or(0, csv::Position::line);
            anyhow!("{path}, line {line}: {len} fields, but the header has {expected_len}")
        }
        ErrorKind::Utf8 { pos, err } => {
            let line = pos.as_ref().map_or(0, csv::Position::line);
            anyhow!("{path}, line {line}, field {}: not UTF-8", err.field() + 1)
        }
        _ => anyhow::Error::from(error).context(format!("failed to read {path} after line {after}")),
    }
}

/// A listing of which only so much may be read until more is allowed.
struct Allowed<'a, R> {
    listing: R,
    left: &'a Cell<usize>,
}

impl<R: Read> Read for Allowed<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 {
            return Err(io::Error::other("a line is longer than 1 MiB; is a quote not closed?"));
        }
        let read = self.listing.read(bytes)?;
        self.left.set(self.left.get().saturating_sub(read));
        Ok(read)
    }
}
