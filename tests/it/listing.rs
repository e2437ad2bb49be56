//! Listings instead of Postgres: what is read, what is left out, and that everything else is refused by name.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use compact_local::manifest::listing::{Listing, ResultsWriter};
use compact_local::manifest::{Record, Selection};

const HEADER: &str = "microshard_id,run_id,language,uri,segment_count,byte_size,sha256,created_at";
const SUM: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn read_path(path: &Path, columns: &[(&str, &str)], selection: &Selection) -> Result<Vec<Record>> {
    let columns: BTreeMap<_, _> = columns.iter().map(|(ours, theirs)| (ours.to_string(), theirs.to_string())).collect();
    let listing = Listing::open(path.to_str().expect("UTF-8"))?.with_columns(&columns)?;
    let mut records = Vec::new();
    let taken = listing.read(selection, &mut |record| {
        records.push(record);
        Ok(())
    })?;
    assert_eq!(taken, records.len() as u64);
    Ok(records)
}

fn read_as(name: &str, bytes: &[u8], columns: &[(&str, &str)], selection: &Selection) -> Result<Vec<Record>> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join(name);
    fs::write(&path, bytes).expect("a file");
    read_path(&path, columns, selection)
}

fn csv(text: &str) -> Result<Vec<Record>> {
    read_as("m.csv", text.as_bytes(), &[], &Selection::default())
}

fn jsonl(text: &str) -> Result<Vec<Record>> {
    read_as("m.jsonl", text.as_bytes(), &[], &Selection::default())
}

fn run(run_id: &str) -> Selection {
    Selection { run_id: Some(run_id.into()), ..Selection::default() }
}

fn ids(records: Result<Vec<Record>>) -> Vec<i64> {
    records.expect("reads").iter().filter_map(|record| record.microshard_id).collect()
}

#[track_caller]
fn refused(records: Result<Vec<Record>>, parts: &[&str]) {
    let error = format!("{:#}", records.expect_err("refused"));
    for part in parts {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

#[test]
fn a_csv_line_and_a_json_line_give_the_same_record() {
    let expected = Record {
        microshard_id: Some(7),
        run_id: "r1".into(),
        language: "en".into(),
        uri: "a, \"b\".jsonl".into(),
        segment_count: Some(70),
        byte_size: Some(6000),
        sha256: Some(std::array::from_fn(|index| (index % 16 * 17) as u8)),
        created_at: Some(1_767_600_000_500_000),
        updated_at: None,
    };
    let line = format!("7,r1,en,\"a, \"\"b\"\".jsonl\",70,6000,{SUM},2026-01-05 08:00:00.5+00");
    assert_eq!(csv(&format!("{HEADER}\n{line}\n")).expect("reads"), std::slice::from_ref(&expected));
    let object = format!(
        r#"{{"microshard_id":7,"run_id":"r1","language":"en","uri":"a, \"b\".jsonl","segment_count":"70",
           "byte_size":6000,"sha256":"{SUM}","created_at":"2026-01-05T08:00:00.5Z","updated_at":null,"x":[1]}}"#
    );
    assert_eq!(jsonl(&object.replace('\n', "")).expect("reads"), [expected]);
}

#[test]
fn a_byte_order_mark_crlf_spaces_in_the_header_and_a_missing_last_newline_are_understood() {
    let text = "\u{FEFF}microshard_id, language ,uri\r\n1,en,a\r\n2,de,\"b\r\nb\"\r\n3,fr,c";
    let records = read_as("m.csv", text.as_bytes(), &[], &run("r")).expect("reads");
    let uris: Vec<_> = records.iter().map(|record| &*record.uri).collect();
    assert_eq!(uris, ["a", "b\r\nb", "c"]);
    assert!(records.iter().all(|record| record.run_id == "r" && record.segment_count.is_none()));
    let text = "\u{FEFF}{\"microshard_id\":1,\"language\":\"en\",\"uri\":\"a\"}\r\n\r\n{\"microshard_id\":2,\"language\":\"de\",\"uri\":\"b\"}";
    assert_eq!(ids(read_as("m.jsonl", text.as_bytes(), &[], &run("r"))), [1, 2]);
}

