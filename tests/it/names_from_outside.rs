//! Names that come from outside, made to do harm: of tables and columns in SQL, of runs and languages in keys. Whatever
//! they hold, they are names, and lead nowhere else.

use crate::microshards::generated;
use crate::postgres::{Database, database};
use crate::world::{World, files};

/// What `--table`, `--shards-table` and `--column` are given; each would change the SQL it is in, were it not quoted.
const TABLE: &str = "T';DROP TABLE witness;--";
const SHARDS: &str = "{microshards} CREATE TABLE Ünï $1 ";
const COLUMNS: [&str; 6] = [
    "microshard_id=ID",
    "uri=u\";DROP TABLE witness;--",
    "language=select",
    "run_id={language}",
    "status=$1::text",
    "shard_id=শার্ড'",
];

fn world(database: &Database) -> World {
    let world = World::with(vec![("DATABASE_URL", database.url.clone())]);
    database.client().batch_execute("CREATE TABLE witness ()").unwrap();
    generated(&world.path("input"), 30, 0);
    world
}

/// Runs a command with the names above.
fn named(world: &World, arguments: &str) -> String {
    let mut command = world.command(arguments);
    command.args(["--table", TABLE, "--shards-table", SHARDS]);
    for column in COLUMNS {
        command.args(["--column", column]);
    }
    let output = command.output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), told.contains("panicked")), (Some(0), false), "{arguments}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn tables_and_columns_of_any_name_are_made_claimed_from_and_written_to_and_nothing_else_is() {
    let database = database();
    let world = world(&database);
    let mut client = database.client();
    let printed = named(&world, "init-manifest --print");
    client.batch_execute(&printed).unwrap();
    client.batch_execute(&printed).unwrap();
    let made = "SELECT string_agg(relname, '|' ORDER BY relname) FROM pg_class WHERE relkind = 'r' AND relnamespace = \
                'public'::regnamespace";
    let tables = format!("{TABLE}|{TABLE}_slices|{TABLE}_snapshots|witness|{SHARDS}");
    let mut expected: Vec<&str> = tables.split('|').collect();
    let found: String = client.query_one(made, &[]).unwrap().get(0);
    let mut found: Vec<&str> = found.split('|').collect();
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected);
    assert!(named(&world, "init-manifest").contains("there already"), "what is printed is not what is run");

    let table = format!("\"{TABLE}\"");
    let csv = std::fs::read_to_string(world.path("input/manifest.csv")).unwrap();
    let header = csv.lines().next().unwrap();
    let theirs = |ours: &str| {
        let renamed = COLUMNS.iter().filter_map(|column| column.split_once('=')).find(|(name, _)| *name == ours);
        format!("\"{}\"", renamed.map_or(ours, |(_, theirs)| theirs).replace('"', "\"\""))
    };
    let columns: Vec<String> = header.split(',').map(theirs).collect();
    let mut copy =
        client.copy_in(&format!("COPY {table} ({}) FROM STDIN (FORMAT csv, HEADER)", columns.join(","))).unwrap();
    std::io::Write::write_all(&mut copy, csv.as_bytes()).unwrap();
    copy.finish().unwrap();

    for claim in ["rows", "slices"] {
        named(&world, &format!("plan --source input --manifest {}", database.url));
        named(&world, &format!("snapshot --claim {claim} --source input --limit 15 --queue {claim}.db"));
        world.ok(&format!("run --queue {claim}.db --output out"));
        world.ok(&format!("sync-back --queue {claim}.db"));
        world.ok(&format!("release --queue {claim}.db"));
    }
    let consumed = format!("SELECT count(*) FROM {table} WHERE {} = 'consumed'", theirs("status"));
    assert_eq!(client.query_one(&consumed, &[]).unwrap().get::<_, i64>(0), 30);
    let shards = format!("SELECT sum(microshard_count)::bigint FROM \"{SHARDS}\"");
    assert_eq!(client.query_one(&shards, &[]).unwrap().get::<_, i64>(0), 30);
    client.batch_execute("SELECT FROM witness").unwrap();
}

