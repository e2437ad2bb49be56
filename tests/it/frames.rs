//! How a shard is cut into frames, by its bytes: what is in which frame, what may be taken over from a microshard as it is,
//! and what the tables at the end say. Whole shards are read by the zstd command line, single rows by the reference
//! implementation of the seekable format.

use std::io::Write;
use std::process::Command;

use compact_local::format::seek::{Frame, RowIndex, SeekTable, Tail};
use compact_local::format::{BadInput, Encoded, Frames, JsonlReader, Limits, RowReader, Rows, check_tables};
use proptest::prelude::*;
use zstd_safe::CParameter;
use zstd_safe::seekable::Seekable;

use crate::microshards::decompressed;
use crate::world::tool;

const LIMITS: Limits = Limits { bytes_max: 1 << 28, lenient: false };
const LEAST: usize = 64 << 10;

/// A shard of these objects, whose ids count from 1.
fn shard(frames: Frames, objects: &[Vec<u8>]) -> Vec<u8> {
    let (mut reader, mut writer) = (JsonlReader::default(), frames.writer(Vec::new(), 3).unwrap());
    for (id, object) in (1..).zip(objects) {
        writer.append(id, reader.read(object, LIMITS).unwrap()).unwrap();
    }
    writer.finish().unwrap()
}

/// The frames of a shard, the last two of which are its tables.
fn frames_of(mut shard: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while !shard.is_empty() {
        let (frame, rest) = shard.split_at(zstd_safe::find_frame_compressed_size(shard).unwrap());
        frames.push(frame);
        shard = rest;
    }
    frames
}

fn data_frames(shard: &[u8]) -> Vec<&[u8]> {
    let frames = frames_of(shard);
    frames[..frames.len() - 2].to_vec()
}

fn text_of(object: &[u8]) -> Vec<u8> {
    zstd::stream::decode_all(object).unwrap()
}

fn tables(shard: &[u8]) -> (SeekTable, RowIndex) {
    let Ok(Tail::Table(table)) = SeekTable::read_tail(shard) else { panic!("no seek table") };
    let frames = frames_of(shard);
    (table, RowIndex::read(frames[frames.len() - 2]).unwrap().expect("a row index"))
}

/// What `verify` says of the tables.
fn check(shard: &[u8]) -> Result<RowIndex, BadInput> {
    let mut reader = JsonlReader::default();
    let Rows::Lines { text, encoded, .. } = reader.read(shard, LIMITS)?;
    check_tables(text, encoded.unwrap())
}

/// A row of so many bytes, its newline included.
fn row(bytes: usize) -> String {
    let row = format!("{{\"t\":\"{}\"}}\n", "x".repeat(bytes - 9));
    assert_eq!(row.len(), bytes);
    row
}

fn rows(range: std::ops::Range<u32>) -> String {
    range.map(|number| format!("{{\"id\":{number},\"t\":\"é\\n{}\"}}\n", number * 7919)).collect()
}

/// As the zstd command line does for a file: with checksum and content size.
fn zstd(text: &str) -> Vec<u8> {
    windowed(text, 21)
}

fn windowed(text: &str, window_log: u32) -> Vec<u8> {
    let mut encoder = zstd::bulk::Compressor::new(5).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.set_parameter(CParameter::WindowLog(window_log)).unwrap();
    encoder.compress(text.as_bytes()).unwrap()
}

/// As a program that streams does: without a content size.
fn streamed(text: &str, window_log: u32) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 5).unwrap();
    encoder.set_parameter(CParameter::WindowLog(window_log)).unwrap();
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn skippable() -> Vec<u8> {
    b"\x5d\x2a\x4d\x18\x04\0\0\0note".to_vec()
}

const SEEKABLE: Frames = Frames::Seekable(LEAST as u32);

