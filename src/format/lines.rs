//! Rows of JSON lines: checked one by one, and repaired where nothing can be lost by it: a BOM, CRLF, blank lines and a
//! missing last newline. The bytes of a row are otherwise kept as they are.

use super::BadInput;

/// Objects and arrays nested deeper than this break readers that recurse.
const DEPTH_MAX: u32 = 128;
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Checks `text` and writes its rows to `rows`, each ended by one `\n`; returns how many there are.
pub(super) fn check_and_repair(text: &[u8], rows: &mut Vec<u8>) -> Result<u64, BadInput> {
    rows.clear();
    let body = text.strip_prefix(BOM).unwrap_or(text);
    let skipped = text.len() - body.len();
    check_utf8(body, skipped)?;
    rows.reserve(body.len() + 1);
    let mut count = 0;
    let mut start = 0;
    for (number, end) in (1_u64..).zip(memchr::memchr_iter(b'\n', body).chain([body.len()])) {
        let Some(line) = body.get(start..end) else { break };
        let place = Place { line: number, offset: skipped + start };
        start = end + 1;
        let row = without_cr(line);
        if row.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        check_row(row, place)?;
        rows.extend_from_slice(row);
        rows.push(b'\n');
        count += 1;
    }
    Ok(count)
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

fn check_utf8(body: &[u8], skipped: usize) -> Result<(), BadInput> {
    std::str::from_utf8(body).map(|_| ()).map_err(|error| {
        let at = error.valid_up_to();
        let line = memchr::memchr_iter(b'\n', &body[..at]).count() + 1;
        BadInput::new(format!("line {line} is not UTF-8 (byte offset {})", skipped + at))
    })
}

/// One JSON object, and nothing after it.
fn check_row(row: &[u8], place: Place) -> Result<(), BadInput> {
    let bad = |what: &str| BadInput::new(format!("line {} {what} (byte offset {})", place.line, place.offset));
    if row.trim_ascii_start().first() != Some(&b'{') {
        return Err(bad("is not a JSON object"));
    }
    if depth(row) > DEPTH_MAX {
        return Err(bad(&format!("is nested deeper than {DEPTH_MAX} levels")));
    }
    serde_json::from_slice::<serde::de::IgnoredAny>(row).map(|_| ()).map_err(|error| match error.is_eof() {
        true => bad("is cut off"),
        false => bad(&format!("is not one JSON object, from column {} on", error.column())),
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
