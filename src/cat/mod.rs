//! Rows of one shard, of which no more is read than they are in: where its end tells the frames (`run --frames seekable`,
//! `splice`), its end and those frames; else all up to the last wanted row. A frame is checked whole before a row of it
//! is printed; without a seek table rows are printed as they are decoded, as the checksum only comes after them.

mod object;
mod rows;

use std::io::{self, BufReader, Read, Write};

use anyhow::{Context, Result, anyhow, bail, ensure};

pub use self::object::Object;
pub use self::rows::RowRange;
use self::rows::RowWriter;
use crate::format::seek::{FRAME_BYTES_MAX, Frame, RowIndex, SeekTable, Tail};
use crate::format::{BadInput, FrameDecoder, decode_stream};
use crate::store::StoreError;

/// What is read of a shard's end at first: row index and seek table of some 2,000 spliced microshards.
const TAIL_BYTES: u64 = 64 << 10;
/// Longer tables are refused: those of over five million frames.
const TAIL_BYTES_MAX: u64 = 64 << 20;

/// Which rows of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// By their numbers.
    Rows(RowRange),
    /// All rows of one microshard.
    Microshard(i64),
}

/// Prints the wanted rows. Errors do not name the shard, which the caller knows, but where the store or `out` failed:
/// then they are a `StoreError` or an `io::Error`.
pub fn cat(shard: &mut Object<'_>, wanted: Wanted, out: &mut dyn Write) -> Result<()> {
    let layout = Layout::read(shard)?;
    let index = layout.as_ref().and_then(|layout| layout.index.as_ref());
    let rows = match (wanted, index) {
        (Wanted::Rows(rows), None) => rows,
        (Wanted::Rows(rows), Some(index)) => {
            rows.check(index.rows())?;
            rows
        }
        (Wanted::Microshard(id), Some(index)) => {
            let others = index.microshards.len();
            let rows = index.rows_of(id).with_context(|| format!("it has no microshard {id}, but {others} others"))?;
            RowRange { start: rows.start, end: Some(rows.end) }
        }
        (Wanted::Microshard(_), None) if shard.comes_whole() => bail!(
            "its server ignores ranges, so its row index cannot be read alone: use --rows, or download it and print from \
             the file"
        ),
        (Wanted::Microshard(_), None) => bail!(
            "it has no row index to find a microshard by, which `run --frames seekable` and `--frames splice` write: use \
             --rows"
        ),
    };
    match &layout {
        Some(layout) => layout.print(shard, rows, out),
        None => print_stream(shard, rows, out),
    }
}

/// What the end of a shard tells about the rest.
struct Layout {
    table: SeekTable,
    index: Option<RowIndex>,
}

impl Layout {
    /// `None` where there is no seek table, or its server knows no ranges.
    fn read(shard: &mut Object<'_>) -> Result<Option<Layout>> {
        let mut bytes = TAIL_BYTES;
        let table = loop {
            let Some(tail) = shard.tail(bytes)? else { return Ok(None) };
            match SeekTable::read_tail(tail)? {
                Tail::NoTable => return Ok(None),
                Tail::Table(table) => break table,
                Tail::Longer(needed) => {
                    let size = tail.len() as u64;
                    ensure!(size == bytes, "its seek table claims {needed} bytes, and the whole shard has {size}");
                    ensure!(needed <= TAIL_BYTES_MAX, "its seek table of {needed} bytes is larger than is read");
                    // A row index takes up to thrice as much as its seek table.
                    bytes = 4 * needed;
                }
            }
        };
        table.check_size(shard.bytes().unwrap_or_default())?;
        let index = match table.index_frame() {
            Some(frame) => read_index(shard, &table, frame)?,
            None => None,
        };
        Ok(Some(Layout { table, index }))
    }

