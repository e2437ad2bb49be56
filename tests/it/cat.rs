//! `cat`: the rows that are wanted, of no more bytes than they are in, from wherever.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::process::Stdio;

use compact_local::cat::{Object, RowRange, Wanted, cat};
use compact_local::error;
use compact_local::store::http::HttpStore;
use compact_local::store::{self, Network};

use crate::microshards::{decompressed, generated};
use crate::nginx::nginx;
use crate::origin::{self, Origin, Step, ok, status};
use crate::s3;
use crate::shards::{FIRST_ID, MICROSHARD_ROWS, Shard, compressed, indexed, rows};
use crate::verify::quick;
use crate::world::{World, files};

pub(crate) const TAIL: &str = "bytes=-65536";

/// What was printed, what was said meanwhile, and how it ended.
pub(crate) struct Printed {
    pub(crate) rows: String,
    pub(crate) notices: Vec<String>,
    pub(crate) error: Option<String>,
}

impl Printed {
    #[track_caller]
    pub(crate) fn rows(self) -> String {
        assert_eq!(self.error, None);
        self.rows
    }

    /// What was printed before the error, which must contain all of `words`.
    #[track_caller]
    pub(crate) fn fails(self, words: &[&str]) -> String {
        let error = self.error.expect("an error");
        words.iter().for_each(|word| assert!(error.contains(word), "no `{word}` in: {error}"));
        self.rows
    }
}

pub(crate) fn print(origin: &Origin, wanted: Wanted) -> Printed {
    let store = HttpStore::new(&origin.url, &Network::default(), 1, store::Patience::default());
    let (mut out, notices, patience) = (Vec::new(), RefCell::new(Vec::new()), quick());
    let notice = |text: &str| notices.borrow_mut().push(text.to_owned());
    let printed = cat(&mut Object::new(&store, "a", &patience, &notice), wanted, &mut out);
    let error = printed.err().map(|failed| error::sentence(&failed));
    Printed { rows: String::from_utf8(out).unwrap(), notices: notices.into_inner(), error }
}

pub(crate) fn wanted(rows: Range<usize>) -> Wanted {
    Wanted::Rows(RowRange { start: rows.start as u64, end: Some(rows.end as u64) })
}

pub(crate) const ALL: Wanted = Wanted::Rows(RowRange::ALL);

pub(crate) fn object(bytes: &[u8]) -> origin::Object {
    origin::Object { etag: "\"one\"", bytes: bytes.to_vec() }
}

pub(crate) fn serve(bytes: &[u8]) -> Origin {
    let origin = Origin::start();
    origin.on("/a", [Step::Ranged(object(bytes))]);
    origin
}

/// The ranges that were asked for; `-` for a whole object.
pub(crate) fn ranges(origin: &Origin) -> Vec<String> {
    let requests = origin.requests();
    requests.iter().map(|request| request.headers.get("range").cloned().unwrap_or("-".into())).collect()
}

#[test]
fn a_row_in_the_middle_costs_two_requests_and_one_frame() {
    let shard = indexed();
    let origin = serve(&shard.bytes);
    assert_eq!(print(&origin, wanted(432..433)).rows(), shard.rows[432]);
    assert_eq!(ranges(&origin), [TAIL.to_owned(), shard.asked(4..5)]);
    assert_eq!(origin.connections(), 1);
    assert_eq!(origin.requests()[1].headers["if-match"], "\"one\"");
}

#[test]
fn rows_in_several_frames_cost_one_request_for_all_of_them() {
    let shard = indexed();
    for (rows, frames) in [(99..101, 0..2), (150..600, 1..6), (300..400, 3..4), (0..1, 0..1)] {
        let origin = serve(&shard.bytes);
        assert_eq!(print(&origin, wanted(rows.clone())).rows(), shard.text(rows.clone()), "{rows:?}");
        assert_eq!(ranges(&origin), [TAIL.to_owned(), shard.asked(frames)], "{rows:?}");
    }
    let origin = serve(&shard.bytes);
    assert_eq!(print(&origin, ALL).rows(), shard.text(0..1000));
    assert_eq!(ranges(&origin), [TAIL.to_owned(), shard.asked(0..10)]);
}