#[test]
fn a_frame_is_as_many_whole_rows_as_fit() {
    // Each group of rows is to be one frame.
    let groups = [
        vec![row(LEAST)],
        vec![row(LEAST - 9), row(9)],
        vec![row(LEAST - 9)],
        vec![row(10), row(LEAST / 2)],
        vec![row(LEAST + 1)],
        vec![row(3 * LEAST)],
        vec![row(9)],
    ]
    .map(|rows| rows.concat());
    let shard = shard(SEEKABLE, &[groups.concat().into_bytes()]);
    let texts: Vec<_> = data_frames(&shard).into_iter().map(text_of).collect();
    assert_eq!(texts.iter().map(Vec::len).collect::<Vec<_>>(), groups.each_ref().map(String::len));
    assert!(texts.iter().map(Vec::as_slice).eq(groups.iter().map(String::as_bytes)));
    assert_eq!(tables(&shard).1.frame_rows, [1, 2, 1, 2, 1, 1, 1]);
}

#[test]
fn every_frame_of_whole_rows_has_checksum_and_content_size() {
    let shard = shard(SEEKABLE, &[rows(0..9_000).into_bytes(), zstd(&rows(9_000..20_000))]);
    let frames = data_frames(&shard);
    assert!(frames.len() > 5);
    for frame in frames {
        assert_eq!(frame[4] & 0b100, 0b100, "the checksum flag");
        let size = zstd_safe::get_frame_content_size(frame).unwrap();
        assert_eq!(size, Some(text_of(frame).len() as u64));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// How rows come in, and how often the writer was used before, must not show (I3).
    #[test]
    fn where_rows_are_cut_depends_on_the_rows_alone(
        lengths in prop::collection::vec(prop_oneof![9_usize..40, 9_usize..20_000, LEAST - 30..LEAST + 30], 1..60),
        pieces in prop::collection::vec(0_usize..20, 1..60),
    ) {
        let rows: Vec<String> = lengths.into_iter().map(row).collect();
        let whole = shard(SEEKABLE, &[rows.concat().into_bytes()]);
        let mut left = rows.as_slice();
        let mut objects = Vec::new();
        for count in pieces.into_iter().cycle() {
            let (piece, rest) = left.split_at(count.min(left.len()));
            objects.push(piece.concat().into_bytes());
            left = rest;
            if left.is_empty() || objects.len() > 500 {
                break;
            }
        }
        objects.push(left.concat().into_bytes());
        let cut = shard(SEEKABLE, &objects);
        prop_assert!(data_frames(&cut) == data_frames(&whole));
        prop_assert_eq!(check(&cut).map(|index| index.frame_rows), check(&whole).map(|index| index.frame_rows));
        prop_assert_eq!(tables(&cut).1.microshards.len(), objects.len());
    }
}

#[test]
fn the_tables_list_every_frame_and_every_microshard_and_none_for_no_rows() {
    for frames in [SEEKABLE, Frames::Splice] {
        let objects = [zstd(&rows(0..7)), zstd(""), Vec::new(), gzip(&rows(7..10)), zstd(&rows(10..11))];
        let shard = shard(frames, &objects);
        let (table, index) = tables(&shard);
        assert_eq!(index.microshards, [(1, 7), (2, 0), (3, 0), (4, 3), (5, 1)]);
        assert_eq!(index.frame_rows, if frames == Frames::Splice { vec![7, 3, 1] } else { vec![11] });
        assert_eq!(table.check_size(shard.len() as u64), Ok(()));
        assert_eq!(table.frames.last().map(|frame| frame.decompressed), Some(0), "the row index");
        assert_eq!(check(&shard), Ok(index));
    }
}

/// Whether the microshard between two others was taken over frame by frame; its rows must be there either way.
#[track_caller]
fn is_spliced(object: &[u8], expected: &[&[u8]], text: &str) -> bool {
    let around = [zstd(&rows(900..903)), zstd(&rows(903..905))];
    let shard = shard(Frames::Splice, &[around[0].clone(), object.to_vec(), around[1].clone()]);
    let frames = data_frames(&shard);
    assert_eq!((frames[0], *frames.last().unwrap()), (around[0].as_slice(), around[1].as_slice()));
    let inner = &frames[1..frames.len() - 1];
    assert_eq!(String::from_utf8(text_of(&inner.concat())).unwrap(), text);
    assert_eq!(check(&shard).unwrap().microshards[1], (2, text.lines().count() as u64));
    inner == expected
}

#[test]
fn frames_that_end_with_a_row_are_taken_over_as_they_are() {
    let (one, two) = (rows(0..40), rows(40..41));
    let text = format!("{one}{two}");
    let both = zstd(&text);
    assert!(is_spliced(&both, &[&both], &text));
    // Sizes that are not told, in one frame and in several.
    let (sizeless_one, sizeless_two) = (streamed(&one, 20), streamed(&two, 23));
    assert!(zstd_safe::get_frame_content_size(&sizeless_one).unwrap().is_none());
    assert!(is_spliced(&sizeless_one, &[&sizeless_one], &one));
    let joined = [sizeless_one.as_slice(), &sizeless_two].concat();
    assert!(is_spliced(&joined, &[&sizeless_one, &sizeless_two], &text));
    // Large enough not to be decoded in one go.
    let large = rows(0..60_000);
    assert!(large.len() > 1 << 20);
    let (known, unknown) = (zstd(&large), streamed(&large, 20));
    assert!(is_spliced(&known, &[&known], &large));
    assert!(is_spliced(&unknown, &[&unknown], &large));
}

#[test]
fn skippable_and_empty_frames_are_left_out() {
    let (one, two) = (zstd(&rows(0..3)), zstd(&rows(3..5)));
    let object = [skippable(), zstd(""), one.clone(), streamed("", 20), skippable(), two.clone(), skippable()].concat();
    assert!(is_spliced(&object, &[&one, &two], &rows(0..5)));
    // Else the first frame of the shard would be one that some readers do not know.
    let shard = shard(Frames::Splice, &[object]);
    assert_eq!(shard[..4], [0x28, 0xb5, 0x2f, 0xfd]);
    // A shard of this program is a microshard like any other.
    assert!(is_spliced(&shard, &[&one, &two], &rows(0..5)));
}

#[test]
fn what_is_no_zstd_is_encoded() {
    let text = rows(0..30);
    assert!(!is_spliced(text.as_bytes(), &[text.as_bytes()], &text));
    assert!(!is_spliced(&gzip(&text), &[&gzip(&text)], &text));
}

#[test]
fn what_needs_repair_is_encoded() {
    let text = rows(0..3);
    let crlf = text.replace('\n', "\r\n");
    let blank = text.replacen('\n', "\n\n", 1);
    let cut = text.trim_end();
    let [bom, first_blank, last_blank] = [format!("\u{feff}{text}"), format!("\n{text}"), format!("{text}\n")];
    for faulty in [&crlf, &blank, cut, &bom, &first_blank, &last_blank] {
        let object = zstd(faulty);
        assert!(!is_spliced(&object, &[&object], &text), "{faulty:?}");
    }
    // The last newline in a frame of its own.
    let (body, newline) = (zstd(cut), zstd("\n"));
    assert!(!is_spliced(&[body.clone(), newline.clone()].concat(), &[&body, &newline], &text));
}

#[test]
fn a_microshard_with_a_frame_that_ends_inside_a_row_is_encoded() {
    let text = rows(0..50);
    let parts = [&text[..400], &text[400..]].map(zstd);
    assert!(!is_spliced(&parts.concat(), &[&parts[0], &parts[1]], &text));
}

#[test]
fn a_window_of_over_8_mib_is_encoded_again() {
    let text = rows(0..50);
    let (allowed, beyond) = (streamed(&text, 23), streamed(&text, 24));
    assert!(is_spliced(&allowed, &[&allowed], &text));
    assert!(!is_spliced(&beyond, &[&beyond], &text));
    // 9 MiB: the header counts in eighths.
    let mut eighths = allowed.clone();
    eighths[5] += 1;
    assert!(!is_spliced(&eighths, &[&eighths], &text));
    // A frame of a single segment needs all of its content.
    let lengths = [(8 << 20) - 9, 9];
    for (text, is_taken) in [(lengths.map(row).concat(), true), ([lengths[0], 10].map(row).concat(), false)] {
        let object = windowed(&text, 24);
        assert_eq!(object[4] & 0b0010_0000, 0b0010_0000, "the single segment flag");
        assert_eq!(is_spliced(&object, &[&object], &text), is_taken);
    }
}

#[test]
fn a_frame_that_needs_a_dictionary_is_bad_input_in_every_mode() {
    let mut object = zstd(&rows(0..50));
    object[4] |= 1;
    object.insert(5, 7);
    let bad = JsonlReader::default().read(&object, LIMITS).unwrap_err();
    assert_eq!(bad.sentence, "is no valid zstd, or damaged: Dictionary mismatch (after 0 decoded bytes)");
}

#[test]
fn what_is_encoded_for_itself_has_frames_of_the_usual_size() {
    let text = rows(0..200_000);
    let shard = shard(Frames::Splice, &[text.clone().into_bytes()]);
    let sizes: Vec<_> = data_frames(&shard).into_iter().map(|frame| text_of(frame).len()).collect();
    assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (text.len().div_ceil(4 << 20), text.len()));
    assert!(sizes.iter().all(|size| *size <= 4 << 20), "{sizes:?}");
}

