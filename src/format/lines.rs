//! Rows of JSON lines: checked one by one, and repaired where nothing can be lost by it: a BOM, CRLF, blank lines and a
//! missing last newline. The bytes of a row are otherwise kept as they are.

#![expect(
    clippy::indexing_slicing,
    reason = "places that were found in this very text; a row lost for a wrong one would be worse than a panic"
)]

use super::BadInput;
use super::disputed::{self, Disputed};
use super::json::{Checker, DEPTH_MAX};

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Checks `text`; returns its rows, each ended by one `\n`, and how many there are. They are a part of `text` where nothing
/// but its ends needs repair, else they are put together in `repaired`. A lenient check is one by the grammar alone.
pub(super) fn check_and_repair<'a>(
    text: &'a [u8],
    repaired: &'a mut Vec<u8>,
    checker: &mut Checker,
    lenient: bool,
) -> Result<(&'a [u8], u64), BadInput> {
    repaired.clear();
    check_utf8(text)?;
    let mut start = if text.starts_with(BOM) { BOM.len() } else { 0 };
    // From here on rows are as they should be, and not in `repaired` yet.
    let mut good = start;
    let mut count = 0;
    for number in 1_u64.. {
        let Some(line) = text.get(start..).filter(|rest| !rest.is_empty()) else { break };
        let line = &line[..memchr::memchr(b'\n', line).unwrap_or(line.len())];
        let end = start + line.len();
        let row = without_cr(line);
        let is_blank = row.iter().all(u8::is_ascii_whitespace);
        if !is_blank {
            if !checker.accepts(row) {
                judge(row, Place { line: number, offset: start }, lenient)?;
            }
            count += 1;
        }
        if is_blank || row.len() < line.len() || end == text.len() {
            repaired.extend_from_slice(&text[good..start]);
            if !is_blank {
                repaired.extend_from_slice(row);
                repaired.push(b'\n');
            }
            good = text.len().min(end + 1);
        }
        start = end + 1;
    }
    if repaired.is_empty() {
        return Ok((&text[good..], count));
    }
    repaired.extend_from_slice(&text[good..]);
    Ok((repaired, count))
}

/// A row ends in `\n` alone; what CRLF leaves at its end is no part of it.
fn without_cr(mut line: &[u8]) -> &[u8] {
    while let Some(shorter) = line.strip_suffix(b"\r") {
        line = shorter;
    }
    line
}

/// Where a line begins.
#[derive(Clone, Copy)]
struct Place {
    line: u64,
    offset: usize,
}

fn check_utf8(text: &[u8]) -> Result<(), BadInput> {
    simdutf8::compat::from_utf8(text).map(|_| ()).map_err(|error| {
        let at = error.valid_up_to();
        let line = memchr::memchr_iter(b'\n', &text[..at]).count() + 1;
        BadInput::new(format!("line {line} is not UTF-8 (byte offset {at})"))
    })
}

/// Finds out what is wrong with a row that was not accepted at once, or that nothing is.
fn judge(row: &[u8], place: Place, lenient: bool) -> Result<(), BadInput> {
    let bad_at = |at: usize, what: &str| {
        BadInput::new(format!("line {} {what} (byte offset {})", place.line, place.offset + at))
    };
    let bad = |what: &str| bad_at(0, what);
    if row.trim_ascii_start().first() != Some(&b'{') {
        return Err(bad("is not a JSON object"));
    }
    if depth(row) > DEPTH_MAX {
        return Err(bad(&format!("is nested deeper than {DEPTH_MAX} levels")));
    }
    serde_json::from_slice::<serde::de::IgnoredAny>(row).map_err(|error| match error.is_eof() {
        true => bad("is cut off"),
        false => {
            let column = error.column();
            bad_at(column.saturating_sub(1), &format!("is not one JSON object, from column {column} on"))
        }
    })?;
    if lenient {
        return Ok(());
    }
    disputed::find(row).map_or(Ok(()), |Disputed { what, at }| {
        let advice = "readers of JSON refuse it or differ about it; `run --lenient` keeps it";
        Err(bad_at(at, &format!("has {what} at column {}: {advice}", at + 1)))
    })
}

/// How deep brackets are nested outside strings.
fn depth(row: &[u8]) -> u32 {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_u32, 0, false, false);
    for byte in row {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}
