//! How a shard is cut into zstd frames, and the one place where that decides over who writes it.

use std::fmt;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::ShardWriter;
use super::jsonl::SingleWriter;
use super::seek::FRAME_BYTES_MAX;
use super::seekable::SeekableWriter;
use super::splice::SpliceWriter;

/// How a shard is cut into zstd frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Frames {
    /// One frame.
    #[default]
    Single,
    /// Frames of at most so many bytes of whole rows, a row index and a seek table.
    Seekable(u32),
    /// The microshards' own frames where that is possible, a row index and a seek table.
    Splice,
}

impl Frames {
    /// Bytes of rows in a frame, unless told otherwise.
    pub const BYTES_DEFAULT: u32 = 4 << 20;
    const BYTES_MIN: u64 = 64 << 10;

    /// Frames of at most `bytes`.
    pub fn seekable(bytes: u64) -> Result<Frames, String> {
        match u32::try_from(bytes) {
            Ok(size) if (Frames::BYTES_MIN..=FRAME_BYTES_MAX).contains(&bytes) => Ok(Frames::Seekable(size)),
            _ => Err("frames are from 64KiB to 1GiB large".to_owned()),
        }
    }

    /// Writes a shard to `output`, at a zstd `level` of 1 to 22.
    pub fn writer<'a, W: Write + Send + 'a>(
        self,
        output: W,
        level: i32,
    ) -> io::Result<Box<dyn ShardWriter<Output = W> + Send + 'a>> {
        Ok(match self {
            Frames::Single => Box::new(SingleWriter::create(output, level)?),
            Frames::Seekable(bytes) => Box::new(SeekableWriter::create(output, level, bytes as usize)?),
            Frames::Splice => Box::new(SpliceWriter::create(output, level)?),
        })
    }

    /// Whether a shard ends in a row index and a seek table.
    pub fn has_tables(self) -> bool {
        self != Frames::Single
    }

    /// Bytes that a writer may hold: the rows of a frame, and the frame.
    pub fn held_bytes(self) -> u64 {
        match self {
            Frames::Single => 0,
            Frames::Seekable(bytes) => 2 * u64::from(bytes),
            Frames::Splice => 2 * u64::from(Frames::BYTES_DEFAULT),
        }
    }
}

/// As it is typed.
impl fmt::Display for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Frames::Single => f.write_str("single"),
            Frames::Seekable(bytes) if bytes % (1 << 20) == 0 => write!(f, "seekable={}MiB", bytes >> 20),
            Frames::Seekable(bytes) if bytes % (1 << 10) == 0 => write!(f, "seekable={}KiB", bytes >> 10),
            Frames::Seekable(bytes) => write!(f, "seekable={bytes}"),
            Frames::Splice => f.write_str("splice"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Frames;

    #[test]
    fn a_size_is_shown_as_it_is_typed_and_is_within_bounds() {
        for (bytes, shown) in [
            (4 << 20, "seekable=4MiB"),
            (65 << 10, "seekable=65KiB"),
            ((64 << 10) + 1, "seekable=65537"),
            (1 << 30, "seekable=1024MiB"),
        ] {
            assert_eq!(Frames::seekable(bytes).unwrap().to_string(), shown);
        }
        for bytes in [0, (64 << 10) - 1, (1 << 30) + 1, 1 << 32, u64::MAX] {
            assert!(Frames::seekable(bytes).is_err(), "{bytes}");
        }
    }

    #[test]
    fn a_writer_holds_a_frames_rows_and_the_frame() {
        assert_eq!(Frames::Single.held_bytes(), 0);
        assert_eq!(Frames::Seekable(1 << 20).held_bytes(), 2 << 20);
        assert_eq!(Frames::Splice.held_bytes(), 8 << 20);
    }
}
