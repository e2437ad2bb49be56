//! Which rows are wanted, and the rows among text that comes in pieces. A row is a line; only whole rows are passed on,
//! so what was printed before an error are rows, and right.

#![expect(
    clippy::indexing_slicing,
    reason = "places that were found in this very text; a row lost for a wrong one would be worse than a panic"
)]

use std::io::{self, Write};

use anyhow::{Result, ensure};

use crate::format::seek::FRAME_BYTES_MAX;

/// A row that does not end is held back no further.
const ROW_BYTES_MAX: u64 = FRAME_BYTES_MAX;

/// Rows, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRange {
    /// The first.
    pub start: u64,
    /// The one behind the last; `None` for all that follow.
    pub end: Option<u64>,
}

impl RowRange {
    /// All rows.
    pub const ALL: RowRange = RowRange { start: 0, end: None };

    /// Fails, naming what there is, where rows are wanted that a shard of so many `rows` has not.
    pub fn check(self, rows: u64) -> Result<()> {
        let last = self.end.unwrap_or(self.start);
        ensure!(last <= rows, "it has {rows} rows, and no {}", self.beyond(rows));
        Ok(())
    }

    fn beyond(self, rows: u64) -> String {
        match self.end {
            Some(end) if end.checked_sub(1) == Some(self.start.max(rows)) => format!("row {}", end - 1),
            Some(end) => format!("rows {}..{end}", self.start.max(rows)),
            None => format!("rows from {} on", self.start),
        }
    }
}

/// Writes the wanted rows of what it is given.
pub(super) struct RowWriter<'a> {
    wanted: RowRange,
    out: &'a mut dyn Write,
    /// Rows that ended so far.
    rows: u64,
    /// The beginning of a row whose end has not come yet; kept empty before the first wanted row.
    begun: Vec<u8>,
    in_row: bool,
}

impl<'a> RowWriter<'a> {
    pub(super) fn new(wanted: RowRange, out: &'a mut dyn Write) -> RowWriter<'a> {
        RowWriter { wanted, out, rows: 0, begun: Vec::new(), in_row: false }
    }

    /// Whether no more rows are wanted.
    pub(super) fn is_done(&self) -> bool {
        self.wanted.end.is_some_and(|end| self.rows >= end)
    }

    /// Passes over rows that are known to be before the wanted ones.
    pub(super) fn skip(&mut self, rows: u64) {
        self.rows += rows;
    }

    /// Takes the next piece of text.
    pub(super) fn push(&mut self, mut text: &[u8]) -> Result<()> {
        while self.rows < self.wanted.start && !text.is_empty() {
            text = self.pass_over(text);
        }
        let end = self.end_of_wanted(text);
        if end > 0 {
            self.out.write_all(&self.begun)?;
            self.out.write_all(&text[..end])?;
            self.begun.clear();
            self.in_row = false;
        }
        if self.is_done() || self.rows < self.wanted.start {
            return Ok(());
        }
        let begun = &text[end..];
        let bytes = (self.begun.len() + begun.len()) as u64;
        ensure!(bytes <= ROW_BYTES_MAX, "its row {} is larger than {ROW_BYTES_MAX} bytes", self.rows);
        self.begun.extend_from_slice(begun);
        self.in_row |= !begun.is_empty();
        Ok(())
    }

    /// Ends the text; a last row without a newline is a row too. How many rows there were.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        if self.in_row {
            if self.rows >= self.wanted.start && !self.is_done() {
                self.out.write_all(&self.begun)?;
            }
            self.rows += 1;
        }
        Ok(self.rows)
    }

    /// What follows the row that `text` is in.
    fn pass_over<'t>(&mut self, text: &'t [u8]) -> &'t [u8] {
        match memchr::memchr(b'\n', text) {
            Some(at) => {
                (self.rows, self.in_row) = (self.rows + 1, false);
                &text[at + 1..]
            }
            None => {
                self.in_row = true;
                &[]
            }
        }
    }

    /// Where the last wanted row that ends in `text` ends; those that end are counted.
    fn end_of_wanted(&mut self, text: &[u8]) -> usize {
        let mut end = 0;
        for at in memchr::memchr_iter(b'\n', text) {
            if self.is_done() {
                break;
            }
            (self.rows, end) = (self.rows + 1, at + 1);
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written of `text` when it comes in pieces of `piece` bytes, and how many rows there were.
    fn cut(text: &str, start: u64, end: Option<u64>, piece: usize) -> (String, u64) {
        let mut out = Vec::new();
        let mut rows = RowWriter::new(RowRange { start, end }, &mut out);
        for piece in text.as_bytes().chunks(piece) {
            if rows.is_done() {
                break;
            }
            rows.push(piece).unwrap();
        }
        let count = rows.finish().unwrap();
        (String::from_utf8(out).unwrap(), count)
    }

    #[test]
    fn the_wanted_rows_are_written_whatever_the_pieces() {
        let text = "zero\none\n\nthree\nfour";
        for piece in 1..=text.len() {
            let cut = |start, end| cut(text, start, end, piece);
            assert_eq!(cut(0, None), (text.to_owned(), 5), "{piece}");
            assert_eq!(cut(1, Some(3)), ("one\n\n".to_owned(), 3), "{piece}");
            assert_eq!(cut(3, None), ("three\nfour".to_owned(), 5), "{piece}");
            assert_eq!(cut(4, Some(5)), ("four".to_owned(), 5), "{piece}");
            assert_eq!(cut(2, Some(9)), ("\nthree\nfour".to_owned(), 5), "{piece}");
            assert_eq!(cut(5, None), (String::new(), 5), "{piece}");
            assert_eq!(cut(7, Some(9)), (String::new(), 5), "{piece}");
            assert_eq!(cut(0, Some(0)), (String::new(), 0), "{piece}");
        }
    }

    #[test]
    fn no_part_of_a_row_is_written_before_its_end_has_come() {
        let mut out = Vec::new();
        let mut rows = RowWriter::new(RowRange::ALL, &mut out);
        rows.push(b"one\ntw").unwrap();
        rows.push(b"o").unwrap();
        drop(rows);
        assert_eq!(out, b"one\n");
    }

    #[test]
    fn rows_that_are_not_there_are_named_with_how_many_there_are() {
        let told = |start, end| RowRange { start, end }.check(10).map_err(|error| error.to_string());
        for (start, end) in [(0, None), (10, None), (0, Some(10)), (10, Some(10)), (9, Some(10))] {
            assert_eq!(told(start, end), Ok(()), "{start}..{end:?}");
        }
        assert_eq!(told(10, Some(11)), Err("it has 10 rows, and no row 10".into()));
        assert_eq!(told(3, Some(12)), Err("it has 10 rows, and no rows 10..12".into()));
        assert_eq!(told(3, Some(11)), Err("it has 10 rows, and no row 10".into()));
        assert_eq!(told(20, Some(30)), Err("it has 10 rows, and no rows 20..30".into()));
        assert_eq!(told(11, None), Err("it has 10 rows, and no rows from 11 on".into()));
    }
}
