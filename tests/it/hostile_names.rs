//! Objects with names that other tools stumble over: each is found, asked for once under its own name, and what is printed
//! or written of it stays in its line and its field.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use crate::microshards::decompressed;
use crate::origin::{Origin, ok};
use crate::s3;
use crate::store_conformance::put;
use crate::world::World;

/// What names are made of, and how each is asked for of an HTTP origin, where `?` and `%XX` mean something else.
const NAMES: [(&str, &str, &str); 16] = [
    ("a b", "a b", "/a%20b"),
    (" ", " ", "/%20"),
    ("a+b", "a+b", "/a%2Bb"),
    ("a%2Fb", "a%252Fb", "/a%252Fb"),
    ("100%", "100%", "/100%25"),
    ("a#b", "a#b", "/a%23b"),
    ("a?b=c", "a%3Fb=c", "/a%3Fb%3Dc"),
    ("a$b", "a$b", "/a%24b"),
    ("a@b", "a@b", "/a%40b"),
    ("no\u{a0}break", "no\u{a0}break", "/no%C2%A0break"),
    ("narrow\u{202f}", "narrow\u{202f}", "/narrow%E2%80%AF"),
    ("right\u{202e}left", "right\u{202e}left", "/right%E2%80%AEleft"),
    ("'one'", "'one'", "/%27one%27"),
    ("\"two\",three;=1+1", "\"two\",three;=1+1", "/%22two%22%2Cthree%3B%3D1%2B1"),
    ("back\\slash", "back\\slash", "/back%5Cslash"),
    ("http:", "http:", "/http%3A"),
];

/// The only row of the object of this name.
fn row(name: &str) -> String {
    format!("{}\n", serde_json::json!({ "name": name }))
}

/// A key of 1,024 bytes, the most that S3 takes, of folders no longer than a file system takes.
fn longest() -> String {
    format!("{}/{}", ["\u{e9}".repeat(100).as_str(); 5].join("/"), "x".repeat(19))
}

fn quoted(field: &str) -> String {
    format!("\"{}\"", field.replace('"', "\"\""))
}

/// A listing of these uris, with ids from 1.
fn listing(world: &World, uris: &[String]) {
    let mut listing = "microshard_id,language,uri\n".to_owned();
    for (index, uri) in uris.iter().enumerate() {
        writeln!(listing, "{},en,{}", index + 1, quoted(uri)).unwrap();
    }
    std::fs::write(world.path("listing.csv"), listing).unwrap();
}

const PLAN: &str = "--run-id r --shard-microshards 100 --queue q.db";

/// Runs what was snapshotted: one shard with every name's row once.
#[track_caller]
fn all_are_built(world: &World, names: &[String]) {
    world.ok("run --queue q.db --output out");
    all_are_in_the_shard(world, names);
}

#[track_caller]
fn all_are_in_the_shard(world: &World, names: &[String]) {
    world.ok("verify --source --queue q.db");
    let text = String::from_utf8(decompressed(&world.path("out/en/r-en-000-00000.jsonl.zst"))).unwrap();
    let rows: BTreeSet<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    assert_eq!(rows, names.iter().map(|name| row(name)).collect());
    assert_eq!(text.lines().count(), names.len());
}

