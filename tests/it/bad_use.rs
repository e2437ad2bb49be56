//! What is set up or typed wrongly: one line on standard error that says what is wrong and what to do, the right exit
//! code, and never a panic or a password.

use std::path::Path;
use std::process::Stdio;

use crate::microshards::{copy_manifest, generated};
use crate::postgres::{Database, KEYHOLDER, database};
use crate::world::{Ran, World};

/// Asserts that a command fails with 1 and one line that contains all of `words`.
#[track_caller]
fn fails(world: &World, arguments: &str, words: &[&str]) -> String {
    one_line(world.run(arguments).ends(1), words)
}

#[track_caller]
fn one_line(ran: Ran, words: &[&str]) -> String {
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{}", ran.stderr);
    assert!(lines[0].starts_with("error: "), "{}", ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "no `{word}` in: {}", ran.stderr);
    }
    ran.stderr
}

/// A world with `queue.db` over a few microshards in `input`.
fn world() -> World {
    let world = World::new();
    generated(&world.path("input"), 30, 0);
    world.ok("snapshot --manifest input/manifest.csv --source input --queue queue.db");
    world
}

/// A world that finds a manifest of 30 microshards in Postgres.
fn postgres_world(database: &Database) -> World {
    let world = World::with(vec![("DATABASE_URL", database.url.clone())]);
    world.ok("init-manifest");
    let generated = generated(&world.path("input"), 30, 0);
    copy_manifest(&mut database.client(), &generated.manifest);
    world
}

/// Every command that opens a queue, on the queue `file`.
fn commands(file: &str) -> [String; 8] {
    ["run --output out", "sync-back", "status", "failures", "retry", "release", "verify", "plan"]
        .map(|command| format!("{command} --queue {file}"))
}

#[test]
fn a_queue_that_is_not_there_is_told_with_how_to_make_one() {
    let world = World::new();
    for command in commands("absent.db") {
        fails(&world, &command, &["no queue at absent.db", "compact-local snapshot"]);
    }
    assert!(crate::world::files(world.dir.path()).is_empty(), "something was made");
}

