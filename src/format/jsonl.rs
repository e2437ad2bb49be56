//! JSON lines in (plain, zstd or gzip), `.jsonl.zst` out, every row verbatim: here as one frame with a content checksum.

use std::io::{self, Write};

use zstd::zstd_safe::{CCtx, CParameter};

use super::json::Checker;
use super::{BadInput, Decoder, Encoded, Limits, RowReader, Rows, ShardWriter, lines};

/// Reads microshards of JSON lines.
#[derive(Default)]
pub struct JsonlReader {
    decoder: Decoder,
    repaired: Vec<u8>,
    checker: Checker,
}

impl RowReader for JsonlReader {
    fn read<'a>(&'a mut self, object: &'a [u8], limits: Limits) -> Result<Rows<'a>, BadInput> {
        let decoded = self.decoder.decode(object, limits)?;
        let (text, count) =
            lines::check_and_repair(decoded.text, &mut self.repaired, &mut self.checker, limits.lenient)?;
        let is_as_decoded = std::ptr::eq(text, decoded.text) && !decoded.frames.is_empty();
        let encoded = is_as_decoded.then_some(Encoded { object, frames: decoded.frames });
        Ok(Rows::Lines { text, count, encoded })
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
pub(super) struct SingleWriter<W: Write> {
    encoder: zstd::stream::write::Encoder<'static, W>,
}

impl<W: Write> SingleWriter<W> {
    pub(super) fn create(output: W, level: i32) -> io::Result<SingleWriter<W>> {
        let mut encoder = zstd::stream::write::Encoder::new(output, level)?;
        encoder.include_checksum(true)?;
        Ok(SingleWriter { encoder })
    }
}

impl<W: Write> ShardWriter for SingleWriter<W> {
    type Output = W;

    fn append(&mut self, _microshard_id: i64, rows: Rows<'_>) -> io::Result<()> {
        match rows {
            Rows::Lines { text, .. } => self.encoder.write_all(text),
        }
    }

    fn finish(self: Box<Self>) -> io::Result<W> {
        self.encoder.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::encoder_bytes;

    #[test]
    fn an_encoder_takes_what_its_level_takes() {
        let [fast, usual, high] = [1, 3, 19].map(|level| encoder_bytes(level).unwrap());
        assert!(fast > 500 << 10 && usual > fast && high > 10 * usual, "{fast} {usual} {high}");
    }
}
