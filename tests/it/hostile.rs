//! Objects that were damaged, or made to do harm: each is refused with a sentence, or gives the very rows that went in.
//! What is written for one kind of fault only is in `formats`; here every place of an object is damaged in turn.

use std::io::{Read, Write};

use compact_local::format::{Frames, JsonlReader, Limits, RowReader, Rows, decode_stream};

use crate::dataset_index::index;
use crate::world::World;

const LIMITS: Limits = Limits { bytes_max: 1 << 20, lenient: false };
const TEXT: &str = "{\"id\":1,\"text\":\"a row\"}\n{\"id\":2,\"text\":\"\u{e9}\"}\n{\"id\":3}\n";
const SKIPPABLE: &[u8] = b"\x50\x2a\x4d\x18\x04\0\0\0more";

/// The rows of an object, or the sentence that says why not: one line, and nothing that steers a terminal.
fn read_within(object: &[u8], limits: Limits) -> Result<String, String> {
    let mut reader = JsonlReader::default();
    match reader.read(object, limits) {
        Ok(Rows::Lines { text, count, .. }) => {
            assert_eq!(memchr::memchr_iter(b'\n', text).count() as u64, count);
            Ok(String::from_utf8(text.to_vec()).unwrap())
        }
        Err(bad) => {
            assert!(!bad.sentence.is_empty() && !bad.sentence.contains(char::is_control), "{:?}", bad.sentence);
            Err(bad.sentence)
        }
    }
}

fn read(object: &[u8]) -> Result<String, String> {
    read_within(object, LIMITS)
}

#[track_caller]
fn refused(object: &[u8], words: &str) {
    let sentence = read(object).expect_err("is refused");
    assert!(sentence.contains(words), "no `{words}` in: {sentence}");
}

