//! The outer layer of an input: plain, zstd or gzip, told by its first bytes, never by its name. Decoding is bounded in
//! output and window, and must end where the input ends.

use std::io::Read;

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

/// Decodes `object` into `text`, which is cleared first. `context` is reused between calls.
pub fn decompress(
    object: &[u8],
    text: &mut Vec<u8>,
    context: &mut zstd::zstd_safe::DCtx<'static>,
    limits: Limits,
) -> Result<(), BadInput> {
    text.clear();
    match Compression::of(object) {
        Compression::Plain if object.len() as u64 > limits.bytes_max => Err(too_large(limits)),
        Compression::Plain => {
            text.extend_from_slice(object);
            Ok(())
        }
        Compression::Zstd => zstd_frames(object, text, context, limits),
        Compression::Gzip => gzip_members(object, text, limits),
    }
}

fn zstd_frames(
    object: &[u8],
    text: &mut Vec<u8>,
    context: &mut zstd::zstd_safe::DCtx<'static>,
    limits: Limits,
) -> Result<(), BadInput> {
    use zstd::zstd_safe::{DParameter, ResetDirective};
    let bad = |code: usize| BadInput::new(format!("is no valid zstd: {}", zstd::zstd_safe::get_error_name(code)));
    context.reset(ResetDirective::SessionAndParameters).map_err(bad)?;
    if in_one_go(object, text, context, limits) {
        return Ok(());
    }
    context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(bad)?;
    let mut reader = zstd::stream::read::Decoder::with_context(std::io::Cursor::new(object), context);
    read_bounded(&mut reader, text, limits, "zstd")
}

/// Decodes a frame that says its size, which nearly all do, without a window to copy from. `false` where it must be looked
/// at more closely: nothing is known then, least of all what is wrong.
fn in_one_go(object: &[u8], text: &mut Vec<u8>, context: &mut zstd::zstd_safe::DCtx<'static>, limits: Limits) -> bool {
    let Ok(Some(size)) = zstd::zstd_safe::get_frame_content_size(object) else { return false };
    // The size is only a claim: room is made for no more than a usual microshard until it has proved right.
    if size > limits.bytes_max.min(CLAIM_MAX) {
        return false;
    }
    text.reserve(size as usize);
    let decoded = context.decompress(text, object).is_ok_and(|bytes| bytes as u64 == size);
    if !decoded {
        text.clear();
    }
    decoded
}

fn gzip_members(object: &[u8], text: &mut Vec<u8>, limits: Limits) -> Result<(), BadInput> {
    read_bounded(&mut flate2::bufread::MultiGzDecoder::new(object), text, limits, "gzip")
}

/// Reads to the end, but not beyond what is allowed: a bomb is found before it is unpacked.
fn read_bounded(reader: &mut dyn Read, text: &mut Vec<u8>, limits: Limits, kind: &str) -> Result<(), BadInput> {
    let read = reader.take(limits.bytes_max.saturating_add(1)).read_to_end(text);
    read.map_err(|error| BadInput::new(format!("is no valid {kind}: {error} (after {} decoded bytes)", text.len())))?;
    if text.len() as u64 > limits.bytes_max { Err(too_large(limits)) } else { Ok(()) }
}

fn too_large(limits: Limits) -> BadInput {
    BadInput::new(format!(
        "is larger than {} bytes when decoded: raise --max-microshard-bytes if that is right",
        limits.bytes_max
    ))
}
