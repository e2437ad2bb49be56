//! A shard of several frames on its way out: rows cut into frames at their ends, frames that are there already, and in the
//! end the tables that say where everything is. Where rows are cut depends on the rows alone, never on the pieces they
//! come in (I3).

use std::io::{self, Write};

use zstd::zstd_safe::{self, CCtx, CParameter};

use super::seek::{Frame, RowIndex, SeekTable};

/// Writes frames and keeps a record of them.
pub(super) struct FrameWriter<W: Write> {
    output: W,
    context: CCtx<'static>,
    frame_bytes: usize,
    /// Rows of the frame that is not full yet.
    held: Vec<u8>,
    /// The last frame, encoded.
    encoded: Vec<u8>,
    table: SeekTable,
    index: RowIndex,
}

impl<W: Write> FrameWriter<W> {
    /// Frames hold at most `frame_bytes`, but a longer row, which is a frame of its own.
    pub(super) fn create(output: W, level: i32, frame_bytes: usize) -> io::Result<FrameWriter<W>> {
        let mut context = CCtx::create();
        for parameter in [CParameter::CompressionLevel(level), CParameter::ChecksumFlag(true)] {
            context.set_parameter(parameter).map_err(encoding)?;
        }
        let (table, index) = (SeekTable::default(), RowIndex::default());
        Ok(FrameWriter { output, context, frame_bytes, held: Vec::new(), encoded: Vec::new(), table, index })
    }

    /// Adds whole rows.
    pub(super) fn rows(&mut self, mut text: &[u8]) -> io::Result<()> {
        while !text.is_empty() {
            let mut bytes = whole_rows(text, self.frame_bytes.saturating_sub(self.held.len()));
            if bytes == 0 && !self.held.is_empty() {
                self.flush()?;
                continue;
            }
            if bytes == 0 {
                bytes = first_row(text);
            }
            let rows;
            (rows, text) = text.split_at(bytes);
            if self.held.is_empty() && !text.is_empty() {
                // A whole frame, as the next row does not fit into it.
                self.encode(rows)?;
            } else {
                self.held.extend_from_slice(rows);
            }
        }
        Ok(())
    }

    /// Ends the frame that is not full yet.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let held = std::mem::take(&mut self.held);
        self.encode(&held)?;
        self.held = held;
        self.held.clear();
        Ok(())
    }

    fn encode(&mut self, rows: &[u8]) -> io::Result<()> {
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.clear();
        encoded.reserve(zstd_safe::compress_bound(rows.len()));
        self.context.compress2(&mut encoded, rows).map_err(encoding)?;
        self.copy(&encoded, rows)?;
        self.encoded = encoded;
        Ok(())
    }

    /// Adds a frame as it is; `rows` are its content.
    pub(super) fn copy(&mut self, frame: &[u8], rows: &[u8]) -> io::Result<()> {
        self.table.frames.push(Frame { compressed: size(frame.len())?, decompressed: size(rows.len())? });
        self.index.frame_rows.push(size(memchr::memchr_iter(b'\n', rows).count())?);
        self.output.write_all(frame)
    }

    /// Puts on record whose rows were added.
    pub(super) fn microshard(&mut self, microshard_id: i64, rows: u64) {
        self.index.microshards.push((microshard_id, rows));
    }

    /// Ends the last frame, and writes the tables.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        let mut tail = Vec::new();
        self.index.write(&mut tail)?;
        self.table.frames.push(Frame { compressed: size(tail.len())?, decompressed: 0 });
        self.table.write(&mut tail)?;
        self.output.write_all(&tail)?;
        Ok(self.output)
    }
}

/// As a table has it.
fn size(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a frame of over 4 GiB"))
}

/// How many bytes of whole rows fit into `room`.
fn whole_rows(text: &[u8], room: usize) -> usize {
    match text.get(..room) {
        Some(fits) if text.len() > room => memchr::memrchr(b'\n', fits).map_or(0, |end| end + 1),
        _ => text.len(),
    }
}

fn first_row(text: &[u8]) -> usize {
    memchr::memchr(b'\n', text).map_or(text.len(), |end| end + 1)
}

fn encoding(code: usize) -> io::Error {
    io::Error::other(format!("zstd cannot encode: {}", zstd_safe::get_error_name(code)))
}