    /// Prints rows, which are all there if the index says so.
    fn print(&self, shard: &Object<'_>, rows: RowRange, out: &mut dyn Write) -> Result<()> {
        let mut writer = RowWriter::new(rows, out);
        let frames = match &self.index {
            Some(index) => {
                let span = index.frames_of(rows.start..rows.end.unwrap_or(u64::MAX));
                writer.skip(span.rows_before);
                span.frames
            }
            None => 0..self.table.frames.len(),
        };
        let mut bytes = shard.read(self.table.span(frames.clone()));
        let (mut decoder, mut frame) = (FrameDecoder::default(), Vec::new());
        for number in frames {
            if writer.is_done() {
                return Ok(());
            }
            let Some(entry) = self.table.frames.get(number).copied() else { bail!("it has no frame {number}") };
            read_frame(&mut bytes, entry, &mut frame)?;
            let text = decoder.decode(entry, &frame).and_then(|text| self.check_rows(number, text).map(|()| text));
            writer.push(text.map_err(|bad| anyhow!("its frame {number}, counted from 0, {bad}"))?)?;
        }
        let rows_there = writer.finish()?;
        if self.index.is_none() { rows.check(rows_there) } else { Ok(()) }
    }

    /// The frame holds as many rows as the index says, if there is one.
    fn check_rows(&self, number: usize, text: &[u8]) -> Result<(), BadInput> {
        let Some(expected) = self.index.as_ref().and_then(|index| index.frame_rows.get(number)) else { return Ok(()) };
        let rows = memchr::memchr_iter(b'\n', text).count();
        match rows as u64 == u64::from(*expected) && text.last().is_none_or(|last| *last == b'\n') {
            true => Ok(()),
            false => Err(BadInput::new(format!("has {rows} rows, not the {expected} of its row index"))),
        }
    }
}

fn read_index(shard: &Object<'_>, table: &SeekTable, frame: usize) -> Result<Option<RowIndex>> {
    let Some(entry) = table.frames.get(frame).copied() else { return Ok(None) };
    ensure!(u64::from(entry.compressed) <= TAIL_BYTES_MAX, "its last frame is too large for a row index");
    let mut bytes = Vec::new();
    read_frame(&mut shard.read(table.span(frame..frame + 1)), entry, &mut bytes)?;
    let index = RowIndex::read(&bytes)?;
    let counted = index.as_ref().map_or(frame, |index| index.frame_rows.len());
    ensure!(counted == frame, "its row index counts {counted} frames, and its seek table {frame}");
    Ok(index)
}

fn read_frame(bytes: &mut dyn Read, frame: Frame, into: &mut Vec<u8>) -> Result<()> {
    let size = u64::from(frame.compressed);
    ensure!(size <= 2 * FRAME_BYTES_MAX, "its seek table has a frame of {size} bytes: none can be so large");
    into.clear();
    bytes.take(size).read_to_end(into).map_err(unwrapped)?;
    Ok(())
}

/// Decodes from the start, and no further than the last wanted row.
fn print_stream(shard: &Object<'_>, rows: RowRange, out: &mut dyn Write) -> Result<()> {
    let mut writer = RowWriter::new(rows, out);
    let object = BufReader::with_capacity(64 << 10, shard.read_whole());
    let mut text = decode_stream(object).map_err(unwrapped)?;
    let (mut piece, mut decoded) = (vec![0; 128 << 10], 0_u64);
    while !writer.is_done() {
        let read = text.read(&mut piece).map_err(|error| match unwrapped(error) {
            error if error.is::<StoreError>() => error,
            error => anyhow!(
                "it cannot be decoded beyond {decoded} bytes of rows: {error}; the last rows printed may be wrong, as \
                 without a seek table they come before their checksum"
            ),
        })?;
        if read == 0 {
            return rows.check(writer.finish()?);
        }
        decoded += read as u64;
        writer.push(piece.get(..read).context("its reader gave more than it was asked for")?)?;
    }
    Ok(())
}

/// The error of the store that is in one of its readers'.
fn unwrapped(error: io::Error) -> anyhow::Error {
    match error.downcast::<StoreError>() {
        Ok(error) => error.into(),
        Err(error) => error.into(),
    }
}
