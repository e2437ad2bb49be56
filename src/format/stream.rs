//! Decoding for who reads shards: frame by frame, each checked whole before anything of it is shown, where a seek table
//! tells the frames; else as a stream. Bounded in window and, of a frame, in output.

use std::io::{self, BufRead, Read};

use zstd::zstd_safe::{self, DCtx, find_frame_compressed_size, get_frame_content_size};

use super::BadInput;
use super::detect::{Compression, WINDOW_LOG_MAX};
use super::seek::{FRAME_BYTES_MAX, Frame};

/// Decodes frames that a seek table lists; keeps its buffer between them.
pub struct FrameDecoder {
    context: DCtx<'static>,
    text: Vec<u8>,
}

impl Default for FrameDecoder {
    fn default() -> FrameDecoder {
        FrameDecoder { context: DCtx::create(), text: Vec::new() }
    }
}

impl FrameDecoder {
    /// The content of `bytes`, which are one frame and hold just what the table says.
    pub fn decode(&mut self, frame: Frame, bytes: &[u8]) -> Result<&[u8], BadInput> {
        let bad = |code| BadInput::new(format!("is no valid zstd: {}", zstd_safe::get_error_name(code)));
        let size = u64::from(frame.decompressed);
        let lie = || BadInput::new("is not what the seek table says");
        // Both before room is made for what is only a claim.
        if size > FRAME_BYTES_MAX || find_frame_compressed_size(bytes).map_err(bad)? != bytes.len() {
            return Err(lie());
        }
        if get_frame_content_size(bytes).is_ok_and(|known| known.is_some_and(|known| known != size)) {
            return Err(lie());
        }
        self.text.clear();
        self.text.reserve_exact(size as usize);
        let decoded = self.context.decompress(&mut self.text, bytes).map_err(bad)?;
        if decoded as u64 == size { Ok(&self.text) } else { Err(lie()) }
    }
}

/// Decodes a whole object as it arrives: plain, zstd or gzip. An input that does not end where a frame ends is an error, and
/// so is one that begins like no row: a damaged magic number must not make compressed bytes of a shard its rows.
pub fn decode_stream<'a>(mut object: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let start = object.fill_buf()?;
    Ok(match Compression::of(start) {
        Compression::Plain if !may_be_rows(start) => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its first bytes are neither zstd nor gzip nor the beginning of a JSON object",
            ));
        }
        Compression::Plain => Box::new(object),
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(object)),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(object)?;
            decoder.window_log_max(WINDOW_LOG_MAX)?;
            Box::new(decoder)
        }
    })
}

fn may_be_rows(start: &[u8]) -> bool {
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    text.first().is_none_or(|first| *first == b'{')
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"{\"a\":1}\n{\"a\":2}\n";

    fn frame_of(text: &[u8]) -> (Frame, Vec<u8>) {
        let mut encoder = zstd::bulk::Compressor::new(3).unwrap();
        encoder.include_checksum(true).unwrap();
        let bytes = encoder.compress(text).unwrap();
        (Frame { compressed: bytes.len() as u32, decompressed: text.len() as u32 }, bytes)
    }

    #[test]
    fn a_frame_is_decoded_if_it_is_what_the_table_says() {
        let (frame, bytes) = frame_of(TEXT);
        let mut decoder = FrameDecoder::default();
        assert_eq!(decoder.decode(frame, &bytes).unwrap(), TEXT);
        let mut sentence =
            |decompressed, bytes: &[u8]| decoder.decode(Frame { decompressed, ..frame }, bytes).unwrap_err().sentence;
        for decompressed in [0, frame.decompressed - 1, frame.decompressed + 1, 1 << 30, u32::MAX] {
            assert_eq!(sentence(decompressed, &bytes), "is not what the seek table says");
        }
        assert!(decoder.text.capacity() < 1 << 20, "room was made for a lie");
        let mut sentence =
            |decompressed, bytes: &[u8]| decoder.decode(Frame { decompressed, ..frame }, bytes).unwrap_err().sentence;
        assert_eq!(sentence(frame.decompressed, &[&bytes[..], &bytes].concat()), "is not what the seek table says");
        assert!(sentence(frame.decompressed, &bytes[..bytes.len() - 1]).starts_with("is no valid zstd: "));
        let mut flipped = bytes.clone();
        *flipped.last_mut().unwrap() ^= 1;
        assert!(sentence(frame.decompressed, &flipped).contains("checksum"));
    }

    #[test]
    fn a_frame_without_a_content_size_and_a_skippable_one_are_decoded_too() {
        let mut decoder = FrameDecoder::default();
        let mut compressor = zstd::bulk::Compressor::new(3).unwrap();
        compressor.include_contentsize(false).unwrap();
        let sizeless = compressor.compress(TEXT).unwrap();
        let frame = Frame { compressed: sizeless.len() as u32, decompressed: TEXT.len() as u32 };
        assert_eq!(decoder.decode(frame, &sizeless).unwrap(), TEXT);
        let shorter = Frame { decompressed: 3, ..frame };
        assert!(decoder.decode(shorter, &sizeless).is_err());
        let longer = Frame { decompressed: 300, ..frame };
        assert_eq!(decoder.decode(longer, &sizeless).unwrap_err().sentence, "is not what the seek table says");
        let skippable = b"\x50\x2a\x4d\x18\x04\0\0\0more";
        assert_eq!(decoder.decode(Frame { compressed: 12, decompressed: 0 }, skippable).unwrap(), b"");
    }

    #[test]
    fn a_stream_is_decoded_whatever_it_is_and_must_end_where_it_should() {
        let read = |object: &[u8]| -> io::Result<Vec<u8>> {
            let mut text = Vec::new();
            decode_stream(object)?.read_to_end(&mut text).map(|_| text)
        };
        let (_, frame) = frame_of(TEXT);
        let skippable = b"\x50\x2a\x4d\x18\x04\0\0\0more";
        let mut gzip = flate2::bufread::GzEncoder::new(TEXT, flate2::Compression::fast());
        let mut zipped = Vec::new();
        gzip.read_to_end(&mut zipped).unwrap();
        let twice = TEXT.repeat(2);
        for (object, text) in [
            (TEXT.to_vec(), TEXT),
            (vec![], &[][..]),
            (frame.clone(), TEXT),
            ([&frame[..], skippable, &frame].concat(), &twice),
            (zipped.repeat(2), &twice),
        ] {
            assert_eq!(read(&object).unwrap(), text);
        }
        let damaged = [&[frame[0] ^ 1], &frame[1..]].concat();
        for other in [&damaged[..], b"\xef\xbb\xbf[1]\n", b"no such shard\n", b"\0"] {
            assert!(read(other).unwrap_err().to_string().contains("neither zstd nor gzip"));
        }
        assert!(read(&frame[..frame.len() - 1]).is_err());
        assert!(read(&zipped[..zipped.len() - 1]).is_err());
    }
}