#[test]
fn compressed_listings_are_read_and_cut_ones_refused() {
    let text = format!("{HEADER}\n{}", "1,r,en,a,,,,\n".repeat(5000));
    let zst = zstd::encode_all(text.as_bytes(), 1).expect("encodes");
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(text.as_bytes()).expect("encodes");
    let gz = gz.finish().expect("encodes");
    for (name, bytes) in [("m.csv.zst", &zst), ("m.csv.gz", &gz)] {
        assert_eq!(read_as(name, bytes, &[], &Selection::default()).expect("reads").len(), 5000);
        refused(
            read_as(name, &bytes[..bytes.len() - 9], &[], &Selection::default()),
            &["failed to read", name, "after line"],
        );
    }
}

#[test]
fn missing_columns_are_named_all_at_once() {
    let parts = [
        "no column microshard_id, run_id, uri",
        "it has id, language, path",
        "--column microshard_id=NAME",
        "--run-id",
    ];
    refused(csv("id,language,path\n1,en,a\n"), &parts);
    refused(jsonl(r#"{"id":1,"language":"en","path":"a"}"#), &parts);
    refused(csv(""), &["it has none"]);
}

#[test]
fn foreign_column_names_are_looked_up_and_named_in_errors() {
    let columns = [("microshard_id", "id"), ("segment_count", "rows")];
    let read = |text: &str| read_as("m.csv", text.as_bytes(), &columns, &run("r"));
    assert_eq!(read("id,language,uri,rows\n4,en,a,70\n").expect("reads")[0].segment_count, Some(70));
    refused(read("id,language,uri,rows\n4,en,a,many\n"), &["m.csv, line 2, column rows: \"many\" is not an integer"]);
    refused(read("id,language,uri\n4,en,a\n"), &["no column rows", "--column segment_count=NAME"]);
    let typed = read_as("m.csv", b"", &[("microshardid", "id")], &run("r"));
    refused(typed, &["--column microshardid=id", "no column microshardid", "microshard_id, run_id"]);
}

#[test]
fn every_bad_field_is_named_with_line_and_column() {
    let good = format!("1,r,en,a,70,6000,{SUM},2026-01-05T08:00:00Z");
    for (bad, parts) in [
        ("x,r,en,a,,,,", ["column microshard_id", "\"x\" is not an integer"]),
        (",r,en,a,,,,", ["column microshard_id", "the field is empty"]),
        ("9223372036854775808,r,en,a,,,,", ["column microshard_id", "is out of range"]),
        ("1,,en,a,,,,", ["column run_id", "the field is empty"]),
        ("1,r,,a,,,,", ["column language", "the field is empty"]),
        ("1,r,en,,,,,", ["column uri", "the field is empty"]),
        ("1,r,en,a,-7,,,", ["column segment_count", "\"-7\" is negative"]),
        ("1,r,en,a,7.5,,,", ["column segment_count", "\"7.5\" is not an integer"]),
        ("1,r,en,a,4294967296,,,", ["column segment_count", "is out of range"]),
        ("1,r,en,a,,1e3,,", ["column byte_size", "\"1e3\" is not an integer"]),
        ("1,r,en,a,,,abc,", ["column sha256", "64 hexadecimal digits"]),
        ("1,r,en,a,,,,soon", ["column created_at", "\"soon\" is no time"]),
        ("1,r,en", ["3 fields", "the header has 8"]),
        ("1,r,en,a,,,,,", ["9 fields", "the header has 8"]),
    ] {
        let records = csv(&format!("{HEADER}\n{good}\n{good}\n{bad}\n{good}\n"));
        refused(records, &["m.csv, line 4", parts[0], parts[1]]);
    }
    let records = read_as("m.csv", b"microshard_id,run_id,language,uri\n1,r,en,a\xFF\n", &[], &Selection::default());
    refused(records, &["m.csv, line 2, field 4: not UTF-8"]);
}

#[test]
fn a_quote_that_is_never_closed_does_not_pull_the_listing_into_memory() {
    let lines = format!("1,r,en,{},,,,\n", "a".repeat(100_000)).repeat(40);
    let records = csv(&format!("{HEADER}\n1,r,en,a,,,,\n2,r,en,\"a,,,,\n{lines}"));
    refused(records, &["m.csv after line 2", "a line is longer than 1 MiB; is a quote not closed?"]);
    assert_eq!(ids(csv(&format!("{HEADER}\n{lines}"))).len(), 40);
}

#[test]
fn a_control_character_in_a_field_never_reaches_the_terminal() {
    let error = csv(&format!("{HEADER}\n\u{1b}[2J,r,en,a,,,,\n")).expect_err("refused").to_string();
    assert!(!error.contains('\u{1b}') && error.contains("\\u{1b}[2J"), "{error}");
}

#[test]
fn every_bad_json_line_is_named() {
    let good = r#"{"microshard_id":1,"run_id":"r","language":"en","uri":"a","segment_count":1}"#;
    for (bad, parts) in [
        ("[1]", ["line 3", "not a JSON object"]),
        (r#"{"microshard_id":1"#, ["line 3", "not a JSON object"]),
        (
            r#"{"microshard_id":1,"run_id":"r","language":"en","uri":["a"]}"#,
            ["line 3", "column uri: neither a text nor a number"],
        ),
        (r#"{"microshard_id":1,"run_id":"r","language":"en"}"#, ["line 3", "column uri: the field is empty"]),
        (r#"{"microshard_id":1,"language":"en","uri":"a"}"#, ["line 3", "column run_id: the field is empty"]),
        (r#"{"microshard_id":1.0,"run_id":"r","language":"en","uri":"a"}"#, ["line 3", "\"1.0\" is not an integer"]),
    ] {
        refused(jsonl(&format!("{good}\n\n{bad}\n{good}\n")), &["m.jsonl", parts[0], parts[1]]);
    }
    let endless = format!("[{}", " ".repeat(2 << 20));
    refused(jsonl(&endless), &["line 1: longer than 1 MiB"]);
}

#[test]
fn a_column_that_is_there_twice_is_refused_only_where_it_is_used() {
    let twice = "microshard_id,run_id,language,uri,uri,x,x\n1,r,en,a,b,1,2\n";
    refused(csv(twice), &["has the column uri twice, as fields 4 and 5"]);
    assert_eq!(ids(csv(&twice.replacen("uri", "url", 1).replace("url,uri", "old,uri"))), [1]);
}

#[test]
fn one_run_of_several_must_be_chosen() {
    let line = |id: i64, run: &str| format!("{id},{run},en,a,,,,\n");
    let two = format!("{HEADER}\n{}{}{}", line(1, "june"), line(2, "july"), line(3, "june"));
    refused(csv(&two), &["holds several runs: june, july. Choose one with --run-id"]);
    assert_eq!(ids(read_as("m.csv", two.as_bytes(), &[], &run("june"))), [1, 3]);
    refused(read_as("m.csv", two.as_bytes(), &[], &run("may")), &["no line of run may; it holds june, july"]);
    let many: String = (0..9).map(|id| line(id, &format!("r{id}"))).collect();
    refused(csv(&format!("{HEADER}\n{many}")), &["several runs: r0, r1, r2, r3, r4 and perhaps more"]);
}

#[test]
fn only_pending_lines_are_taken_where_there_is_a_status() {
    let text = "microshard_id,run_id,language,uri,status\n1,old,en,a,consumed\n2,r,en,b,pending\n3,r,en,c,claimed\n4,r,en,d,pending\n";
    assert_eq!(ids(csv(text)), [2, 4]);
    assert_eq!(ids(read_as("m.csv", text.as_bytes(), &[], &run("old"))), [0; 0]);
}

#[test]
fn languages_and_a_limit_select() {
    let lines: String = (0..9).map(|id| format!("{id},r,{},a,,,,\n", ["en", "de", "bn"][id % 3])).collect();
    let text = format!("{HEADER}\n{lines}this line is not read");
    let selection = |languages: &[&str], limit| Selection {
        languages: languages.iter().map(|language| language.to_string()).collect(),
        limit: Some(limit),
        ..Selection::default()
    };
    assert_eq!(ids(read_as("m.csv", text.as_bytes(), &[], &selection(&[], 4))), [0, 1, 2, 3]);
    assert_eq!(ids(read_as("m.csv", text.as_bytes(), &[], &selection(&["de", "bn"], 3))), [1, 2, 4]);
}

#[test]
fn what_take_refuses_stops_the_reading() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.csv");
    fs::write(&path, format!("{HEADER}\n1,r,en,a,,,,\n2,r,en,b,,,,\n")).expect("a file");
    let listing = Listing::open(path.to_str().expect("UTF-8")).expect("opens");
    let mut calls = 0;
    let result = listing.read(&Selection::default(), &mut |_| {
        calls += 1;
        anyhow::bail!("the disk is full")
    });
    assert_eq!((result.expect_err("stops").to_string(), calls), ("the disk is full".into(), 1));
}

#[test]
fn what_is_no_listing_is_refused_when_opened() {
    refused(read_as("m.parquet", b"", &[], &Selection::default()), &["m.parquet is no listing", ".csv or .jsonl"]);
    refused(read_as("m.gz", b"", &[], &Selection::default()), &["is no listing"]);
    refused(
        read_path(Path::new("/nowhere/m.csv"), &[], &Selection::default()),
        &["failed to open the manifest /nowhere/m.csv"],
    );
}

/// A directory with these files, each of as many bytes as its name is long.
fn directory(files: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for file in files {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(path, file).expect("a file");
    }
    dir
}

#[test]
fn a_directory_gives_its_files_sorted_with_absolute_uris() {
    let files = [
        "en/b/2.jsonl",
        "en/a.jsonl.gz",
        "de/10.jsonl",
        "de/9.jsonl.zst",
        ".x/y",
        "en/.hidden",
        "en/_SUCCESS",
        "_SUCCESS",
    ];
    let dir = directory(&files);
    let records = read_path(dir.path(), &[], &run("r")).expect("reads");
    let expected = ["de/10.jsonl", "de/9.jsonl.zst", "en/a.jsonl.gz", "en/b/2.jsonl"].map(|file| Record {
        run_id: "r".into(),
        language: file[..2].into(),
        uri: dir.path().join(file).to_str().expect("UTF-8").into(),
        byte_size: Some(file.len() as u64),
        ..Record::default()
    });
    assert_eq!(records, expected);
    let selection = Selection { languages: vec!["en".into()], limit: Some(1), ..run("r") };
    assert_eq!(read_path(dir.path(), &[], &selection).expect("reads"), expected[2..3]);
}

#[test]
fn a_relative_directory_gives_absolute_uris() {
    let dir = tempfile::tempdir_in(".").expect("a folder");
    fs::create_dir(dir.path().join("en")).expect("a folder");
    fs::write(dir.path().join("en/1.jsonl"), "").expect("a file");
    let relative = Path::new(dir.path().file_name().expect("a name"));
    let records = read_path(relative, &[], &run("r")).expect("reads");
    assert!(Path::new(&records[0].uri).is_absolute() && Path::new(&records[0].uri).exists(), "{}", records[0].uri);
    let upwards = read_path(&relative.join("en/.."), &[], &run("r")).expect("reads");
    assert!(!upwards[0].uri.contains("..") && Path::new(&upwards[0].uri).exists(), "{}", upwards[0].uri);
}

#[test]
fn a_directory_with_other_files_is_refused_and_a_few_are_named() {
    let dir = directory(&["en/1.jsonl", "README.md", "top.jsonl", "en/2.json", "en/_temporary/3.jsonl"]);
    refused(
        read_path(dir.path(), &[], &run("r")),
        &["4 files", "README.md, en/2.json, en/_temporary, top.jsonl.", ".jsonl.zst", "move the others away"],
    );
    let many: Vec<String> = (0..8).map(|index| format!("en/{index}.txt")).collect();
    let dir = directory(&many.iter().map(String::as_str).collect::<Vec<_>>());
    refused(read_path(dir.path(), &[], &run("r")), &["8 files", "en/4.txt, ..."]);
}

#[test]
fn a_directory_needs_its_run_named() {
    refused(read_path(directory(&["en/1.jsonl"]).path(), &[], &Selection::default()), &["name the run with --run-id"]);
}

#[test]
fn a_link_that_leads_back_ends_the_walk_with_an_error() {
    let dir = directory(&["en/1.jsonl"]);
    std::os::unix::fs::symlink(dir.path().join("en"), dir.path().join("en/again")).expect("a link");
    refused(read_path(dir.path(), &[], &run("r")), &["folders deep: does a link lead back?"]);
}

#[test]
fn results_are_a_line_for_each_microshard() {
    let mut results = ResultsWriter::create(Vec::new()).expect("a header");
    results.consumed(7, "r-en-001-00000").expect("a line");
    results.failed(8, "line 3: not a JSON object, \"x\"").expect("a line");
    let text = String::from_utf8(results.finish().expect("flushes")).expect("UTF-8");
    let expected = "microshard_id,status,shard_id,error\n7,consumed,r-en-001-00000,\n8,failed,,\"line 3: not a JSON object, \"\"x\"\"\"\n";
    assert_eq!(text, expected);
}

#[test]
fn results_that_cannot_be_written_are_an_error() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("opens");
    let mut results = ResultsWriter::create(full).expect("is buffered");
    results.consumed(7, "r-en-001-00000").expect("is buffered");
    let error = format!("{:#}", results.finish().expect_err("the device is full"));
    assert!(
        error.contains("failed to write the temporary file of microshards.csv (TMPDIR says where): No space left"),
        "{error}"
    );
}
