//! The outer layer of an input: plain, zstd or gzip, told by its first bytes, never by its name. Decoding is bounded in
//! output and window, and must end where the input ends.

use std::io::{Cursor, Read};
use std::ops::Range;

use zstd::zstd_safe::{self, DCtx, DParameter, ResetDirective};

use super::{BadInput, Limits};

/// The largest zstd window that is decoded: 128 MiB, what `zstd --long=27` writes.
pub(super) const WINDOW_LOG_MAX: u32 = 27;

/// The largest size that is believed before anything is decoded.
const CLAIM_MAX: u64 = 1 << 20;

/// How an object is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    Plain,
    /// zstd, one frame or several.
    Zstd,
    /// gzip, one member or several.
    Gzip,
}

impl Compression {
    /// Tells it by the magic number.
    pub fn of(object: &[u8]) -> Compression {
        match object {
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
            [0x1f, 0x8b, ..] => Compression::Gzip,
            _ => Compression::Plain,
        }
    }
}

/// Decodes one object after another; keeps its buffers between them.
pub struct Decoder {
    context: DCtx<'static>,
    text: Vec<u8>,
    frames: Vec<DataFrame>,
}

/// What an object holds.
#[derive(Debug, Clone, Copy)]
pub struct Decoded<'a> {
    /// All of its content.
    pub text: &'a [u8],
    /// The frames that hold it, where the object is zstd.
    pub frames: &'a [DataFrame],
}

/// A zstd frame that has content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFrame {
    /// Where it is in the object.
    pub object: Range<usize>,
    /// Where its content is in the text.
    pub text: Range<usize>,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder { context: DCtx::create(), text: Vec::new(), frames: Vec::new() }
    }
}

impl Decoder {
    /// Decodes a whole object.
    pub fn decode(&mut self, object: &[u8], limits: Limits) -> Result<Decoded<'_>, BadInput> {
        self.text.clear();
        self.frames.clear();
        match Compression::of(object) {
            Compression::Plain if object.len() as u64 > limits.bytes_max => return Err(too_large(limits)),
            Compression::Plain => self.text.extend_from_slice(object),
            Compression::Zstd => self.zstd_frames(object, limits)?,
            Compression::Gzip => {
                let mut reader = flate2::bufread::MultiGzDecoder::new(object);
                read_bounded(&mut reader, &mut self.text, limits, "gzip")?;
            }
        }
        Ok(Decoded { text: &self.text, frames: &self.frames })
    }

    #[expect(clippy::indexing_slicing, reason = "a frame ends in the bytes that it was looked for in")]
    fn zstd_frames(&mut self, object: &[u8], limits: Limits) -> Result<(), BadInput> {
        let bad = |code: usize| BadInput::new(format!("is no valid zstd: {}", zstd_safe::get_error_name(code)));
        self.context.reset(ResetDirective::SessionAndParameters).map_err(bad)?;
        self.context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(bad)?;
        let (mut start, mut decoded) = (0, 0);
        while start < object.len() {
            let rest = &object[start..];
            // What has no end is decoded too: that tells best what is wrong with it.
            let bytes = zstd_safe::find_frame_compressed_size(rest).unwrap_or(rest.len());
            self.zstd_frame(&rest[..bytes], limits)?;
            if self.text.len() > decoded {
                self.frames.push(DataFrame { object: start..start + bytes, text: decoded..self.text.len() });
            }
            (start, decoded) = (start + bytes, self.text.len());
        }
        Ok(())
    }

    fn zstd_frame(&mut self, frame: &[u8], limits: Limits) -> Result<(), BadInput> {
        if self.in_one_go(frame, limits) {
            return Ok(());
        }
        let mut reader = zstd::stream::read::Decoder::with_context(Cursor::new(frame), &mut self.context);
        read_bounded(&mut reader, &mut self.text, limits, "zstd")
    }

    /// Decodes a frame that says its size, which nearly all do, without a window to copy from. `false` where it must be
    /// looked at more closely: nothing is known then, least of all what is wrong.
    fn in_one_go(&mut self, frame: &[u8], limits: Limits) -> bool {
        let Ok(Some(size)) = zstd_safe::get_frame_content_size(frame) else { return false };
        let start = self.text.len();
        // The size is only a claim: room is made for no more than a usual microshard until it has proved right.
        if size > limits.bytes_max.saturating_sub(start as u64).min(CLAIM_MAX) {
            return false;
        }
        self.text.reserve(size as usize);
        let mut behind = Cursor::new(&mut self.text);
        behind.set_position(start as u64);
        let decoded = self.context.decompress(&mut behind, frame).is_ok_and(|bytes| bytes as u64 == size);
        if !decoded {
            self.text.truncate(start);
        }
        decoded
    }
}

/// Reads to the end, but not beyond what is allowed: a bomb is found before it is unpacked.
fn read_bounded(reader: &mut dyn Read, text: &mut Vec<u8>, limits: Limits, kind: &str) -> Result<(), BadInput> {
    let allowed = limits.bytes_max.saturating_sub(text.len() as u64).saturating_add(1);
    let read = reader.take(allowed).read_to_end(text);
    read.map_err(|error| {
        BadInput::new(format!("is no valid {kind}, or damaged: {error} (after {} decoded bytes)", text.len()))
    })?;
    if text.len() as u64 > limits.bytes_max { Err(too_large(limits)) } else { Ok(()) }
}

fn too_large(limits: Limits) -> BadInput {
    let bytes_max = limits.bytes_max;
    let sentence =
        format!("is larger than {bytes_max} bytes when decoded: raise --max-microshard-bytes if that is right");
    BadInput { is_too_large: true, ..BadInput::new(sentence) }
}