#[test]
fn no_rows_and_rows_that_came_with_the_end_cost_no_further_request() {
    let shard = indexed();
    let origin = serve(&shard.bytes);
    assert_eq!(print(&origin, wanted(20..20)).rows(), "");
    assert_eq!(print(&origin, wanted(1000..1000)).rows(), "");
    assert_eq!(print(&origin, Wanted::Microshard(FIRST_ID + 20)).rows(), "", "a microshard without rows");
    assert_eq!(ranges(&origin), [TAIL; 3]);

    let rows = rows(20);
    let mut small = Shard::of_texts(&[rows[..10].concat(), rows[10..].concat()], rows);
    small.end(
        |index| {
            index.frame_rows = vec![10; 2];
            index.microshards = vec![(1, 15), (2, 5)];
        },
        |_| {},
    );
    let origin = serve(&small.bytes);
    assert_eq!(print(&origin, wanted(9..11)).rows(), small.text(9..11));
    assert_eq!(print(&origin, Wanted::Microshard(2)).rows(), small.text(15..20));
    assert_eq!(ranges(&origin), [TAIL; 2]);
}

#[test]
fn a_microshard_is_found_by_its_id() {
    let shard = indexed();
    let origin = serve(&shard.bytes);
    let start = 7 * MICROSHARD_ROWS;
    let printed = print(&origin, Wanted::Microshard(FIRST_ID + 7)).rows();
    assert_eq!(printed, shard.text(start..start + MICROSHARD_ROWS));
    assert_eq!(ranges(&origin), [TAIL.to_owned(), shard.asked(3..4)]);
    assert_eq!(print(&origin, Wanted::Microshard(77)).fails(&["no microshard 77", "21 others"]), "");
}

/// As of thousands of spliced microshards: what of them does not come with the first part of the end is asked for alone.
#[test]
fn long_lists_of_frames_and_microshards_cost_one_request_more() {
    let row = "{\"a\":1}\n";
    let frame = compressed(row.as_bytes()).len();
    for count in [4000, 9000] {
        let mut shard = Shard::of_texts(&vec![row.to_owned(); count], vec![row.to_owned(); count]);
        shard.end(
            |index| {
                index.frame_rows = vec![1; count];
                index.microshards = (0..count as i64).map(|id| (id, 1)).collect();
            },
            |_| {},
        );
        let origin = serve(&shard.bytes);
        assert_eq!(print(&origin, Wanted::Microshard(77)).rows(), row);
        let table = 8 * (count + 1) + 17;
        let lists = match table > 65536 {
            true => format!("bytes=-{}", 4 * table),
            false => format!("bytes={}-{}", count * frame, shard.bytes.len() - table - 1),
        };
        assert_eq!(ranges(&origin), [TAIL.to_owned(), lists, format!("bytes={}-{}", 77 * frame, 78 * frame - 1)]);
    }
}

/// Every way of naming rows, in the real program, from every place.
#[test]
fn the_rows_are_the_same_from_a_file_a_web_server_and_a_bucket() {
    let (shard, nginx, server) = (indexed(), nginx(), s3::server());
    let world = World::with(server.environment());
    server.bucket("shards");
    std::fs::create_dir(world.path("sub")).unwrap();
    let places = [
        (world.path("a.jsonl.zst"), "a.jsonl.zst".to_owned()),
        (world.path("b.jsonl.zst"), format!("file://{}", world.path("b.jsonl.zst").display())),
        (world.path("c.jsonl.zst"), "sub/../c.jsonl.zst".to_owned()),
        (nginx.root.join("a.jsonl.zst"), format!("{}/a.jsonl.zst", nginx.url)),
        (server.root.path().join("shards/a b.jsonl.zst"), "s3://shards/a\u{20}b.jsonl.zst".to_owned()),
    ];
    for (path, name) in places {
        std::fs::write(path, &shard.bytes).unwrap();
        for (arguments, rows) in [
            ("--rows 432", 432..433),
            ("--rows 95..105", 95..105),
            ("--rows 995..", 995..1000),
            ("--rows ..3", 0..3),
            ("--rows 0..1000", 0..1000),
            ("--rows 1000..", 0..0),
            ("--microshard -2", 0..50),
            ("--microshard 17", 950..1000),
            ("", 0..1000),
        ] {
            let ran = world.command("cat").arg(&name).args(arguments.split_whitespace()).output().unwrap();
            assert_eq!(String::from_utf8(ran.stderr).unwrap(), "", "{name} {arguments}");
            assert!(ran.stdout == shard.text(rows).as_bytes(), "{name} {arguments}");
        }
    }
}