/// Whoever unpacks all of it finds its broken checksum, and says that instead.
#[test]
fn a_bomb_in_a_later_frame_is_found_before_it_is_unpacked() {
    let limits = Limits { bytes_max: 3 << 20, lenient: false };
    let frame = zstd(&" ".repeat(1 << 20));
    let mut bomb = [frame.repeat(2), zstd(&" ".repeat(8 << 20))].concat();
    *bomb.last_mut().unwrap() ^= 1;
    let sentence = JsonlReader::default().read(&bomb, limits).unwrap_err().sentence;
    assert!(sentence.contains("larger than 3145728 bytes when decoded"), "{sentence}");
    let many = JsonlReader::default().read(&frame.repeat(300), limits).unwrap_err().sentence;
    assert_eq!(many, sentence);
    let within = JsonlReader::default().read(&frame.repeat(3), limits).map(|rows| rows.count());
    assert_eq!(within, Ok(0));
}

#[test]
fn tables_that_lie_are_told_one_by_one() {
    let good = shard(Frames::Splice, &[zstd(&rows(0..7)), zstd(&rows(7..9))]);
    let (table, index) = tables(&good);
    let data = data_frames(&good).concat();
    let with = |index: &RowIndex, entries: &[Frame]| {
        let (mut object, mut frame) = (data.clone(), Vec::new());
        index.write(&mut frame).unwrap();
        object.extend_from_slice(&frame);
        SeekTable { frames: entries.to_vec() }.write(&mut object).unwrap();
        check(&object).map_err(|bad| bad.sentence)
    };
    assert_eq!(with(&index, &table.frames), Ok(index.clone()));
    let says = |sentence: &str| Err(sentence.to_owned());

    let [first, second, last] = table.frames[..] else { panic!("{table:?}") };
    assert_eq!(with(&index, &[first, last]), says("its seek table does not add up to the size of the object"));
    let joined = Frame { compressed: first.compressed + second.compressed, decompressed: 400 };
    assert_eq!(with(&index, &[joined, last]), says("has 2 data frames, its seek table lists 1, its row index 2"));
    let moved = [
        Frame { compressed: first.compressed - 1, ..first },
        Frame { compressed: second.compressed + 1, ..second },
        last,
    ];
    assert!(with(&index, &moved).unwrap_err().starts_with("frame 0 has "));
    let longer = [first, Frame { decompressed: second.decompressed + 1, ..second }, last];
    let sentence = with(&index, &longer).unwrap_err();
    assert!(sentence.starts_with("frame 1 has ") && sentence.contains("its seek table says"), "{sentence}");
    let none = Frame { compressed: last.compressed, decompressed: 1 };
    assert_eq!(with(&index, &[first, second, none]), says("has no row index before its seek table"));

    let other = RowIndex { frame_rows: vec![6, 3], ..index.clone() };
    assert_eq!(with(&other, &table.frames), says("frame 0 has 7 rows, its row index says 6"));
    let no_table = check(&data).map_err(|bad| bad.sentence);
    assert_eq!(no_table, says("has no seek table at its end"));
}

