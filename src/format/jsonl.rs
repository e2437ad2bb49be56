//! JSON lines in (plain, zstd or gzip), `.jsonl.zst` out: one frame with a content checksum, every row verbatim.

use std::io::{self, Write};

use zstd::zstd_safe::DCtx;

use super::{BadInput, Limits, RowReader, Rows, ShardWriter, decompress, lines};

/// Reads microshards of JSON lines.
pub struct JsonlReader {
    context: DCtx<'static>,
    text: Vec<u8>,
    rows: Vec<u8>,
}

impl Default for JsonlReader {
    fn default() -> JsonlReader {
        JsonlReader { context: DCtx::create(), text: Vec::new(), rows: Vec::new() }
    }
}

impl RowReader for JsonlReader {
    fn read(&mut self, object: &[u8], limits: Limits) -> Result<Rows<'_>, BadInput> {
        decompress(object, &mut self.text, &mut self.context, limits)?;
        let count = lines::check_and_repair(&self.text, &mut self.rows)?;
        Ok(Rows::Lines { text: &self.rows, count })
    }
}

/// Writes a shard as one zstd frame.
pub struct JsonlWriter {
    encoder: zstd::stream::write::Encoder<'static, Box<dyn Write + Send>>,
}

impl JsonlWriter {
    /// What the names of its objects end in.
    pub const EXTENSION: &'static str = "jsonl.zst";

    /// Writes to `output` at a zstd `level` of 1 to 22.
    pub fn create(output: Box<dyn Write + Send>, level: i32) -> io::Result<JsonlWriter> {
        let mut encoder = zstd::stream::write::Encoder::new(output, level)?;
        encoder.include_checksum(true)?;
        Ok(JsonlWriter { encoder })
    }
}

impl ShardWriter for JsonlWriter {
    fn append(&mut self, rows: Rows<'_>) -> io::Result<()> {
        match rows {
            Rows::Lines { text, .. } => self.encoder.write_all(text),
        }
    }

    fn finish(self) -> io::Result<Box<dyn Write + Send>> {
        self.encoder.finish()
    }
}
