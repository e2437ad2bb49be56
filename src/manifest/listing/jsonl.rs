//! A JSON-lines listing: one object a line, blank lines ignored. The first object tells which columns there are; a
//! needed one that a later object lacks is an error there. No line over 1 MiB is ever held in memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::line::{Column, Fields, Lines};
use crate::manifest::Record;

/// A longer line is no line of a listing; read on, it would fill the memory.
const LINE_BYTES_MAX: u64 = 1 << 20;

pub(super) fn read(
    mut listing: impl BufRead,
    mut lines: Lines<'_>,
    take: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<u64> {
    let path = lines.path().to_string();
    let mut text = Vec::new();
    let (mut line, mut checked) = (0, false);
    loop {
        text.clear();
        let mut limited = listing.by_ref().take(LINE_BYTES_MAX);
        let bytes = limited.read_until(b'\n', &mut text).with_context(|| format!("failed to read {path}"))?;
        if bytes == 0 {
            break;
        }
        line += 1;
        if bytes as u64 == LINE_BYTES_MAX && !text.ends_with(b"\n") {
            bail!("{path}, line {line}: longer than 1 MiB; is this a listing with one object a line?");
        }
        let json = text.strip_prefix(b"\xEF\xBB\xBF").filter(|_| line == 1).unwrap_or(&text);
        if json.trim_ascii().is_empty() {
            continue;
        }
        let object: BTreeMap<String, Value> =
            serde_json::from_slice(json).with_context(|| format!("{path}, line {line}: not a JSON object"))?;
        if !checked {
            check(&object, &mut lines)?;
            checked = true;
        }
        let fields = fields(&object, &lines).with_context(|| format!("{path}, line {line}"))?;
        if lines.line(line, &fields, take)?.is_break() {
            break;
        }
    }
    lines.finish()
}

fn check(first: &BTreeMap<String, Value>, lines: &mut Lines<'_>) -> Result<()> {
    let columns = lines.columns();
    let present = Column::ALL.map(|column| first.contains_key(columns.theirs(column)));
    let found: Vec<&str> = first.keys().map(String::as_str).collect();
    lines.check(&present, &found)
}

#[expect(clippy::indexing_slicing, reason = "an array with a place for each column")]
fn fields<'a>(object: &'a BTreeMap<String, Value>, lines: &Lines<'_>) -> Result<Fields<'a>> {
    let mut fields = Fields::default();
    for column in Column::ALL {
        let theirs = lines.columns().theirs(column);
        fields.0[column as usize] = match object.get(theirs) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(Cow::Borrowed(text)),
            Some(Value::Number(number)) => Some(Cow::Owned(number.to_string())),
            Some(_) => bail!("column {theirs}: neither a text nor a number"),
        };
    }
    Ok(fields)
}
