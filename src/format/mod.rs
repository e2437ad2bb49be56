//! Formats, pure: bytes in, rows checked, bytes out. Nothing here opens a file, a connection or a thread. A microshard
//! is all or nothing: `RowReader::read` checks the whole of it before a row of it reaches a `ShardWriter` (I2).

mod detect;
mod disputed;
mod frames;
mod frame_writer;
mod json;
mod jsonl;
mod lines;
pub mod seek;
mod seekable;
mod splice;
mod stream;
mod tables;

use std::io;

pub use detect::{Compression, DataFrame, Decoded, Decoder};
pub use frames::Frames;
pub use jsonl::{EXTENSION, JsonlReader, encoder_bytes};
pub use stream::{FrameDecoder, decode_stream};
pub use tables::check_tables;

/// What is wrong with an input: a sentence with line number and byte offset where there is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct BadInput {
    /// For a person: what is wrong, and where.
    pub sentence: String,
    /// It is larger than was allowed when decoded; nothing else is known of it.
    pub is_too_large: bool,
}

impl BadInput {
    /// A fault described by `sentence`.
    pub fn new(sentence: impl Into<String>) -> BadInput {
        BadInput { sentence: sentence.into(), is_too_large: false }
    }
}

/// What a reader allows.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Decoded bytes of one microshard at most.
    pub bytes_max: u64,
    /// Rows need only be right by the grammar, whatever readers make of them.
    pub lenient: bool,
}

/// The rows of one microshard, decoded and checked. The kinds a reader gives are the kinds its writer takes.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// JSON lines: every row ends in one `\n`, verbatim otherwise.
    Lines {
        /// The rows.
        text: &'a [u8],
        /// How many.
        count: u64,
        /// How `text` was encoded; `None` where it was not zstd, or needed repair.
        encoded: Option<Encoded<'a>>,
    },
}

/// An object, and the zstd frames in it.
#[derive(Debug, Clone, Copy)]
pub struct Encoded<'a> {
    /// The object.
    pub object: &'a [u8],
    /// Its frames, as far as they have content.
    pub frames: &'a [DataFrame],
}

impl Rows<'_> {
    /// How many rows.
    pub fn count(&self) -> u64 {
        match self {
            Rows::Lines { count, .. } => *count,
        }
    }
}

/// Reads the rows of one microshard at a time; keeps its buffers between them.
pub trait RowReader: Send {
    /// Decodes and checks a whole object.
    fn read<'a>(&'a mut self, object: &'a [u8], limits: Limits) -> Result<Rows<'a>, BadInput>;
}

/// Writes a shard, one microshard's rows after another.
pub trait ShardWriter {
    /// Where the shard is written to.
    type Output;
    /// Adds the rows of a microshard.
    fn append(&mut self, microshard_id: i64, rows: Rows<'_>) -> io::Result<()>;
    /// Writes what is still held back and gives the underlying writer back.
    fn finish(self: Box<Self>) -> io::Result<Self::Output>;
}
