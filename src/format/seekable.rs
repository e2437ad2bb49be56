//! Shards in the zstd seekable format: frames of about the same size, cut at row ends.

use std::io::{self, Write};

use super::frame_writer::FrameWriter;
use super::{Rows, ShardWriter};

pub(super) struct SeekableWriter<W: Write> {
    frames: FrameWriter<W>,
}

impl<W: Write> SeekableWriter<W> {
    pub(super) fn create(output: W, level: i32, frame_bytes: usize) -> io::Result<SeekableWriter<W>> {
        Ok(SeekableWriter { frames: FrameWriter::create(output, level, frame_bytes)? })
    }
}

impl<W: Write> ShardWriter for SeekableWriter<W> {
    type Output = W;

    fn append(&mut self, microshard_id: i64, rows: Rows<'_>) -> io::Result<()> {
        let Rows::Lines { text, count, .. } = rows;
        self.frames.microshard(microshard_id, count);
        self.frames.rows(text)
    }

    fn finish(self: Box<Self>) -> io::Result<W> {
        self.frames.finish()
    }
}