#[test]
fn a_table_name_with_quotes_of_its_own_is_refused_before_anything_is_sent() {
    let world = World::new();
    for (flag, name) in [("--table", "a\"b"), ("--shards-table", "\"a\""), ("--table", "a.b.c"), ("--table", "")] {
        let mut command = world.command("init-manifest --manifest postgres://u@127.0.0.1:1/d");
        let told = String::from_utf8(command.args([flag, name]).output().unwrap().stderr).unwrap();
        assert!(told.starts_with(&format!("error: {flag} {name}: ")), "{told}");
    }
}

/// A run id and a language each, and a shard is where `index.json` says: in its language's directory, below the output.
#[test]
fn no_run_id_and_no_language_leads_out_of_the_output() {
    let names = [
        "../../up",
        "..",
        ".",
        "/etc",
        "a/b",
        "-rf",
        ".hidden",
        "~",
        "C:\\x",
        "%2e%2e%2f",
        "a\\..\\b",
        "\u{202e}en",
        "EN",
        "হিন্দি",
        "con",
        "a b",
        "*?[]",
        "$(id)",
        "`id`",
        "en,\"x\"",
        "r \u{a0}",
    ];
    let long = "x".repeat(100);
    for (number, name) in names.into_iter().chain([long.as_str()]).enumerate() {
        let world = World::new();
        std::fs::create_dir(world.path("deep")).unwrap();
        std::fs::write(world.path("a.jsonl"), "{}\n").unwrap();
        let mut listing = csv::Writer::from_path(world.path("m.csv")).unwrap();
        listing.write_record(["microshard_id", "run_id", "language", "uri", "segment_count"]).unwrap();
        listing.write_record(["1", name, name, "a.jsonl", "1"]).unwrap();
        listing.flush().unwrap();
        world.ok("snapshot --manifest m.csv --source . --queue q.db");
        world.ok("run --queue q.db --output deep/out");
        let found = files(world.dir.path());
        let shard =
            found.iter().find(|file| file.ends_with(".jsonl.zst")).unwrap_or_else(|| panic!("{name}: {found:?}"));
        let key = shard.strip_prefix("deep/out/").unwrap_or_else(|| panic!("{name} led to {shard}"));
        assert_eq!(key.matches('/').count(), 1, "{name} made {key}");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-/".contains(c);
        assert!(key.chars().all(is_plain) && !key.starts_with('.') && !key.contains("/."), "{name} made {key}");
        let index = std::fs::read_to_string(world.path("deep/out/index.json")).unwrap();
        assert!(index.contains(key), "{number}: {index}");
        world.ok("verify --source --queue q.db");
    }
}

#[test]
fn a_name_that_no_file_can_have_is_refused_or_made_one() {
    let world = World::new();
    std::fs::write(world.path("a.jsonl"), "{}\n").unwrap();
    for (language, told) in [("x".repeat(101), "101 bytes"), ("হ".repeat(34), "102 bytes")] {
        let line = format!("microshard_id,run_id,language,uri,segment_count\n1,r,{language},a.jsonl,1\n");
        std::fs::write(world.path("m.csv"), line).unwrap();
        let error = world.run("snapshot --manifest m.csv --source . --queue q.db").ends(1).stderr;
        assert!(error.contains(told) && error.contains("microshard 1"), "{error}");
    }
    // Two names that become one.
    let lines = "microshard_id,run_id,language,uri,segment_count\n1,r,a/b,a.jsonl,1\n2,r,a_b,b.jsonl,1\n";
    std::fs::write(world.path("m.csv"), lines).unwrap();
    let error = world.run("snapshot --manifest m.csv --source . --queue q.db").ends(1).stderr;
    assert!(error.contains("a_b"), "{error}");
    // A NUL would end a name for the file system.
    let line = "microshard_id,run_id,language,uri,segment_count\n1,r,e\0n,a.jsonl,1\n";
    std::fs::write(world.path("m.csv"), line).unwrap();
    world.ok("snapshot --manifest m.csv --source . --queue q.db");
    world.ok("run --queue q.db --output out");
    assert_eq!(files(&world.path("out")), ["e_n/r-e_n-000-00000.jsonl.zst", "index.json"]);
}
