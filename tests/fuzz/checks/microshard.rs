//! Any object: it is refused with a sentence, or its rows are those of an independent decoder, and the very same come out
//! of a shard of every kind.

use std::io::{Read, Write};

use compact_local::format::{
    Decoder, Encoded, FrameDecoder, Frames, JsonlReader, Limits, RowReader, Rows, check_tables, decode_stream, seek,
};

const LIMITS: Limits = Limits { bytes_max: 1 << 20, lenient: false };
const NEXT: &[u8] = b"{\"next\":1}\n";

/// The first byte says how the others are encoded, if at all.
pub(crate) fn check(input: &[u8]) {
    let Some((how, text)) = input.split_first() else { return };
    check_object(&encoded(*how, text));
}

fn encoded(how: u8, text: &[u8]) -> Vec<u8> {
    let (first, second) = text.split_at(text.len() * usize::from(how >> 3) / 31);
    let skippable = b"\x50\x2a\x4d\x18\x04\0\0\0more".as_slice();
    match how & 0b111 {
        1 => zstd_of(text, true),
        2 => [zstd_of(first, true), zstd_of(second, false)].concat(),
        3 => gzip_of(text),
        4 => [gzip_of(first), gzip_of(second)].concat(),
        5 => [skippable, &zstd_of(first, false), skippable, &zstd_of(second, true), skippable].concat(),
        6 => [zstd_of(first, true), second.to_vec()].concat(),
        _ => text.to_vec(),
    }
}

fn zstd_of(text: &[u8], size_is_told: bool) -> Vec<u8> {
    let mut encoder = zstd::bulk::Compressor::new(1).expect("creates");
    encoder.include_contentsize(size_is_told).expect("sets");
    encoder.include_checksum(true).expect("sets");
    encoder.compress(text).expect("encodes")
}

fn gzip_of(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).expect("encodes");
    encoder.finish().expect("encodes")
}

/// Asserts all of it for one object.
fn check_object(object: &[u8]) {
    let decoded = decoded(object);
    let mut reader = JsonlReader::default();
    check_lenient(object);
    match reader.read(object, LIMITS) {
        Err(bad) => {
            super::assert_shown(&bad.sentence);
            // What decodes is refused for a line of it.
            if let Some(text) = decoded {
                let line = bad.sentence.strip_prefix("line ").and_then(|rest| rest.split(' ').next()?.parse().ok());
                let lines = text.split(|byte| *byte == b'\n').count();
                assert!(line.is_some_and(|line: usize| (1..=lines).contains(&line)), "{}", bad.sentence);
            }
        }
        Ok(rows) => {
            check_rows(rows, &decoded.expect("is refused"));
            for frames in [Frames::Single, Frames::Seekable(64 << 10), Frames::Splice] {
                check_shard(frames, rows);
            }
        }
    }
}

/// What only a lenient reader takes is told so; what both take is the same.
fn check_lenient(object: &[u8]) {
    let lenient = Limits { lenient: true, ..LIMITS };
    let (mut strict, mut reader) = (JsonlReader::default(), JsonlReader::default());
    match (strict.read(object, LIMITS), reader.read(object, lenient)) {
        (Ok(Rows::Lines { text, count, .. }), Ok(Rows::Lines { text: same, count: as_many, .. })) => {
            assert!(text == same && count == as_many);
        }
        (Err(bad), Ok(_)) => assert!(bad.sentence.contains("`run --lenient` keeps it"), "{}", bad.sentence),
        (Err(bad), Err(worse)) => {
            assert!(bad == worse || bad.sentence.contains("`run --lenient`"), "{} {}", bad.sentence, worse.sentence);
        }
        (Ok(_), Err(bad)) => panic!("refused when lenient: {}", bad.sentence),
    }
}

/// By streaming, which is not how microshards are read; `None` where that is refused, or there is too much.
fn decoded(object: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let read = decode_stream(object).and_then(|stream| stream.take(LIMITS.bytes_max + 1).read_to_end(&mut text));
    (read.is_ok() && text.len() as u64 <= LIMITS.bytes_max).then_some(text)
}

fn check_rows(rows: Rows<'_>, decoded: &[u8]) {
    let Rows::Lines { text, count, .. } = rows;
    let whole = decoded.strip_prefix("\u{feff}".as_bytes()).unwrap_or(decoded);
    let lines = whole.split(|byte| *byte == b'\n').filter(|line| !line.iter().all(u8::is_ascii_whitespace));
    let (mut expected, mut expected_count) = (Vec::new(), 0);
    for mut line in lines {
        while let Some(shorter) = line.strip_suffix(b"\r") {
            line = shorter;
        }
        assert_eq!(line.trim_ascii_start().first(), Some(&b'{'));
        serde_json::from_slice::<&serde_json::value::RawValue>(line).expect("JSON");
        // A value refuses lone surrogates and numbers beyond a double; and, as it recurses, 128 levels.
        if line.iter().filter(|byte| b"{[".contains(byte)).count() < 100 {
            serde_json::from_slice::<serde_json::Value>(line).expect("alike to every reader");
        }
        expected.extend_from_slice(line);
        expected.push(b'\n');
        expected_count += 1;
    }
    assert!(text == expected && count == expected_count, "other rows, or another number of them: {count}");
}

/// A shard of these rows and one more microshard.
fn check_shard(frames: Frames, rows: Rows<'_>) {
    let Rows::Lines { text, count, .. } = rows;
    let mut writer = frames.writer(Vec::new(), 1).expect("creates");
    writer.append(7, rows).expect("appends");
    writer.append(-8, Rows::Lines { text: NEXT, count: 1, encoded: None }).expect("appends");
    let shard = writer.finish().expect("finishes");
    let all = [text, NEXT].concat();
    let mut streamed = Vec::new();
    decode_stream(&*shard).expect("opens").read_to_end(&mut streamed).expect("decodes");
    assert!(streamed == all, "{frames}: other rows come out");
    let limits = Limits { bytes_max: all.len() as u64, lenient: false };
    let again = JsonlReader::default().read(&shard, limits).map(|again| again.count());
    assert_eq!(again, Ok(count + 1), "{frames}");
    if frames.has_tables() {
        check_ends(&shard, &all, count);
    }
}

/// The tables at its end are right, and lead to the rows.
fn check_ends(shard: &[u8], all: &[u8], count: u64) {
    let mut decoder = Decoder::default();
    let decoded = decoder.decode(shard, Limits { bytes_max: all.len() as u64, lenient: false }).expect("decodes");
    let index = check_tables(all, Encoded { object: shard, frames: decoded.frames }).expect("is right");
    assert_eq!((index.rows_of(7), index.rows_of(-8)), (Some(0..count), Some(count..count + 1)));
    let Ok(seek::Tail::Table(table)) = seek::SeekTable::read_tail(shard) else { panic!("no table") };
    let (mut frame_decoder, mut text) = (FrameDecoder::default(), Vec::new());
    for (number, frame) in table.frames.iter().enumerate() {
        let span = table.span(number..number + 1);
        let bytes = &shard[span.start as usize..span.end as usize];
        text.extend_from_slice(frame_decoder.decode(*frame, bytes).expect("is what the table says"));
    }
    assert!(text == all, "frame by frame other rows come out");
}
