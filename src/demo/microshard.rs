//! One microshard of the demo: its rows, what is odd or wrong about it, and its bytes. Pure: seed and number in, bytes
//! out. Every number has a random stream of its own, so neither order nor threads can change a byte.

use std::io::{self, Write};

use fastrand::Rng;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::text::{Language, WEIGHTS};

/// What is wrong with a microshard on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The manifest names it, the origin does not have it.
    Missing,
    /// Its zstd frame ends in the middle; size and sha256 are those of the cut object.
    TruncatedZstd,
    /// One row less than the manifest's `segment_count`.
    RowsDiffer,
    /// Its last line ends in the middle of the JSON object.
    BrokenLastLine,
    /// A byte 0xFF inside a text.
    InvalidUtf8,
    /// Sound rows of the right size, but not those whose sha256 the manifest has.
    DigestDiffers,
}

impl Fault {
    /// All kinds, in the order in which they are spread.
    pub const ALL: [Fault; 6] = [
        Fault::Missing,
        Fault::TruncatedZstd,
        Fault::RowsDiffer,
        Fault::BrokenLastLine,
        Fault::InvalidUtf8,
        Fault::DigestDiffers,
    ];
}

/// What is unusual about a microshard, and must be repaired rather than refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Oddity {
    /// A UTF-8 byte order mark at the start.
    Bom,
    /// Lines end in `\r\n`.
    Crlf,
    /// Blank lines between the rows.
    BlankLines,
    /// No `\n` after the last row.
    NoFinalNewline,
    /// No rows at all.
    Empty,
    /// Two gzip members, the first ending in the middle of a row.
    MultiMemberGzip,
}

impl Oddity {
    /// All kinds, in the order in which they are spread.
    pub const ALL: [Oddity; 6] =
        [Oddity::Bom, Oddity::Crlf, Oddity::BlankLines, Oddity::NoFinalNewline, Oddity::Empty, Oddity::MultiMemberGzip];
}

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
    /// What is stored where that is something else; `Some(None)` is nothing at all.
    pub(super) stored_instead: Option<Option<Vec<u8>>>,
}

/// Neighbouring microshards cut from one video.
const MICROSHARDS_PER_VIDEO: u64 = 6;
/// Seconds of a video in one microshard.
const MICROSHARD_SECONDS: f64 = 600.0;

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

    let mut stored_instead = None;
    let described = match role {
        Role::Odd(Oddity::MultiMemberGzip) => {
            let (first, second) = body.split_at(body.len() / 2);
            [encoder.encode(encoding, first)?, encoder.encode(encoding, second)?].concat()
        }
        Role::Sound | Role::Odd(_) => encoder.encode(encoding, &body)?,
        Role::Faulty(Fault::TruncatedZstd) => {
            let mut bytes = encoder.encode(encoding, &body)?;
            bytes.truncate(bytes.len() / 2);
            bytes
        }
        Role::Faulty(Fault::Missing) => {
            stored_instead = Some(None);
            encoder.encode(encoding, &body)?
        }
        Role::Faulty(fault @ Fault::DigestDiffers) => {
            let intended = encoder.encode(encoding, &body)?;
            spoil(fault, &mut body);
            stored_instead = Some(Some(encoder.encode(encoding, &body)?));
            intended
        }
        Role::Faulty(fault) => {
            spoil(fault, &mut body);
            encoder.encode(encoding, &body)?
        }
    };
    Ok(Made { number, video, language, encoding, rows, described, stored_instead })
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

fn transcript(video: u64, language: &Language, rows: u64, start_s: f64, rng: &mut Rng) -> Vec<u8> {
    let mut body = Vec::with_capacity(rows as usize * 512);
    let step_s = MICROSHARD_SECONDS / rows.max(1) as f64;
    for row in 0..rows {
        let from_s = start_s + row as f64 * step_s + rng.f64() * 0.2 * step_s;
        let to_s = from_s + (0.3 + rng.f64() * 0.5) * step_s;
        push_row(&mut body, video, language, from_s, to_s, rng);
    }
    body
}