/// The row that these bytes of the content are, by the reference implementation.
fn read_at(seekable: &mut Seekable<'_>, offset: usize, bytes: usize) -> Vec<u8> {
    let mut row = Vec::with_capacity(bytes);
    assert_eq!(seekable.decompress(&mut row, offset as u64), Ok(bytes));
    row
}

#[test]
fn the_reference_implementation_reads_rows_at_random_positions() {
    let objects: Vec<_> = (0..40).map(|part| rows(part * 500..part * 500 + 500)).collect();
    let text = objects.concat();
    let objects: Vec<_> = objects.iter().map(|text| zstd(text)).collect();
    for frames in [SEEKABLE, Frames::Splice] {
        let shard = shard(frames, &objects);
        let (table, index) = tables(&shard);
        let mut seekable = Seekable::create();
        seekable.init_buff(&shard).unwrap();
        assert_eq!(seekable.num_frames() as usize, table.frames.len());
        let mut random = fastrand::Rng::with_seed(5);
        let ends: Vec<usize> = memchr::memchr_iter(b'\n', text.as_bytes()).map(|end| end + 1).collect();
        for number in std::iter::repeat_with(|| random.usize(1..ends.len())).take(200).chain([ends.len() - 1]) {
            let row = ends[number - 1]..ends[number];
            assert_eq!(read_at(&mut seekable, row.start, row.len()), text.as_bytes()[row.clone()], "row {number}");
            // And our own index names the frame that it is in.
            let span = index.frames_of(number as u64..number as u64 + 1);
            assert_eq!(span.frames, seekable.offset_to_frame_index(row.start as u64) as usize..span.frames.start + 1);
        }
    }
}

