//! JSON lines in (plain, zstd or gzip), `.jsonl.zst` out: one frame with a content checksum, every row verbatim.

use std::io::{self, Write};

use zstd::zstd_safe::{CCtx, CParameter, DCtx};

use super::{BadInput, Limits, RowReader, Rows, ShardWriter, decompress, lines};

/// Reads microshards of JSON lines.
pub struct JsonlReader {
    context: DCtx<'static>,
    text: Vec<u8>,
    repaired: Vec<u8>,
}

impl Default for JsonlReader {
    fn default() -> JsonlReader {
        JsonlReader { context: DCtx::create(), text: Vec::new(), repaired: Vec::new() }
    }
}

impl RowReader for JsonlReader {
    fn read(&mut self, object: &[u8], limits: Limits) -> Result<Rows<'_>, BadInput> {
        decompress(object, &mut self.text, &mut self.context, limits)?;
        let (text, count) = lines::check_and_repair(&self.text, &mut self.repaired)?;
        Ok(Rows::Lines { text, count })
    }
}

/// What the names of its shards end in.
pub const EXTENSION: &str = "jsonl.zst";

/// Bytes that writing one shard at `level` takes, whatever the shard's size.
pub fn encoder_bytes(level: i32) -> io::Result<u64> {
    let mut context = CCtx::create();
    context.set_parameter(CParameter::CompressionLevel(level)).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The tables are made when the first bytes come.
    zstd::stream::write::Encoder::with_context(io::sink(), &mut context).write_all(b"\n")?;
    Ok(context.sizeof() as u64)
}

/// Writes a shard as one zstd frame.
pub struct JsonlWriter<W: Write> {
    encoder: zstd::stream::write::Encoder<'static, W>,
}

impl<W: Write> JsonlWriter<W> {
    /// Writes to `output` at a zstd `level` of 1 to 22.
    pub fn create(output: W, level: i32) -> io::Result<JsonlWriter<W>> {
        let mut encoder = zstd::stream::write::Encoder::new(output, level)?;
        encoder.include_checksum(true)?;
        Ok(JsonlWriter { encoder })
    }
}

impl<W: Write> ShardWriter for JsonlWriter<W> {
    type Output = W;

    fn append(&mut self, rows: Rows<'_>) -> io::Result<()> {
        match rows {
            Rows::Lines { text, .. } => self.encoder.write_all(text),
        }
    }

    fn finish(self) -> io::Result<W> {
        self.encoder.finish()
    }
}