fn push_row(body: &mut Vec<u8>, video: u64, language: &Language, from_s: f64, to_s: f64, rng: &mut Rng) {
    let code = language.code;
    let (id, speaker) = (rng.u64(..), rng.u8(1..=4));
    // Spellings a parser would change if it wrote the row again: 1.50, 1e3, spaces, escapes.
    let colon = if rng.u8(..32) == 0 { " : " } else { ":" };
    print_to(body, format_args!(r#"{{"id"{colon}"seg-{id:016x}","video_id":"vid-{video:07}","language":"{code}""#));
    print_to(body, format_args!(r#","start":{from_s:.2},"end":{to_s:.2},"speaker":"S{speaker}","text":""#));
    for sentence in 0..rng.u8(1..=4) {
        if sentence > 0 {
            body.extend_from_slice(language.space().as_bytes());
        }
        language.sentence(rng, body);
    }
    body.extend_from_slice(
        match rng.u8(..64) {
            0 => r#" \"...\""#,
            1 => r"\n",
            2 => r" caf\u00e9",
            3 => r" \/ ",
            4 => r" \ud83d\ude00",
            5 => r"\t\\",
            _ => "",
        }
        .as_bytes(),
    );
    print_to(body, format_args!(r#"","avg_logprob":-0.{:04}"#, rng.u16(..10_000)));
    body.extend_from_slice(
        match rng.u8(..64) {
            0 => r#","gain":1.50"#,
            1 => r#","gain":1e3"#,
            2 => r#","gain":-0.0"#,
            3 => r#","gain":12345678901234567890"#,
            _ => "",
        }
        .as_bytes(),
    );
    push_tokens(body, rng);
    body.extend_from_slice(b"}\n");
}

/// Token numbers, as speech recognisers write them beside the text.
fn push_tokens(body: &mut Vec<u8>, rng: &mut Rng) {
    body.extend_from_slice(br#","tokens":["#);
    for token in 0..rng.u8(6..=22) {
        let comma = if token > 0 { "," } else { "" };
        print_to(body, format_args!("{comma}{}", rng.u16(..51_865)));
    }
    body.push(b']');
}

fn print_to(body: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    body.write_fmt(text).expect("a Vec takes every byte");
}

fn make_odd(oddity: Oddity, body: &mut Vec<u8>) {
    match oddity {
        Oddity::Bom => drop(body.splice(0..0, *b"\xEF\xBB\xBF")),
        Oddity::Crlf => *body = replaced_newlines(body, |_| b"\r\n"),
        Oddity::BlankLines => *body = replaced_newlines(body, |line| if line % 10 == 0 { b"\n\n\n" } else { b"\n" }),
        Oddity::NoFinalNewline => drop(body.pop()),
        Oddity::Empty | Oddity::MultiMemberGzip => {}
    }
}

fn replaced_newlines(body: &[u8], newline: impl Fn(usize) -> &'static [u8]) -> Vec<u8> {
    let lines = body.split_inclusive(|byte| *byte == b'\n').enumerate();
    lines.flat_map(|(index, line)| [&line[..line.len() - 1], newline(index)]).flatten().copied().collect()
}

/// Rows are never fewer than 20 here, so every place that is spoiled is there.
fn spoil(fault: Fault, body: &mut Vec<u8>) {
    let last_line = memchr::memrchr(b'\n', &body[..body.len() - 1]).map_or(0, |newline| newline + 1);
    match fault {
        Fault::RowsDiffer => body.truncate(last_line),
        Fault::BrokenLastLine => body.truncate(last_line + (body.len() - last_line) / 2),
        Fault::InvalidUtf8 => {
            let text = find_after(body, body.len() / 2, b"\"text\":\"");
            body[text] = 0xFF;
        }
        Fault::DigestDiffers => {
            let start = find_after(body, 0, b"\"start\":");
            let decimal = find_after(body, start, b".");
            body[decimal] = b'0' + (body[decimal] - b'0' + 1) % 10;
        }
        Fault::Missing | Fault::TruncatedZstd => {}
    }
}

/// The offset just behind `what`, looked for from `from` on.
fn find_after(body: &[u8], from: usize, what: &[u8]) -> usize {
    memchr::memmem::find(&body[from..], what).map_or(0, |found| from + found + what.len())
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
