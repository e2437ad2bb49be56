//! `cat` of shards that lie, are damaged or replaced meanwhile, and of servers that err or know no ranges: no row that is
//! not right, patience where it helps, and a sentence.

use compact_local::cat::Wanted;
use compact_local::format::seek::Frame;

use crate::cat::{ALL, TAIL, object, print, ranges, serve, wanted};
use crate::origin::{self, Origin, Step, ok, redirect, status};
use crate::shards::{FIRST_ID, Shard, compressed, indexed, rows};

#[test]
fn a_frame_that_is_damaged_is_named_and_no_row_of_it_is_printed() {
    let mut shard = indexed();
    let middle = shard.frames[3].start + 2000;
    shard.bytes[middle] ^= 0x10;
    let origin = serve(&shard.bytes);
    assert_eq!(print(&origin, ALL).fails(&["its frame 3, counted from 0,", "checksum"]), shard.text(0..300));
    assert_eq!(print(&origin, wanted(250..320)).fails(&["its frame 3, counted from 0,"]), shard.text(250..300));
    assert_eq!(print(&origin, wanted(300..301)).fails(&["its frame 3, counted from 0,"]), "");
    assert_eq!(print(&origin, wanted(400..401)).rows(), shard.rows[400], "the others are as good as before");
}

#[test]
fn a_table_that_lies_is_told_and_no_wrong_row_is_printed() {
    let told = |change: &dyn Fn(&mut Shard), words: &[&str]| {
        let mut shard = indexed();
        change(&mut shard);
        print(&serve(&shard.bytes), wanted(450..550)).fails(words)
    };
    let table =
        |change: fn(&mut Vec<Frame>)| move |shard: &mut Shard| shard.end(|_| {}, |table| change(&mut table.frames));
    let index =
        |change: fn(&mut Vec<u32>)| move |shard: &mut Shard| shard.end(|index| change(&mut index.frame_rows), |_| {});
    let good = indexed().text(450..500);
    assert_eq!(
        told(
            &table(|frames| frames[5].decompressed += 1),
            &["frame 5, counted from 0,", "not what the seek table says"]
        ),
        good
    );
    assert_eq!(told(&table(|frames| frames[5].decompressed = 1 << 30), &["frame 5, counted from 0,"]), good);
    assert_eq!(told(&table(|frames| frames[5].decompressed = 0), &["frame 5, counted from 0,"]), good);
    assert_eq!(told(&table(|frames| frames[1].compressed += 1), &["does not add up"]), "");
    let shifted = table(|frames| {
        frames[5].compressed += 7;
        frames[6].compressed -= 7;
    });
    assert_eq!(told(&shifted, &["frame 5, counted from 0,"]), good);
    let swapped = table(|frames| frames.swap(0, 10));
    assert_eq!(told(&swapped, &["frame 0, counted from 0,"]), "", "and so the row index is not found");
    let moved = index(|rows| {
        rows[5] += 1;
        rows[6] -= 1;
    });
    assert_eq!(told(&moved, &["frame 5, counted from 0, has 100 rows, not the 101 of its row index"]), good);
    let fewer = index(|rows| {
        rows[0] += rows.pop().unwrap();
    });
    assert_eq!(told(&fewer, &["its row index counts 9 frames, and its seek table 10"]), "");
}

#[test]
fn a_shard_that_is_cut_off_is_printed_as_far_as_it_is_there_and_no_further() {
    let shard = indexed();
    let (in_table, in_frame, between) = (shard.bytes.len() - 1, shard.frames[4].end - 1, shard.frames[4].start);
    let broken = "it cannot be decoded beyond";
    for (cut, wanted, word, printed) in [
        (in_table, ALL, broken, 0..1000),
        (in_frame, ALL, broken, 0..500),
        (in_frame, wanted(450..600), broken, 450..500),
        (between, wanted(0..500), "it has 400 rows, and no rows 400..500", 0..400),
    ] {
        let rows = print(&serve(&shard.bytes[..cut]), wanted).fails(&[word]);
        assert!(shard.text(printed).starts_with(&rows) && rows.ends_with('\n'), "cut at {cut}");
    }
    assert_eq!(print(&serve(&shard.bytes[..in_frame]), wanted(300..305)).rows(), shard.text(300..305));
    // What claims more than is there.
    let end = &shard.bytes[shard.bytes.len() - 50..];
    assert_eq!(print(&serve(end), ALL).fails(&["its seek table claims 105 bytes, and the whole shard has 50"]), "");
}