/// A frame with a checksum, and its size in the header or not.
fn frame(text: &[u8], size_is_told: bool) -> Vec<u8> {
    let mut encoder = zstd::bulk::Compressor::new(3).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.include_contentsize(size_is_told).unwrap();
    encoder.compress(text).unwrap()
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::GzBuilder::new().filename("a.jsonl").write(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// A frame of so many blocks of one repeated byte, 128 KiB each: 4 bytes a block is as much as zstd can pack.
fn repeated(byte: u8, blocks: u32, claimed: Option<u64>) -> Vec<u8> {
    let mut frame = b"\x28\xb5\x2f\xfd".to_vec();
    match claimed {
        // No content size, a window of 1 MiB; or a single segment of eight bytes' size.
        None => frame.extend([0, 10 << 3]),
        Some(size) => frame.extend([&[0b1110_0000][..], &size.to_le_bytes()].concat()),
    }
    for block in 1..=blocks {
        let header = (128_u32 << 13) | (1 << 1) | u32::from(block == blocks);
        frame.extend(&header.to_le_bytes()[..3]);
        frame.push(byte);
    }
    frame
}

/// `TEXT`, encoded in every way, with the ends of its parts.
fn encoded() -> Vec<(&'static str, Vec<u8>, Vec<usize>)> {
    let (first, second) = TEXT.as_bytes().split_at(TEXT.find('\n').unwrap() + 1);
    let whole = |name, object: Vec<u8>| (name, object.clone(), vec![object.len()]);
    let parts = |name, parts: &[Vec<u8>]| {
        let ends = (1..=parts.len()).map(|count| parts[..count].concat().len()).collect();
        (name, parts.concat(), ends)
    };
    vec![
        whole("a frame of known size", frame(TEXT.as_bytes(), true)),
        whole("a frame of unknown size", frame(TEXT.as_bytes(), false)),
        whole("gzip", gzip(TEXT.as_bytes())),
        parts("frames", &[frame(first, true), frame(second, false)]),
        parts("members", &[gzip(first), gzip(second)]),
        parts(
            "skippable frames between frames",
            &[SKIPPABLE.to_vec(), frame(first, true), SKIPPABLE.to_vec(), frame(second, true)],
        ),
    ]
}

/// What is cut off between two frames or members is whole as far as it goes: only the manifest's size, rows or SHA-256
/// tell. Everywhere else the object itself does.
#[test]
fn an_object_that_is_cut_anywhere_is_refused_or_whole_as_far_as_it_goes() {
    for (name, object, ends) in encoded() {
        assert_eq!(read(&object), Ok(TEXT.into()), "{name}");
        for cut in 0..object.len() {
            let rows = read(&object[..cut]);
            let is_end = cut == 0 || ends.contains(&cut);
            assert_eq!(rows.is_ok(), is_end, "{name}, cut at {cut}: {rows:?}");
            assert!(rows.is_err() || TEXT.starts_with(&rows.unwrap()), "{name}, cut at {cut}");
        }
    }
    for cut in 0..TEXT.len() {
        match read(&TEXT.as_bytes()[..cut]) {
            Ok(rows) => assert!(TEXT.starts_with(&rows) && rows.len().abs_diff(cut) <= 1, "plain, cut at {cut}"),
            Err(sentence) => assert!(sentence.starts_with("line "), "plain, cut at {cut}: {sentence}"),
        }
    }
}

/// Most flips are found by the checksum, some change nothing, as that of a gzip's time. None may give other rows.
#[test]
fn a_flipped_bit_anywhere_gives_the_same_rows_or_none() {
    for (name, object, _) in encoded() {
        let mut refused = 0;
        for bit in 0..8 * object.len() {
            let mut flipped = object.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match read(&flipped) {
                Ok(rows) => assert_eq!(rows, TEXT, "{name}, bit {bit}"),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 4 * object.len(), "{name}: {refused} of {} flips were refused", 8 * object.len());
    }
}

/// As above for a published shard that is read as a microshard, whatever its frames.
#[test]
fn a_flipped_bit_of_a_shard_gives_the_same_rows_or_none() {
    for frames in [Frames::Single, Frames::Seekable(64 << 10), Frames::Splice] {
        let shard = shard(frames, TEXT.as_bytes(), 3);
        assert_eq!(read(&shard), Ok(TEXT.into()));
        for bit in 0..8 * shard.len() {
            let mut flipped = shard.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let rows = read(&flipped);
            assert!(rows.is_err() || rows.as_deref() == Ok(TEXT), "{frames}, bit {bit}: {rows:?}");
        }
    }
}

fn shard(frames: Frames, text: &[u8], count: u64) -> Vec<u8> {
    let mut writer = frames.writer(Vec::new(), 1).unwrap();
    writer.append(1, Rows::Lines { text, count, encoded: None }).unwrap();
    writer.finish().unwrap()
}

#[test]
fn skippable_frames_anywhere_and_empty_ones_add_nothing() {
    let (rows, empty) = (frame(TEXT.as_bytes(), true), frame(b"", true));
    for parts in [
        vec![SKIPPABLE, &rows],
        vec![&rows, SKIPPABLE],
        vec![SKIPPABLE, SKIPPABLE, &rows, SKIPPABLE],
        vec![&empty, &rows, &empty],
        vec![b"\x5f\x2a\x4d\x18\0\0\0\0", &rows],
    ] {
        assert_eq!(read(&parts.concat()), Ok(TEXT.into()));
    }
    assert_eq!(read(SKIPPABLE), Ok(String::new()), "nothing else");
    assert_eq!(read(&empty), Ok(String::new()));
    for size in [5, u32::MAX] {
        let longer = [b"\x50\x2a\x4d\x18", &size.to_le_bytes()[..], b"more"].concat();
        refused(&longer, "is no valid zstd");
        refused(&[&rows[..], &longer].concat(), "is no valid zstd");
    }
}

/// zstd packs at most 1 : 32,768 and gzip 1 : 1,032. What is said to be 1 : 100,000 or more is packed twice, and the inner
/// layer is no text; or it lies about its size.
#[test]
fn bombs_of_every_make_are_refused_and_not_unpacked() {
    let bomb = repeated(b' ', 1 << 15, None);
    assert_eq!((4_u64 << 30) / bomb.len() as u64, 32_766, "what zstd can do");
    refused(&bomb, "is larger than 1048576 bytes when decoded");
    // Its end is never met: else it would be found to be cut off.
    refused(&bomb[..bomb.len() - 1], "is larger than 1048576 bytes when decoded");
    refused(&[frame(TEXT.as_bytes(), true), bomb.clone()].concat(), "is larger than");
    refused(&[repeated(b' ', 4, None), repeated(b' ', 5, None)].concat(), "is larger than");
    let twice = frame(&bomb, true);
    assert!((4_u64 << 30) / twice.len() as u64 > 100_000, "{}", twice.len());
    refused(&twice, "line 1 is not UTF-8");
    refused(&frame(&frame(TEXT.as_bytes(), true), true), "line 1 is not UTF-8");
    refused(&frame(&gzip(TEXT.as_bytes()), true), "line 1 is not UTF-8");
    refused(&gzip(&frame(TEXT.as_bytes(), true)), "line 1 is not UTF-8");
    for claimed in [0, 1, (128 << 10) + 1, 1 << 30, 1 << 40, u64::MAX >> 1] {
        assert!(read(&repeated(b' ', 1, Some(claimed))).is_err(), "{claimed} is not its size");
    }
    assert_eq!(read(&repeated(b' ', 1, Some(128 << 10))), Ok(String::new()), "a good one of this make");
}

#[test]
fn a_window_that_no_decoder_has_is_refused() {
    // Window logs of 28, 30 and 41, the last one there is.
    for descriptor in [18 << 3, 20 << 3, 0xff] {
        let frame = [b"\x28\xb5\x2f\xfd\0", &[descriptor][..], b"\x19\0\0{}\n"].concat();
        refused(&frame, "is no valid zstd");
    }
    let usual = b"\x28\xb5\x2f\xfd\0\x50\x19\0\0{}\n";
    assert_eq!(read(usual), Ok("{}\n".into()), "a good one of this make");
}

#[test]
fn what_is_no_text_of_ours_is_refused_at_its_place() {
    for (object, sentence) in [
        (&b"\x29\xb5\x2f\xfd\x04\0"[..], "line 1 is not UTF-8 (byte offset 1)"),
        (b"PK\x03\x04 a zip", "line 1 is not a JSON object (byte offset 0)"),
        (b"PAR1", "line 1 is not a JSON object (byte offset 0)"),
        (b"\xff\xfe{\0}\0\n\0", "line 1 is not UTF-8 (byte offset 0)"),
        (b"{}\n\0\0\0\0", "line 2 is not a JSON object (byte offset 3)"),
        (b"{}\n{}\0\n", "line 2 is not one JSON object, from column 3 on (byte offset 5)"),
        (b"{}\n{\"a\0\":1}\n", "line 2 is not one JSON object, from column 3 on (byte offset 5)"),
        (b"{}\n{\"\xc0\xaf\":1}\n", "line 2 is not UTF-8 (byte offset 5)"),
        (b"{}\n{\"\xed\xa0\x80\":1}\n", "line 2 is not UTF-8 (byte offset 5)"),
        (b"{}\n{\"\xf4\x90\x80\x80\":1}\n", "line 2 is not UTF-8 (byte offset 5)"),
        (b"{}\n{\"a\":\"\xe6\xbc", "line 2 is not UTF-8 (byte offset 9)"),
        (b"{}\r{}\n", "line 1 is not one JSON object, from column 4 on (byte offset 3)"),
        (b"{}\n{\"a\":NaN}\n", "line 2 is not one JSON object, from column 6 on (byte offset 8)"),
        (b"{}\n{\"a\":Infinity}\n", "line 2 is not one JSON object, from column 6 on (byte offset 8)"),
        (b"{}\n{\"a\":-Infinity}\n", "line 2 is not one JSON object, from column 7 on (byte offset 9)"),
        (b"{}\n// a comment\n", "line 2 is not a JSON object (byte offset 3)"),
        (b"{}\n\xc2\xa0\n", "line 2 is not a JSON object (byte offset 3)"),
    ] {
        let shown = String::from_utf8_lossy(object);
        assert_eq!(read(object), Err(sentence.into()), "{shown:?}");
        assert!(read(&frame(object, true)).is_err() && read(&gzip(object)).is_err(), "{shown:?}");
    }
}

/// A mark in the middle, where a later frame or member begins, breaks every reader.
#[test]
fn a_byte_order_mark_is_dropped_at_the_start_only() {
    let marked = format!("\u{feff}{TEXT}").into_bytes();
    for encode in [|text: &[u8]| frame(text, true), |text: &[u8]| frame(text, false), gzip] {
        assert_eq!(read(&encode(&marked)), Ok(TEXT.into()));
        refused(&[encode(&marked), encode(&marked)].concat(), "line 4 is not a JSON object");
        refused(&encode(format!("\u{feff}\u{feff}{TEXT}").as_bytes()), "line 1 is not a JSON object");
    }
}

/// Right by the grammar, though readers differ about them: the data's owner decides, and is told where to look.
#[test]
fn what_readers_take_for_different_things_is_refused_at_its_place_or_kept_byte_for_byte_when_lenient() {
    let lenient = Limits { lenient: true, ..LIMITS };
    for (row, what, column) in [
        (r#"{"a":1,"a":2}"#, "the key \"a\" twice", 8),
        (r#"{"b":{"c":1,"\u0063":2}}"#, "the key \"c\" twice", 13),
        (r#"{"lone":"a \ud800"}"#, "a lone surrogate", 12),
        (r#"{"other":"\udc00\ud800"}"#, "a lone surrogate", 11),
        (r#"{"beyond":1e400}"#, "a number beyond a double", 11),
        (r#"{"long":18446744073709551616}"#, "an integer of more than 64 bits", 9),
    ] {
        let text = format!("{{}}\n{row}\n");
        for object in [text.clone().into_bytes(), frame(text.as_bytes(), true), gzip(text.as_bytes())] {
            refused(&object, &format!("line 2 has {what} at column {column}: readers of JSON"));
            refused(&object, &format!("`run --lenient` keeps it (byte offset {})", 2 + column));
            assert_eq!(read_within(&object, lenient), Ok(text.clone()));
        }
        let worse = format!("{text}{{");
        assert_eq!(
            read_within(worse.as_bytes(), lenient),
            Err(format!("line 3 is cut off (byte offset {})", text.len()))
        );
    }
}

#[test]
fn what_is_odd_and_the_same_to_every_reader_is_kept_byte_for_byte() {
    for row in [
        r#"{"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]}"#,
        r#"{"pair":"\ud83d\ude00","no surrogate":"\\ud800"}"#,
        r#"{"small":1e-400,"large":1e308,"long":18446744073709551615,"longest":-9223372036854775808,"zero":-0}"#,
        r#"{"nul":"\u0000","":"no name","slash":"\/"}"#,
        "{\"line\":\"\u{2028}\u{2029}\u{85}\u{7f}\u{ffff}\u{feff}\"}",
        "{\"space\":\t[ 1 , 2 ]\r}",
    ] {
        let text = format!("{row}\n");
        for object in [text.clone().into_bytes(), frame(text.as_bytes(), true), gzip(text.as_bytes())] {
            assert_eq!(read(&object), Ok(text.clone()));
        }
    }
}

#[test]
fn ten_thousand_levels_are_refused_and_as_many_as_readers_take_are_kept() {
    let nested =
        |open: &str, close: &str, levels| format!("{{\"a\":{}1{}}}\n", open.repeat(levels), close.repeat(levels));
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"a\":[", "]}]")] {
        for levels in [10_000, 60_000] {
            refused(nested(open, close, levels).as_bytes(), "line 1 is nested deeper than 127 levels (byte offset 0)");
            refused(nested(open, "", levels).as_bytes(), "line 1 is nested deeper than 127 levels");
        }
    }
    assert!(read(nested("[", "]", 126).as_bytes()).is_ok());
    // Brackets in a string, behind a quote that does not end it, are no levels: what is wrong is told.
    refused(format!("{{\"a\":\"\\\"{}\",}}\n", "[".repeat(200)).as_bytes(), "is not one JSON object, from column");
    let (open, close) = ("[".repeat(100), "]".repeat(100));
    refused(format!("{{\"a\":{open}\"{close}\",{open}{close}{close}}}\n").as_bytes(), "nested deeper");
    refused(nested("[", "]", 127).as_bytes(), "nested deeper");
    // Levels beside each other are no deeper.
    let wide = format!("{{\"a\":1,\"a\":[{}]}}\n", vec!["{}"; 200].join(","));
    assert_eq!(read_within(wide.as_bytes(), Limits { lenient: true, ..LIMITS }), Ok(wide.clone()));
}

#[test]
fn a_row_of_a_hundred_megabytes_is_too_large_or_a_row_like_any_other() {
    let row = format!("{{\"text\":\"{}\"}}\n", "a".repeat(100 << 20));
    let object = zstd::bulk::compress(row.as_bytes(), 1).unwrap();
    let usual = Limits { bytes_max: 64 << 20, lenient: false };
    for object in [row.as_bytes(), &object] {
        assert!(read_within(object, usual).unwrap_err().contains("is larger than 67108864 bytes when decoded"));
    }
    assert!(read_within(&object, Limits { bytes_max: 128 << 20, lenient: false }).unwrap() == row);
    let mut out = Vec::new();
    let shard = shard(Frames::Seekable(64 << 10), row.as_bytes(), 1);
    decode_stream(&*shard).unwrap().read_to_end(&mut out).unwrap();
    assert!(out == row.as_bytes());
}

#[test]
fn a_million_rows_in_one_microshard_are_a_million_rows() {
    let text = "{}\n".repeat(1_000_000);
    let limits = Limits { bytes_max: 4 << 20, lenient: false };
    let mut reader = JsonlReader::default();
    let object = frame(text.as_bytes(), true);
    assert_eq!(reader.read(&object, limits).map(|rows| rows.count()), Ok(1_000_000));
    let blank = "\n\r\n \t\n".repeat(500_000) + "{}";
    assert_eq!(read_within(blank.as_bytes(), limits), Ok("{}\n".into()));
}

/// The same through the program: the sentence says what to do, and that helps.
#[test]
fn a_row_that_readers_differ_about_fails_its_microshard_and_a_lenient_run_keeps_it() {
    let world = World::new();
    std::fs::create_dir_all(world.path("in/en")).unwrap();
    let odd = "{\"a\":1}\n{\"a\":\"\\ud800\",\"a\":1e400}\n";
    std::fs::write(world.path("in/en/odd.jsonl"), odd).unwrap();
    std::fs::write(world.path("in/en/plain.jsonl"), TEXT).unwrap();
    for queue in ["strict.db", "lenient.db"] {
        world.ok(&format!("snapshot --manifest in --run-id r --shard-microshards 10 --queue {queue}"));
    }
    world.run("run --queue strict.db --output strict").ends(3);
    let is_lenient = |output: &str| index(&world, output)["options"]["lenient"].clone();
    assert_eq!(is_lenient("strict"), false);
    let failures = world.json("failures --json --queue strict.db");
    let sentence = failures[0]["sentence"].as_str().unwrap();
    assert!(
        sentence.contains("line 2 has a lone surrogate at column 7") && sentence.contains("--lenient"),
        "{sentence}"
    );
    world.ok("retry --queue strict.db");
    world.ok("run --lenient --queue strict.db --output strict");
    world.ok("run --lenient --queue lenient.db --output lenient");
    for queue in ["strict.db", "lenient.db"] {
        world.ok(&format!("verify --source --queue {queue}"));
        assert_eq!(world.json(&format!("status --json --queue {queue}"))["rows"], 2 + TEXT.lines().count());
    }
    assert!(is_lenient("strict") == true && is_lenient("lenient") == true);
    // It holds for one run.
    world.ok("run --queue lenient.db --output lenient");
}

/// A shard that a killed run has put, and not recorded, is that run's: the next one like it finds it, and any other says so.
#[test]
fn a_lenient_run_after_a_killed_one_that_was_not_stops_and_both_in_turn_finish_it() {
    let world = World::new();
    std::fs::create_dir_all(world.path("in/en")).unwrap();
    std::fs::write(world.path("in/en/odd.jsonl"), "{\"a\":1,\"a\":2}\n").unwrap();
    std::fs::write(world.path("in/en/plain.jsonl"), TEXT).unwrap();
    world.ok("snapshot --manifest in --run-id r --shard-microshards 10 --queue q.db");
    let killed = world.run_with("run --queue q.db --output out", "QUEUE_TEST_FAULT", "job: published;1;die");
    assert_ne!(killed.code, 0);
    let stopped = world.run("run --lenient --queue q.db --output out").ends(1).stderr;
    assert!(stopped.contains("other bytes") && stopped.contains("with --lenient, or without"), "{stopped}");
    world.run("run --queue q.db --output out").ends(3);
    world.ok("retry --queue q.db");
    world.ok("run --lenient --queue q.db --output out");
    world.ok("verify --source --queue q.db");
    assert_eq!(world.json("status --json --queue q.db")["rows"], 1 + TEXT.lines().count());
}

/// All of it through the program: what is good is in the shard, what is bad is told, and the rest is not disturbed.
#[test]
fn hostile_objects_in_a_run_fail_alone_and_the_others_are_published() {
    let world = World::new();
    std::fs::create_dir_all(world.path("in/en")).unwrap();
    let mut good = 0;
    let mut add = |name: &str, object: &[u8]| {
        std::fs::write(world.path(&format!("in/en/{name}.jsonl")), object).unwrap();
        good += u64::from(read_within(object, Limits { bytes_max: 64 << 20, lenient: false }).is_ok());
    };
    for (index, (_, object, _)) in encoded().into_iter().enumerate() {
        add(&format!("good-{index}"), &object);
        add(&format!("cut-{index}"), &object[..object.len() - 1]);
    }
    for index in 0..8 {
        add(&format!("bomb-{index}"), &repeated(b' ', 1 << 15, None));
        add(&format!("claim-{index}"), &repeated(b' ', 1, Some(u64::MAX >> 1)));
    }
    add("deep", "[".repeat(1 << 20).as_bytes());
    add("empty", b"");
    add("nul", &[0; 4096]);
    world.ok("snapshot --manifest in --run-id r --shard-microshards 10 --queue q.db");
    let ran = world.run("run --queue q.db --output out --memory 512MiB --threads 4").ends(3).stdout;
    let failures = world.json("failures --json --queue q.db");
    let failures = failures.as_array().unwrap();
    let all = std::fs::read_dir(world.path("in/en")).unwrap().count() as u64;
    assert_eq!((good, failures.len() as u64), (7, all - good), "{ran}");
    for failure in failures {
        let sentence = failure["sentence"].as_str().unwrap();
        assert!(!sentence.is_empty() && !sentence.contains(char::is_control), "{sentence:?}");
    }
    world.run("verify --source --queue q.db").ends(3);
}
