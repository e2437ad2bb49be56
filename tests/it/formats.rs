//! What may happen to an input: repaired where nothing is lost by it, refused with line and byte offset where it is not.

use std::io::{Read, Write};

use compact_local::format::{Frames, JsonlReader, Limits, RowReader, Rows};

const LIMITS: Limits = Limits { bytes_max: 1 << 20, lenient: false };

/// The rows of an object, or the sentence that says why not.
fn read(object: &[u8]) -> Result<(String, u64), String> {
    let mut reader = JsonlReader::default();
    match reader.read(object, LIMITS) {
        Ok(Rows::Lines { text, count, .. }) => Ok((String::from_utf8(text.to_vec()).expect("checked"), count)),
        Err(bad) => Err(bad.to_string()),
    }
}

/// As the zstd command line does: with a checksum.
fn zstd(text: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).expect("creates");
    encoder.include_checksum(true).expect("sets");
    encoder.write_all(text).expect("encodes");
    encoder.finish().expect("encodes")
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).expect("encodes");
    encoder.finish().expect("encodes")
}

#[test]
fn rows_are_kept_verbatim_whatever_the_compression() {
    let text = b"{\"b\":1.50,\"a\":1e3,\"t\":\"\\u00e9 \\\" \\n\"}\n{ \"x\" : [ ] }\n".to_vec();
    let two_frames = [zstd(&text[..40]), zstd(&text[40..])].concat();
    let two_members = [gzip(&text[..40]), gzip(&text[40..])].concat();
    for object in [text.clone(), zstd(&text), gzip(&text), two_frames, two_members] {
        assert_eq!(read(&object), Ok((String::from_utf8(text.clone()).expect("is UTF-8"), 2)));
    }
}

#[test]
fn bom_crlf_blank_lines_and_a_missing_last_newline_are_repaired() {
    assert_eq!(read(b"\xef\xbb\xbf{}\r\n\r\n  \n\n{\"a\":1}"), Ok(("{}\n{\"a\":1}\n".to_owned(), 2)));
    assert_eq!(read(b"{}\r\r\n"), Ok(("{}\n".to_owned(), 1)));
    for empty in [&b""[..], b"\n\n", b"\xef\xbb\xbf", &zstd(b""), &gzip(b"")] {
        assert_eq!(read(empty), Ok((String::new(), 0)));
    }
}

#[test]
fn what_is_no_json_object_is_refused_with_its_place() {
    for (object, sentence) in [
        (&b"{}\n{\"a\":"[..], "line 2 is cut off (byte offset 3)"),
        (b"{}\n{\"a\":\"x", "line 2 is cut off (byte offset 3)"),
        (b"{}\n[1]\n", "line 2 is not a JSON object (byte offset 3)"),
        (b"\xef\xbb\xbf{}\n7\n", "line 2 is not a JSON object (byte offset 6)"),
        (b"{}{}\n", "line 1 is not one JSON object, from column 3 on (byte offset 2)"),
        (b"{}\n\n{\"a\":1,}\n", "line 3 is not one JSON object, from column 8 on (byte offset 11)"),
        (b"{\"a\":\"\x00\"}\n", "line 1 is not one JSON object, from column 6 on (byte offset 5)"),
        (b"{}\n{\"a\":\"\xff\"}\n", "line 2 is not UTF-8 (byte offset 9)"),
        (b"{}\n\xef\xbb\xbf{}\n", "line 2 is not a JSON object (byte offset 3)"),
    ] {
        assert_eq!(read(object), Err(sentence.to_owned()), "{:?}", String::from_utf8_lossy(object));
    }
}

#[test]
fn nesting_without_end_is_refused_and_brackets_in_strings_are_not_nesting() {
    let deep = format!("{}{}{}\n", "{\"a\":".repeat(200), 1, "}".repeat(200));
    assert!(read(deep.as_bytes()).expect_err("too deep").contains("nested deeper than 127"));
    let flat = format!("{{\"a\":\"{}\\\"[[\"}}\n", "[{".repeat(500));
    assert_eq!(read(flat.as_bytes()).map(|(_, count)| count), Ok(1));
}

#[test]
fn truncated_or_damaged_compression_is_refused() {
    let text = "{\"a\":\"some text that is long enough to be cut\"}\n".repeat(50);
    for whole in [zstd(text.as_bytes()), gzip(text.as_bytes())] {
        for cut in [whole.len() - 1, whole.len() / 2, 5] {
            assert!(read(&whole[..cut]).expect_err("cut").contains("is no valid"), "cut at {cut}");
        }
        let mut flipped = whole.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 0x20;
        assert!(read(&flipped).is_err(), "a flipped bit");
        let trailing = [whole.as_slice(), b"garbage"].concat();
        assert!(read(&trailing).is_err(), "trailing garbage");
    }
}

#[test]
fn a_bomb_is_found_before_it_is_unpacked() {
    let zeros = vec![b' '; 8 << 20];
    for mut bomb in [zstd(&zeros), gzip(&zeros)] {
        // Its end is never met: else it would be found to be cut off.
        bomb.pop();
        assert!((bomb.len() as u64) < LIMITS.bytes_max / 10);
        let sentence = read(&bomb).expect_err("too large");
        assert!(sentence.contains("larger than 1048576 bytes when decoded"), "{sentence}");
    }
    assert!(read(&zeros).is_err(), "a plain one as well");
}

#[test]
fn a_window_beyond_what_is_allowed_is_refused() {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).expect("creates");
    encoder.set_parameter(zstd::zstd_safe::CParameter::WindowLog(28)).expect("sets");
    encoder.write_all(b"{}\n").expect("writes");
    assert!(read(&encoder.finish().expect("finishes")).expect_err("window").contains("is no valid zstd"));
}

#[test]
fn a_reader_is_as_good_after_a_bad_object_as_before() {
    let mut reader = JsonlReader::default();
    let good = zstd(b"{\"a\":1}\n");
    assert!(reader.read(&good[..good.len() - 2], LIMITS).is_err());
    assert_eq!(reader.read(&good, LIMITS).expect("reads").count(), 1);
}

#[test]
fn a_shard_is_one_frame_with_a_checksum() {
    let shared = tempfile::NamedTempFile::new().expect("creates");
    let file = shared.reopen().expect("opens");
    let mut writer = Frames::Single.writer(file, 3).expect("creates");
    for (id, text) in [(1, b"{\"a\":1}\n"), (2, b"{\"a\":2}\n")] {
        writer.append(id, Rows::Lines { text, count: 1, encoded: None }).expect("appends");
    }
    writer.finish().expect("finishes");
    let mut object = Vec::new();
    shared.reopen().expect("opens").read_to_end(&mut object).expect("reads");
    assert_eq!(object[..4], [0x28, 0xb5, 0x2f, 0xfd]);
    assert_eq!(object[4] & 0b100, 0b100, "the frame header's checksum flag");
    let frame = zstd::zstd_safe::find_frame_compressed_size(&object).expect("a frame");
    assert_eq!(frame, object.len(), "one frame and nothing after it: python-zstandard reads the first only");
}