/// A shard of one frame with a damaged magic number looked like plain text: its bytes went to the terminal, as rows.
#[test]
fn what_is_neither_compressed_nor_json_is_not_printed_as_rows() {
    let shard = compressed(rows(50).concat().as_bytes());
    for byte in 0..4 {
        let mut damaged = shard.clone();
        damaged[byte] ^= 0x80;
        assert_eq!(print(&serve(&damaged), ALL).fails(&["neither zstd nor gzip"]), "", "byte {byte}");
    }
    // A letter of several bytes may lie across the end of what is looked at.
    let text = format!("{{\"t\":\"{}\"}}\n", "\u{6f22}".repeat(50_000));
    assert_eq!(print(&serve(text.as_bytes()), ALL).rows(), text);
}

#[test]
fn a_server_that_ignores_ranges_is_told_and_the_rows_are_right() {
    let rows = rows(6000);
    let texts: Vec<String> = rows.chunks(100).map(|rows| rows.concat()).collect();
    let mut shard = Shard::of_texts(&texts, rows);
    shard.end(|index| index.frame_rows = vec![100; 60], |_| {});
    let origin = Origin::start();
    origin.on("/a", [ok(shard.bytes.clone())]);
    let printed = print(&origin, wanted(432..435));
    assert_eq!(printed.notices, ["the server ignores ranges: reading the shard from its start"]);
    assert_eq!(printed.rows(), shard.text(432..435));
    assert_eq!(ranges(&origin)[2], "-", "{:?}", ranges(&origin));
    assert_eq!(print(&origin, Wanted::Microshard(0)).fails(&["ignores ranges", "download it"]), "");

    // A small shard is taken whole, and its table used.
    let small = indexed();
    let origin = Origin::start();
    origin.on("/a", [ok(small.bytes.clone())]);
    assert_eq!(print(&origin, Wanted::Microshard(FIRST_ID)).rows(), small.text(0..50));
    assert_eq!(ranges(&origin), [TAIL]);
}

#[test]
fn a_server_that_knows_no_ranges_from_the_end_is_asked_by_number() {
    let rows = rows(6000);
    let texts: Vec<String> = rows.chunks(100).map(|rows| rows.concat()).collect();
    let mut shard = Shard::of_texts(&texts, rows);
    shard.end(|index| index.frame_rows = vec![100; 60], |_| {});
    let origin = Origin::start();
    origin.on("/a", [ok(shard.bytes.clone()), Step::Ranged(object(&shard.bytes))]);
    assert_eq!(print(&origin, wanted(432..435)).rows(), shard.text(432..435));
    let size = shard.bytes.len();
    let asked = [TAIL.to_owned(), format!("bytes={}-{}", size - 65536, size - 1), shard.asked(4..5)];
    assert_eq!(ranges(&origin), asked);
}

#[test]
fn a_shard_that_is_replaced_between_its_end_and_its_frames_is_an_error_and_prints_nothing() {
    let (shard, other) = (indexed(), indexed());
    for other in [
        // A server that minds If-Match, and one that does not.
        Step::Ranged(origin::Object { etag: "\"two\"", bytes: other.bytes.clone() }),
        Step::Answer(
            206,
            vec![
                ("etag", "\"two\"".into()),
                ("content-range", format!("{}/{}", shard.asked(4..5).replace('=', " "), shard.bytes.len())),
            ],
            shard.bytes[shard.frames[4].clone()].to_vec(),
        ),
        Step::Ranged(object(&shard.bytes[..shard.bytes.len() - 1])),
    ] {
        let origin = Origin::start();
        origin.on("/a", [Step::Ranged(object(&shard.bytes)), other]);
        assert_eq!(print(&origin, wanted(400..405)).fails(&["replaced while it was being read"]), "");
    }
}

#[test]
fn reading_goes_on_where_it_was_cut_off() {
    let shard = indexed();
    let origin = Origin::start();
    let cut = |after| Step::Cut(after, object(&shard.bytes));
    let whole = || Step::Ranged(object(&shard.bytes));
    origin.on("/a", [cut(1000), status(503), whole(), cut(200_000), Step::Reset, cut(30_000), cut(10_000), whole()]);
    let printed = print(&origin, wanted(0..1000));
    assert_eq!(printed.notices.len(), 6, "{:?}", printed.notices);
    assert!(printed.notices.iter().all(|notice| notice.contains("trying again in")), "{:?}", printed.notices);
    assert!(printed.rows() == shard.text(0..1000));
    let end = shard.frames[9].end - 1;
    let asked = ranges(&origin);
    assert_eq!(asked[..3], [TAIL; 3]);
    // A request that was reset with its headers unread has none.
    assert_eq!(asked[3..6], [format!("bytes=0-{end}"), "-".to_owned(), format!("bytes=200000-{end}")]);
    assert_eq!(asked[6..], [format!("bytes=230000-{end}"), format!("bytes=240000-{end}")]);
}