#[test]
fn a_file_that_is_no_queue_is_refused_and_left_alone() {
    let world = world();
    let queue = std::fs::read(world.path("queue.db")).unwrap();
    let random: Vec<u8> = (0..20_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let cases: [(&str, &[u8]); 4] = [
        ("notes.txt", b"not a queue\n"),
        ("random.db", &random),
        ("truncated.db", &queue[..queue.len() / 2]),
        ("empty.db", b""),
    ];
    for (name, bytes) in cases {
        std::fs::write(world.path(name), bytes).unwrap();
        for command in commands(name) {
            fails(&world, &command, &[name]);
            assert!(std::fs::read(world.path(name)).unwrap() == bytes, "`{command}` changed the file");
        }
        fails(&world, &format!("snapshot --manifest input/manifest.csv --source input --queue {name}"), &[name]);
        assert!(std::fs::read(world.path(name)).unwrap() == bytes, "snapshot changed {name}");
    }
    std::fs::create_dir(world.path("directory")).unwrap();
    for command in commands("directory") {
        fails(&world, &command, &["directory is not a queue of compact-local"]);
    }
}

#[test]
fn another_sqlite_database_and_a_newer_queue_are_told_apart() {
    // Bytes 60 to 63 of an SQLite file are its `user_version`, 68 to 71 its `application_id`.
    let world = world();
    let mut other = std::fs::read(world.path("queue.db")).unwrap();
    other[60..64].copy_from_slice(&9_u32.to_be_bytes());
    std::fs::write(world.path("newer.db"), &other).unwrap();
    other[68..72].fill(0);
    std::fs::write(world.path("other.db"), &other).unwrap();
    for command in commands("newer.db") {
        fails(&world, &command, &["newer.db has schema version 9", "use the newer program"]);
    }
    for command in commands("other.db") {
        fails(&world, &command, &["other.db is not a queue of compact-local"]);
    }
}

#[test]
fn postgres_that_cannot_be_reached_is_told_with_where_it_was_looked_for() {
    let world = World::new();
    for command in ["init-manifest", "snapshot --source input", "plan"] {
        let error = fails(&world, &format!("{command} --manifest postgres://me:pa55@127.0.0.1:1/db"), &["127.0.0.1:1"]);
        assert!(!error.contains("pa55"), "{error}");
    }
}

#[test]
fn a_wrong_password_is_told_and_never_shown() {
    let (world, database) = (World::new(), database());
    let url = format!("postgres://{}:wr0ng@127.0.0.1:{}/{}", KEYHOLDER.0, database.port, database.name);
    let in_url = fails(&world, &format!("init-manifest --manifest {url}?sslmode=disable"), &["password", KEYHOLDER.0]);
    let url = format!("postgres://{}@127.0.0.1:{}/{}", KEYHOLDER.0, database.port, database.name);
    let mut command = world.command(&format!("init-manifest --manifest {url}"));
    let output = command.env("PGPASSWORD", "wr0ng").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let in_variable = String::from_utf8(output.stderr).unwrap();
    for error in [in_url, in_variable] {
        assert!(error.starts_with("error: ") && error.lines().count() == 1 && !error.contains("wr0ng"), "{error}");
    }
}

#[test]
fn a_missing_table_run_or_column_is_named() {
    let database = database();
    let world = World::with(vec![("DATABASE_URL", database.url.clone())]);
    fails(&world, "snapshot --source input", &["final_export_microshards", "init-manifest"]);
    let world = postgres_world(&database);
    fails(&world, "snapshot --source input --run-id nightly", &["no run `nightly`", "demo-1"]);
    database.client().batch_execute("ALTER TABLE final_export_microshards RENAME uri TO address").unwrap();
    fails(&world, "snapshot --source input", &["`uri` is missing", "--column"]);
    fails(&world, "snapshot --source input --column uri=adress", &["`adress` (for uri) is missing"]);
    world.ok("snapshot --source input --column uri=address");
}

#[test]
fn a_uri_that_cannot_be_read_names_its_microshard() {
    let database = database();
    let world = postgres_world(&database);
    let mut client = database.client();
    for (uri, word) in [("gopher://host/a", "gopher"), ("../../etc/passwd", ".."), ("", "it has no uri")] {
        client.execute("UPDATE final_export_microshards SET uri = $1 WHERE microshard_id = 100007", &[&uri]).unwrap();
        fails(&world, "snapshot --source input --queue queue.db", &["microshard 100007", word]);
    }
    assert!(!world.path("queue.db").exists());
    client.batch_execute("UPDATE final_export_microshards SET uri = 'a.jsonl'").unwrap();
    fails(&world, "snapshot --queue queue.db", &["--source"]);
    let leased: i64 = client
        .query_one("SELECT count(*) FROM final_export_microshards_slices WHERE claimed_by IS NOT NULL", &[])
        .unwrap()
        .get(0);
    assert_eq!(leased, 0, "slices that a failed snapshot kept");
}

/// A world whose manifest, the file and that in Postgres, has 30 microshards in one shard: a few that are missing are no
/// sign of a wrong source.
fn world_of_one_shard(database: &Database) -> World {
    let world = World::with(vec![("DATABASE_URL", database.url.clone())]);
    world.ok("init-manifest");
    let generated = generated(&world.path("input"), 30, 0);
    let mut reader = csv::Reader::from_path(&generated.manifest).unwrap();
    let (header, lines) = (reader.headers().unwrap().clone(), reader.records().map(Result::unwrap).collect::<Vec<_>>());
    let mut writer = csv::Writer::from_path(&generated.manifest).unwrap();
    writer.write_record(&header).unwrap();
    for line in lines {
        let in_english = |(name, value)| if name == "language" { "en" } else { value };
        writer.write_record(header.iter().zip(&line).map(in_english)).unwrap();
    }
    writer.flush().unwrap();
    copy_manifest(&mut database.client(), &generated.manifest);
    world
}

/// The queue holds what it took: until it is released no other snapshot gets it, nor with other uris.
#[test]
fn a_wrong_source_is_set_right_by_release_and_another_snapshot() {
    let known = "30 of these have other uris now (another --source?)";
    let claimed = "0 are consumed, 0 failed, 30 claimed, 0 pending";
    for (how, told) in [("--claim slices", known), ("--claim rows", claimed), ("--manifest input/manifest.csv", known)]
    {
        let world = world_of_one_shard(&database());
        world.ok(&format!("snapshot {how} --source elsewhere --queue queue.db"));
        let stopped = world.run("run --output out --queue queue.db").ends(1).stderr;
        assert!(
            stopped.contains("is --source right? If not, run `compact-local release --queue queue.db`"),
            "{how}: {stopped}"
        );

        let ignored = world.ok(&format!("snapshot {how} --source input --queue queue.db"));
        assert!(ignored.contains(told), "{how}: {ignored}");
        world.ok("release --queue queue.db");
        let taken = world.ok(&format!("snapshot {how} --source input --queue queue.db"));
        assert!(taken.contains("30 microshards") && !taken.contains("other uris"), "{how}: {taken}");
        world.ok("run --output out --queue queue.db");
        assert_eq!(world.json("status --queue queue.db --json")["microshards"]["consumed"], 30, "{how}");
    }
}

#[test]
fn the_same_source_for_what_is_in_the_queue_already_is_no_news() {
    let world = world();
    let again = world.ok("snapshot --manifest input/manifest.csv --source input --queue queue.db");
    assert!(again.contains("30 were in the queue already") && !again.contains("other uris"), "{again}");
}

#[test]
fn an_output_that_cannot_be_written_stops_the_run_before_it_works() {
    let world = world();
    std::fs::write(world.path("file"), "a file").unwrap();
    let full = Path::new("/dev/full");
    for output in ["file", "file/out", "/proc/out", full.to_str().unwrap()] {
        fails(&world, &format!("run --queue queue.db --output {output}"), &[output]);
        let shards = world.json("status --json --queue queue.db")["shards"].clone();
        assert_eq!(shards["pending"], shards["total"]);
    }
    // And the queue is not bound to it.
    world.ok("run --queue queue.db --output out");
}

#[test]
fn other_output_options_than_the_first_are_refused_with_both() {
    let world = world();
    world.ok("run --queue queue.db --output out --level 5");
    fails(&world, "run --queue queue.db --output out", &["--level 5", "--level 3"]);
    fails(&world, "run --queue queue.db --output elsewhere --level 5", &["/out", "/elsewhere"]);
    fails(
        &world,
        "run --queue queue.db --output out --level 5 --on-failure hold",
        &["--on-failure skip", "--on-failure hold"],
    );
    assert!(!world.path("elsewhere").exists());
    world.ok("run --queue queue.db --output ./out --level 5");
}

#[test]
fn numbers_out_of_range_are_a_matter_of_usage() {
    let world = world();
    for arguments in [
        "run --output out --threads 0",
        "run --output out --threads many",
        "run --output out --level 23",
        "run --output out --memory 12parsecs",
        "run --output out --memory 0",
        "run --output out --on-failure weep",
        "run",
        "snapshot --shard-rows 0",
        "snapshot --shard-rows 5k",
        "snapshot --slices 65",
        "snapshot --lease soon",
        "snapshot --lease 0",
        "snapshot --lease 59s",
        "demo --microshards 0",
        "dance",
        "",
    ] {
        let ran = world.run(arguments).ends(2);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{arguments}: {ran:?}");
    }
    fails(&world, "run --queue queue.db --output out --s3-part-size 1MiB", &["--s3-part-size", "5MiB"]);
}

#[test]
fn an_output_that_nobody_reads_ends_a_command_quietly() {
    let world = world();
    world.ok("run --queue queue.db --output out");
    for arguments in ["status --queue queue.db", "plan --queue queue.db", "failures --json --queue queue.db", "--help"]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = world.command(arguments).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""), "{arguments}");
    }
}