fn names_and_longest() -> Vec<String> {
    NAMES.iter().map(|(name, _, _)| (*name).to_owned()).chain([longest()]).collect()
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn every_odd_name_is_found_in_a_directory() {
    let world = World::new();
    let names = names_and_longest();
    assert_eq!(longest().len(), 1024);
    for name in &names {
        write(&world.path(&format!("in/en/{name}.jsonl")), &row(name));
    }
    world.ok(&format!("snapshot --manifest in {PLAN}"));
    all_are_built(&world, &names);
}

#[test]
fn every_odd_name_of_a_listing_is_a_file_a_bucket_or_an_http_origin_has() {
    let server = s3::server();
    let store = compact_local::store::open(&format!("s3://{}", server.bucket("inputs")), &server.settings(), "q");
    let store = store.unwrap();
    let world = World::with(server.environment());
    let names = names_and_longest();
    for name in &names {
        write(&world.path(&format!("in/{name}")), &row(name));
        put(&*store, name, row(name).as_bytes()).unwrap();
    }
    listing(&world, &names);
    world.ok(&format!("snapshot --manifest listing.csv --source in {PLAN}"));
    all_are_built(&world, &names);

    let world = World::with(server.environment());
    listing(&world, &names);
    world.ok(&format!("snapshot --manifest listing.csv --source s3://inputs {PLAN}"));
    all_are_built(&world, &names);
}

#[test]
fn every_odd_name_is_asked_for_once_as_it_is_and_encoded_once() {
    let (world, origin) = (World::new(), Origin::start());
    let encoded = |name: &str| name.replace('\u{e9}', "%C3%A9");
    for (name, _, route) in NAMES {
        origin.on(&format!("GET {route}"), [ok(row(name))]);
    }
    origin.on(&format!("GET /{}", encoded(&longest())), [ok(row(&longest()))]);
    let written: Vec<String> = NAMES.iter().map(|(_, written, _)| (*written).to_owned()).chain([longest()]).collect();
    listing(&world, &written);
    world.ok(&format!("snapshot --manifest listing.csv --source {} {PLAN}", origin.url));
    world.ok("run --queue q.db --output out");
    let mut asked = origin.asked();
    asked.sort();
    let mut routes: Vec<_> = NAMES.iter().map(|(_, _, route)| format!("GET {route}")).collect();
    routes.push(format!("GET /{}", encoded(&longest())));
    routes.sort();
    assert_eq!(asked, routes);
    all_are_in_the_shard(&world, &names_and_longest());
}

/// A name in several lines is nobody's intention, and no log, table or script survives it.
#[test]
fn a_name_with_a_control_character_is_refused_before_anything_is_taken_and_shown_in_one_line() {
    for (name, shown) in [("new\nline", "\\n"), ("\u{1b}[2J", "\\u{1b}"), ("c1\u{9b}2J", "\\u{9b}"), ("tab\t", "\\t")] {
        for place in ["in/en/{}.jsonl", "in/{}/a.jsonl", "in/en/{}/a.jsonl", "in/{}.txt"] {
            let world = World::new();
            write(&world.path(&place.replace("{}", name)), &row(name));
            let refused = world.run(&format!("snapshot --manifest in {PLAN}")).ends(1);
            let line = refused.stderr.strip_suffix('\n').unwrap();
            assert!(line.contains(shown) && !line.contains(char::is_control), "{line:?}");
            assert!(!world.path("q.db").exists());
        }
        let world = World::new();
        listing(&world, &[name.to_owned()]);
        let refused = world.run(&format!("snapshot --manifest listing.csv --source in {PLAN}")).ends(1).stderr;
        assert!(refused.contains("microshard 1") && refused.contains(shown), "{refused:?}");
        std::fs::write(world.path("listing.csv"), format!("microshard_id,{},uri\n1,2,3\n", quoted(name))).unwrap();
        let refused = world.run(&format!("snapshot --manifest listing.csv {PLAN}")).ends(1).stderr;
        assert!(!refused.trim_end().contains(char::is_control), "{refused:?}");
    }
}

#[test]
fn a_failure_of_an_odd_name_is_one_line_and_one_field_and_names_it_whole() {
    let world = World::new();
    let names = names_and_longest();
    for name in &names {
        write(&world.path(&format!("in/{name}")), "no json\n");
    }
    listing(&world, &names);
    world.ok(&format!("snapshot --manifest listing.csv --source in {PLAN}"));
    let ran = world.run("run --queue q.db --output out").ends(3);
    let shown = world.ok("failures --queue q.db");
    assert_eq!(shown.lines().count(), names.len());
    for ((line, name), id) in shown.lines().zip(&names).zip(1..) {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!((fields.len(), fields[0]), (5, format!("{id}").as_str()), "{line}");
        assert!(fields[2].ends_with(&format!("in/{name}")), "{line}");
    }
    let listed = world.json("failures --json --queue q.db");
    assert_eq!(listed.as_array().unwrap().len(), names.len());
    assert!(!ran.stderr.replace('\n', "").contains(char::is_control), "{:?}", ran.stderr);
    world.ok("sync-back --queue q.db");
    let mut results = csv::Reader::from_path(world.path("out/microshards.csv")).unwrap();
    let results: Vec<csv::StringRecord> = results.records().map(Result::unwrap).collect();
    assert!(results.iter().all(|result| result.len() == 4 && &result[1] == "failed"));
    assert_eq!(results.len(), names.len());
}
