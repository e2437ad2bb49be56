//! Shards made of the microshards' own frames: decoded and checked like all others, but not encoded again. Where a frame
//! cannot stand in a shard as it is, its microshard is encoded anew, into frames of its own.

use std::io::{self, Write};

use super::frame_writer::FrameWriter;
use super::seek::FRAME_BYTES_MAX;
use super::{DataFrame, Encoded, Frames, Rows, ShardWriter};

/// What every decoder supports, as the format's specification recommends.
const WINDOW_BYTES_MAX: u64 = 8 << 20;

pub(super) struct SpliceWriter<W: Write> {
    frames: FrameWriter<W>,
}

impl<W: Write> SpliceWriter<W> {
    pub(super) fn create(output: W, level: i32) -> io::Result<SpliceWriter<W>> {
        Ok(SpliceWriter { frames: FrameWriter::create(output, level, Frames::BYTES_DEFAULT as usize)? })
    }
}

impl<W: Write> ShardWriter for SpliceWriter<W> {
    type Output = W;

    #[expect(clippy::indexing_slicing, reason = "the decoder found these frames in this object and text")]
    fn append(&mut self, microshard_id: i64, rows: Rows<'_>) -> io::Result<()> {
        let Rows::Lines { text, count, encoded } = rows;
        self.frames.microshard(microshard_id, count);
        match encoded.filter(|encoded| can_stand(*encoded, text)) {
            Some(Encoded { object, frames }) => frames
                .iter()
                .try_for_each(|frame| self.frames.copy(&object[frame.object.clone()], &text[frame.text.clone()])),
            None => {
                self.frames.rows(text)?;
                self.frames.flush()
            }
        }
    }

    fn finish(self: Box<Self>) -> io::Result<W> {
        self.frames.finish()
    }
}

/// Whether all frames end with a row and can be read by every reader. None needs a dictionary: it would not have been decoded.
#[expect(clippy::indexing_slicing, reason = "the decoder found these frames in this text")]
fn can_stand(encoded: Encoded<'_>, text: &[u8]) -> bool {
    encoded.frames.iter().all(|frame| {
        let window = window_bytes(encoded.object, frame);
        text[frame.text.clone()].ends_with(b"\n")
            && frame.text.len() as u64 <= FRAME_BYTES_MAX
            && window.is_some_and(|bytes| bytes <= WINDOW_BYTES_MAX)
    })
}

/// What a decoder must remember of the content, by the frame's header.
fn window_bytes(object: &[u8], frame: &DataFrame) -> Option<u64> {
    let [_, _, _, _, descriptor, window, ..] = object.get(frame.object.clone())? else { return None };
    let is_single_segment = descriptor & 0b0010_0000 != 0;
    if is_single_segment {
        return Some(frame.text.len() as u64);
    }
    let base = 1_u64 << (10 + (window >> 3));
    Some(base + base / 8 * u64::from(window & 0b111))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8878, 3.1.1.1.2: the window of a frame that does not hold its content in one segment.
    #[test]
    fn a_frames_window_is_what_its_header_says() {
        let frame = DataFrame { object: 0..7, text: 0..1234 };
        for (descriptor, window, bytes) in [
            (0, 0, 1 << 10),
            (0, 10 << 3, 1 << 20),
            (0, (10 << 3) | 3, (1 << 20) + (3 << 17)),
            (0b0010_0000, 10 << 3, 1234),
        ] {
            let object = [0x28, 0xb5, 0x2f, 0xfd, descriptor, window, 0];
            assert_eq!(window_bytes(&object, &frame), Some(bytes));
        }
        assert_eq!(window_bytes(&[0x28, 0xb5, 0x2f, 0xfd, 0], &DataFrame { object: 0..5, text: 0..1 }), None);
    }
}