#[test]
fn a_standard_output_that_is_full_is_an_error() {
    let world = world();
    let full = std::fs::File::create("/dev/full").unwrap();
    let child = world.command("status --queue queue.db").stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("error: "));
}

#[test]
fn shards_are_not_put_where_the_next_snapshot_lists_microshards() {
    let world = world();
    world.ok("snapshot --manifest input/microshards --run-id r --shard-microshards 10 --queue listed.db");
    fails(&world, "run --queue listed.db --output input/microshards", &["inside the manifest", "microshards"]);
    fails(&world, "run --queue listed.db --output input/microshards/out", &["inside the manifest"]);
    world.ok("run --queue listed.db --output input");
}

#[test]
fn what_looks_like_a_connection_string_is_not_printed_with_its_password() {
    let world = World::new();
    for manifest in [
        "postgresql+psycopg2://u:SECRET@h/db",
        "mysql://u:SECRET@h/db?p=SECRET",
        "password=SECRET sslmod=x",
        "pw=SECRET host=h",
        "postgres//me:SECRET@h/x",
        "postgres:/me:SECRET@h/x",
        "//me:SECRET@h/x",
        "/me:SECRET@h/x",
        "me:SECRET@127.0.0.1:5955/export",
        "mysql://me:SEC/SECRET@h/x",
    ] {
        let said = |command: &mut std::process::Command| String::from_utf8(command.output().unwrap().stderr).unwrap();
        let typed = said(world.command("snapshot --manifest").arg(manifest));
        assert!(typed.starts_with("error: failed to open the manifest"), "{typed}");
        let in_variable = said(world.command("snapshot").env("DATABASE_URL", manifest).env("PGUSER", "u"));
        assert!(in_variable.starts_with("error: "), "{in_variable}");
        assert!(!typed.contains("SECRET") && !in_variable.contains("SECRET"), "{typed}{in_variable}");
    }
    for manifest in ["absent/dt=2024-01-01/m@1.csv", "/absent/12:30/m.csv"] {
        fails(&world, &format!("snapshot --manifest {manifest}"), &[manifest, "No such file"]);
    }
}

/// A password with a `/` in it that is not percent-encoded goes on behind what looks like the host.
#[test]
fn a_uri_whose_login_is_mistyped_is_not_printed_with_a_part_of_its_password() {
    let world = world();
    for uri in ["http://me:USE/SECRET@127.0.0.1:8161/x", "http://me:USE?SECRET@h/x", "s3://me:USE@b/a?SECRET"] {
        std::fs::write(world.path("m.csv"), format!("microshard_id,run_id,language,uri\n1,r,en,{uri}\n")).unwrap();
        let of_source = format!("snapshot --manifest input/manifest.csv --source {uri}");
        for arguments in [format!("cat {uri}"), "snapshot --manifest m.csv".to_owned(), of_source] {
            let said = world.run(&arguments).ends(1).stderr;
            assert!(!said.contains("SECRET") && !said.contains("USE"), "{said}");
        }
    }
}

#[test]
fn a_final_slash_makes_no_other_output() {
    let world = world();
    world.ok("run --queue queue.db --output out");
    world.ok("run --queue queue.db --output ./out/");
}