#[test]
fn rows_that_are_not_there_are_an_error_that_says_how_many_are() {
    let shard = indexed();
    let origin = serve(&shard.bytes);
    for (rows, words) in [(990..1001, "no row 1000"), (1000..1010, "no rows 1000..1010"), (5000..5001, "no row 5000")] {
        assert_eq!(print(&origin, wanted(rows)).fails(&["it has 1000 rows", words]), "");
    }
    let open = Wanted::Rows(RowRange { start: 1001, end: None });
    assert_eq!(print(&origin, open).fails(&["it has 1000 rows, and no rows from 1001 on"]), "");
    assert_eq!(ranges(&origin), [TAIL; 4], "known from the end");

    // Of one frame, that is found out at its end.
    let rows = rows(200);
    let origin = serve(&compressed(rows.concat().as_bytes()));
    let printed = print(&origin, wanted(198..202)).fails(&["it has 200 rows, and no rows 200..202"]);
    assert_eq!(printed, rows[198..].concat());
}

#[test]
fn a_shard_of_one_frame_is_decoded_no_further_than_the_last_wanted_row() {
    let rows = rows(3000);
    let bytes = compressed(rows.concat().as_bytes());
    let origin = Origin::start();
    let begin = Step::StallIn { announced: bytes.len(), body: bytes[..bytes.len() / 2].to_vec() };
    origin.on("/a", [Step::Ranged(object(&bytes)), begin]);
    assert_eq!(print(&origin, wanted(700..703)).rows(), rows[700..703].concat());
    assert_eq!(ranges(&origin), [TAIL, "-"]);
    let told = print(&serve(&bytes), Wanted::Microshard(1)).fails(&["no row index", "--frames seekable", "use --rows"]);
    assert_eq!(told, "");
}

#[test]
fn other_files_of_rows_are_printed_too() {
    let rows = rows(300);
    let text = rows.concat();
    let gzip = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    // Frames that end inside a row, as other programs cut them, and no row index.
    let pieces: Vec<String> =
        text.as_bytes().chunks(100_000).map(|piece| str::from_utf8(piece).unwrap().into()).collect();
    let mut foreign = Shard::of_texts(&pieces, rows.clone());
    foreign.end_with_table(|_| {});
    let (begin, rest) = text.as_bytes().split_at(100_000);
    let frames = compressed(begin).into_iter().chain(compressed(rest));
    for (what, bytes) in
        [("plain", text.clone().into()), ("gzip", gzip), ("frames", frames.collect()), ("foreign", foreign.bytes)]
    {
        let origin = serve(&bytes);
        assert_eq!(print(&origin, wanted(150..152)).rows(), rows[150..152].concat(), "{what}");
        assert_eq!(print(&origin, wanted(299..300)).rows(), rows[299], "{what}");
        assert!(print(&origin, ALL).rows() == text, "{what}");
        print(&origin, wanted(299..301)).fails(&["it has 300 rows, and no row 300"]);
    }
    let origin = Origin::start();
    origin.on("/a", [ok("")]);
    assert_eq!(print(&origin, ALL).rows(), "", "an empty file");
}

#[test]
fn what_is_typed_wrongly_is_a_matter_of_usage_and_what_is_not_there_an_error_with_its_name() {
    let world = World::new();
    std::fs::write(world.path("a"), "{}\n").unwrap();
    for rows in ["5..2", "..", "-1", "x", "1..=2", "1...2", "1.5", "0..99999999999999999999"] {
        let ran = world.run(&format!("cat a --rows {rows}")).ends(2);
        assert!(ran.stderr.contains("write A..B") && ran.stdout.is_empty(), "{rows}: {}", ran.stderr);
    }
    world.run("cat").ends(2);
    world.run("cat a --microshard one").ends(2);
    world.run("cat a --rows 0 --microshard 1").ends(2);
    for (shard, words) in [
        ("b", "b: "),
        (".", ". is a directory"),
        ("../no/such/../b", "no/such"),
        ("s3://bucket", "names no object"),
        ("gopher://host/a", "gopher"),
        ("http://127.0.0.1:99999/a", "port"),
    ] {
        let ran = world.run(&format!("cat {shard}")).ends(1);
        assert!(ran.stderr.contains(words) && ran.stderr.lines().count() == 1, "{shard}: {}", ran.stderr);
    }
    let told = world.run("cat a --rows 7").ends(1).stderr;
    assert!(told.starts_with("error: failed to print /") && told.contains("/a: it has 1 rows, and no row 7"), "{told}");
}

