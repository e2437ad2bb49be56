//! One microshard of the demo: its number and role in, its bytes and what the manifest says of it out. Pure. Every
//! number has a random stream of its own, so neither the order nor the threads can change a byte.

use std::io::{self, Write};

use fastrand::Rng;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::blemish::{Fault, Oddity, make_odd, spoil};
use super::row::{MICROSHARD_SECONDS, transcript};
use super::text::{Language, WEIGHTS};

/// Whether a microshard is sound, odd or faulty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Sound,
    Odd(Oddity),
    Faulty(Fault),
}

/// How an object is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Zstd,
    Plain,
    Gzip,
}

impl Encoding {
    /// The end of the object's name.
    pub(super) fn extension(self) -> &'static str {
        match self {
            Encoding::Zstd => "jsonl.zst",
            Encoding::Plain => "jsonl",
            Encoding::Gzip => "jsonl.gz",
        }
    }
}

/// A microshard's bytes, and what the manifest says of it.
pub(super) struct Made {
    pub(super) number: u64,
    pub(super) video: u64,
    pub(super) language: &'static Language,
    pub(super) encoding: Encoding,
    /// `segment_count`.
    pub(super) rows: u64,
    /// What `byte_size` and `sha256` describe.
    pub(super) described: Vec<u8>,
    pub(super) stored: Stored,
}

/// What the origin has of a microshard.
pub(super) enum Stored {
    AsDescribed,
    Other(Vec<u8>),
    Nothing,
}

/// Neighbouring microshards cut from one video.
const MICROSHARDS_PER_VIDEO: u64 = 6;

/// Makes microshard `number` of the data set `seed`.
pub(super) fn make(seed: u64, number: u64, role: Role, encoder: &mut Encoder) -> io::Result<Made> {
    let mut rng = Rng::with_seed(mixed(seed ^ mixed(number)));
    let video = number / MICROSHARDS_PER_VIDEO;
    let language = language_of(seed, video);
    let encoding = encoding_of(role, &mut rng);
    let rows = if role == Role::Odd(Oddity::Empty) { 0 } else { rng.u64(20..=118) };
    let start_s = (number % MICROSHARDS_PER_VIDEO) as f64 * MICROSHARD_SECONDS;
    let mut body = transcript(video, language, rows, start_s, &mut rng);
    if let Role::Odd(oddity) = role {
        make_odd(oddity, &mut body);
    }

    let (described, stored) = object(role, encoding, body, encoder)?;
    Ok(Made { number, video, language, encoding, rows, described, stored })
}

/// The object that the manifest describes, and what is stored.
fn object(role: Role, encoding: Encoding, mut body: Vec<u8>, encoder: &mut Encoder) -> io::Result<(Vec<u8>, Stored)> {
    let described = match role {
        Role::Odd(Oddity::MultiMemberGzip) => {
            let (first, second) = body.split_at(body.len() / 2);
            [encoder.encode(encoding, first)?, encoder.encode(encoding, second)?].concat()
        }
        Role::Sound | Role::Odd(_) => encoder.encode(encoding, &body)?,
        Role::Faulty(Fault::Missing) => return Ok((encoder.encode(encoding, &body)?, Stored::Nothing)),
        Role::Faulty(Fault::TruncatedZstd) => {
            let mut bytes = encoder.encode(encoding, &body)?;
            bytes.truncate(bytes.len() / 2);
            bytes
        }
        Role::Faulty(fault @ Fault::DigestDiffers) => {
            let described = encoder.encode(encoding, &body)?;
            spoil(fault, &mut body);
            return Ok((described, Stored::Other(encoder.encode(encoding, &body)?)));
        }
        Role::Faulty(fault) => {
            spoil(fault, &mut body);
            encoder.encode(encoding, &body)?
        }
    };
    Ok((described, Stored::AsDescribed))
}

/// The shares of the languages are met by a handful of videos already: steps of the golden ratio fill an interval evenly.
fn language_of(seed: u64, video: u64) -> &'static Language {
    let point = video.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(mixed(seed));
    Language::at(((u128::from(point) * u128::from(WEIGHTS)) >> 64) as u64)
}

/// Mostly zstd; what a fault or an oddity needs where it needs one.
fn encoding_of(role: Role, rng: &mut Rng) -> Encoding {
    let drawn = match rng.u8(..100) {
        0..8 => Encoding::Plain,
        8..14 => Encoding::Gzip,
        _ => Encoding::Zstd,
    };
    match role {
        Role::Faulty(Fault::TruncatedZstd) => Encoding::Zstd,
        // Not compressed, so that the changed byte leaves the size alone and no checksum of a codec finds it first.
        Role::Faulty(Fault::DigestDiffers) => Encoding::Plain,
        Role::Odd(Oddity::MultiMemberGzip) => Encoding::Gzip,
        _ => drawn,
    }
}

/// One thread's compressors.
pub(super) struct Encoder {
    zstd: zstd::bulk::Compressor<'static>,
}

impl Encoder {
    pub(super) fn new() -> io::Result<Encoder> {
        let mut zstd = zstd::bulk::Compressor::new(3)?;
        zstd.include_checksum(true)?;
        Ok(Encoder { zstd })
    }

    fn encode(&mut self, encoding: Encoding, body: &[u8]) -> io::Result<Vec<u8>> {
        match encoding {
            Encoding::Plain => Ok(body.to_vec()),
            Encoding::Zstd => self.zstd.compress(body),
            Encoding::Gzip => {
                let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
                gzip.write_all(body)?;
                gzip.finish()
            }
        }
    }
}

/// splitmix64: neighbouring numbers give unrelated ones.
pub(super) fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