#[test]
fn the_zstd_command_line_reads_every_mode_whole() {
    let objects = [zstd(&rows(0..30_000)), gzip(&rows(30_000..31_000)), streamed(&rows(31_000..40_000), 20)];
    let directory = tempfile::tempdir().unwrap();
    for frames in [Frames::Single, SEEKABLE, Frames::Splice] {
        let path = directory.path().join("shard.zst");
        std::fs::write(&path, shard(frames, &objects)).unwrap();
        tool(Command::new("zstd").arg("-tq").arg(&path));
        assert!(decompressed(&path) == rows(0..40_000).as_bytes(), "{frames}");
    }
}

/// The reader makes no claim on bytes of an object that needed repair, however alike they look.
#[test]
fn only_what_is_as_it_was_decoded_is_told_to_be_encoded_already() {
    let mut reader = JsonlReader::default();
    let is_told = |reader: &mut JsonlReader, object: &[u8]| {
        let Rows::Lines { text, encoded, .. } = reader.read(object, LIMITS).unwrap();
        encoded.is_some_and(|Encoded { frames, .. }| {
            frames.iter().map(|frame| frame.text.len()).sum::<usize>() == text.len()
        })
    };
    assert!(is_told(&mut reader, &zstd("{}\n{}\n")));
    // As long as what it is repaired to.
    assert!(!is_told(&mut reader, &zstd("{}\r\n{}")));
    assert!(!is_told(&mut reader, b"{}\n"));
    assert!(!is_told(&mut reader, &zstd("")));
}