#[test]
fn a_damaged_shard_ends_the_program_with_1_after_the_rows_that_are_right() {
    let (world, mut shard) = (World::new(), indexed());
    let middle = shard.frames[1].start + 2000;
    shard.bytes[middle] ^= 0x10;
    std::fs::write(world.path("a.jsonl.zst"), &shard.bytes).unwrap();
    let ran = world.run("cat a.jsonl.zst").ends(1);
    assert_eq!(ran.stdout, shard.text(0..100));
    assert!(ran.stderr.contains("a.jsonl.zst: its frame 1, counted from 0, is no valid zstd"), "{}", ran.stderr);
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_program_quietly_and_a_full_disk_does_not() {
    let (world, shard) = (World::new(), indexed());
    std::fs::write(world.path("a.jsonl.zst"), &shard.bytes).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let quiet = world.command("cat a.jsonl.zst").stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((quiet.status.code(), String::from_utf8(quiet.stderr).unwrap()), (Some(0), String::new()));
    let full = std::fs::File::create("/dev/full").unwrap();
    let failed = world.command("cat a.jsonl.zst").stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8(failed.stderr).unwrap().starts_with("error: "));
}

#[test]
fn a_presigned_url_works_and_its_signature_is_never_shown() {
    let (world, shard) = (World::new(), indexed());
    let origin = serve(&shard.bytes);
    let url = format!("{}/a?X-Amz-Signature=s3cr3t", origin.url);
    assert_eq!(world.ok(&format!("cat {url} --rows 432")), shard.rows[432]);
    // Signed for GET: a HEAD would have been refused.
    assert_eq!(origin.asked(), ["GET /a", "GET /a"]);
    assert!(origin.requests()[1].target.ends_with("?X-Amz-Signature=s3cr3t"));
    origin.on("/a", [status(503), Step::Ranged(object(&shard.bytes))]);
    let told = world.run(&format!("cat {url} --rows 5000")).ends(1).stderr;
    assert!(told.contains("trying again") && told.contains("it has 1000 rows") && !told.contains("s3cr3t"), "{told}");
}

/// What the independent decoder reads whole, and where the manifest's ids say.
#[test]
fn shards_of_every_kind_of_frames_are_printed_as_zstd_reads_them() {
    let world = World::new();
    let generated = generated(&world.path("input"), 300, 0);
    for frames in ["single", "seekable=64KiB", "splice"] {
        world.ok("snapshot --manifest input/manifest.csv --source input --queue q.db");
        world.ok(&format!("run --queue q.db --output out --frames {frames}"));
        let name = files(&world.path("out/en")).remove(0);
        let text = String::from_utf8(decompressed(&world.path("out/en").join(&name))).unwrap();
        let rows: Vec<&str> = text.split_inclusive('\n').collect();
        let cat = |arguments: &str| world.ok(&format!("cat out/en/{name} {arguments}"));
        assert!(cat("") == text, "{frames}");
        assert_eq!(cat(&format!("--rows {}..", rows.len() - 3)), rows[rows.len() - 3..].concat(), "{frames}");
        for start in (0..rows.len()).step_by(rows.len() / 7) {
            let end = rows.len().min(start + 200);
            assert!(cat(&format!("--rows {start}..{end}")) == rows[start..end].concat(), "{frames} {start}");
        }
        if frames != "single" {
            let mut manifest = csv::Reader::from_path(&generated.manifest).unwrap();
            let lines = manifest.records().map(Result::unwrap).filter(|line| &line[3] == "en");
            // A shard's order is that of creation.
            let ids: BTreeSet<(String, i64)> = lines.map(|line| (line[8].into(), line[0].parse().unwrap())).collect();
            let printed: String = ids.iter().map(|(_, id)| cat(&format!("--microshard {id}"))).collect();
            assert!(ids.len() > 20 && printed == text, "{frames}: the microshards one after another, {}", ids.len());
        }
        std::fs::remove_dir_all(world.path("out")).unwrap();
        for file in files(world.dir.path()).iter().filter(|file| file.starts_with("q.db")) {
            std::fs::remove_file(world.path(file)).unwrap();
        }
    }
}