#[test]
fn a_shard_that_is_replaced_while_reading_goes_on_is_an_error_and_what_was_printed_is_right() {
    let shard = indexed();
    let origin = Origin::start();
    let other = origin::Object { etag: "\"two\"", bytes: shard.bytes.clone() };
    let cut = Step::Cut(shard.frames[2].end + 10, object(&shard.bytes));
    origin.on("/a", [Step::Ranged(object(&shard.bytes)), cut, Step::Ranged(other)]);
    assert_eq!(print(&origin, ALL).fails(&["replaced while it was being read"]), shard.text(0..300));
}

#[test]
fn a_server_without_ranges_that_cuts_off_is_read_again_from_the_start() {
    let rows = rows(6000);
    let bytes = compressed(rows.concat().as_bytes());
    let origin = Origin::start();
    let short = Step::Short { announced: bytes.len(), body: bytes[..3_000_000].to_vec() };
    origin.on("/a", [ok(bytes.clone()), ok(bytes.clone()), short, ok(bytes.clone())]);
    assert!(print(&origin, ALL).rows() == rows.concat());
    assert_eq!(ranges(&origin)[3], "bytes=3000000-");
}

#[test]
fn passing_trouble_is_tried_again_and_given_up_in_the_end_and_other_trouble_at_once() {
    let shard = indexed();
    let origin = Origin::start();
    origin.on("/a", [status(503)]);
    assert_eq!(print(&origin, ALL).fails(&["503", "(4 tries)"]), "");
    assert_eq!(origin.connections(), 4, "each try on a connection of its own");
    origin.on("/a", [Step::Ranged(object(&shard.bytes)), status(500)]);
    assert_eq!(print(&origin, ALL).fails(&["500", "(4 tries)"]), "");
    assert_eq!(origin.requests().len(), 4 + 1 + 4);
    for (refused, word) in [(404, "404"), (403, "403"), (416, "shorter than it was")] {
        let origin = Origin::start();
        origin.on("/a", [status(refused)]);
        assert_eq!(print(&origin, ALL).fails(&[word]), "");
        assert_eq!(origin.requests().len(), 1, "{refused}");
    }
}

#[test]
fn a_redirect_is_followed_with_the_range() {
    let (shard, origin) = (indexed(), Origin::start());
    let other = serve(&shard.bytes);
    origin.on("/a", [redirect(&format!("{}/a", other.url))]);
    assert_eq!(print(&origin, wanted(432..433)).rows(), shard.rows[432]);
    assert_eq!(ranges(&other), [TAIL.to_owned(), shard.asked(4..5)]);
    // Another mirror has another object.
    let mirror = Origin::start();
    mirror.on("/a", [Step::Ranged(origin::Object { etag: "\"two\"", bytes: shard.bytes.clone() })]);
    origin.on("/a", [redirect(&format!("{}/a", other.url)), redirect(&format!("{}/a", mirror.url))]);
    assert_eq!(print(&origin, wanted(432..433)).fails(&["replaced while it was being read"]), "");
}

/// Such a body ends where it likes, so only what was known before can tell.
#[test]
fn an_answer_without_a_length_that_ends_too_early_is_an_error() {
    let shard = indexed();
    let origin = Origin::start();
    let early = || Step::Unannounced(shard.bytes[..shard.frames[3].start + 1000].to_vec());
    origin.on("/a", [Step::Ranged(object(&shard.bytes)), early()]);
    assert_eq!(print(&origin, wanted(250..350)).fails(&["it is shorter than it was"]), shard.text(250..300));
    origin.on("/a", [Step::Ranged(object(&shard.bytes)), early()]);
    assert_eq!(print(&origin, wanted(500..501)).fails(&[&format!("{}/a: it is shorter than it was", origin.url)]), "");

    // Rows that are not packed do not tell it either.
    let text = shard.text(0..1000);
    let steps = [Step::Ranged(object(text.as_bytes())), Step::Cut(200_000, object(text.as_bytes()))];
    origin.on("/a", steps.into_iter().chain([Step::Unannounced(text.as_bytes()[..100_000].to_vec())]));
    let printed = print(&origin, ALL).fails(&["it is shorter than it was"]);
    assert!(text.starts_with(&printed) && printed.ends_with('\n'));
}
