//! Numbers, times and files from outside at the ends of what they can be: a sentence or work that is done, never a panic,
//! and no sum that overflows. `World::run` sees a panic in what is said; 101 is its exit code.

use crate::microshards::generated;
use crate::postgres::database;
use crate::world::{Ran, World};

/// Runs a command that may end well or with a sentence, and not otherwise.
#[track_caller]
fn survives(world: &World, arguments: &str) -> Ran {
    let ran = world.run(arguments);
    assert!([0, 1, 2, 3].contains(&ran.code) && !ran.stderr.contains("panicked"), "`{arguments}`: {ran:?}");
    ran
}

#[test]
fn no_flag_is_so_large_that_the_process_panics() {
    let world = World::new();
    generated(&world.path("input"), 30, 0);
    let most = u64::MAX.to_string();
    let take = "snapshot --manifest input/manifest.csv --source input";
    for (number, flag) in
        ["limit", "shard-rows", "shard-bytes", "shard-microshards", "lease 500years --limit", "lease 1m --limit"]
            .into_iter()
            .enumerate()
    {
        survives(&world, &format!("{take} --{flag} {most} --queue {number}.db"));
        survives(&world, &format!("plan --manifest input/manifest.csv --source input --{flag} {most}"));
    }
    world.ok(&format!("{take} --queue q.db"));
    for flags in [
        format!("--memory {most}"),
        format!("--max-microshard-bytes {most}"),
        format!("--memory {most} --max-microshard-bytes {most}"),
        format!("--s3-part-size {most}"),
        "--threads 4096 --builders 1024 --level 22 --frames seekable=1GiB".to_owned(),
        "--memory 1".to_owned(),
        "--max-microshard-bytes 1".to_owned(),
    ] {
        let name = flags.replace([' ', '-', '='], "");
        std::fs::copy(world.path("q.db"), world.path(&name)).unwrap();
        survives(&world, &format!("run --output out-{name} --queue {name} {flags}"));
    }
    world.ok("run --output out --queue q.db --frames seekable");
    let shard = crate::world::files(&world.path("out/en")).remove(0);
    for rows in [&most, &format!("{most}.."), &format!("{most}..{most}"), &format!("0..{most}"), &format!("..{most}")] {
        survives(&world, &format!("cat out/en/{shard} --rows {rows}"));
    }
    for id in [i64::MIN, i64::MAX] {
        survives(&world, &format!("cat out/en/{shard} --microshard {id}"));
        survives(&world, &format!("retry --queue q.db --microshard {id}"));
    }
}

#[test]
fn numbers_at_the_ends_of_their_range_are_taken_or_refused_by_every_command() {
    let header = "microshard_id,run_id,language,uri,segment_count,byte_size,created_at\n";
    let lines = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let cases = [
        lines(&[
            &format!("{},r,en,a.jsonl,1,,", i64::MIN),
            &format!("{},r,en,b.jsonl,1,,", i64::MAX),
            "0,r,en,c.jsonl,1,,",
        ]),
        (1..=9).map(|id| format!("{id},r,en,{id}.jsonl,4294967295,1125899906842624,\n")).collect(),
        lines(&["1,r,en,a.jsonl,0,0,", "2,r,en,b.jsonl,0,0,"]),
        lines(&["1,r,en,a.jsonl,1,,-9223372036854775808", "2,r,en,b.jsonl,1,,9223372036854775807"]),
        lines(&["1,r,en,a.jsonl,1,,-9999-01-01T00:00:00Z", "2,r,en,b.jsonl,1,,9999-12-31T23:59:59Z"]),
        lines(&["1,r,en,a.jsonl,18446744073709551615,18446744073709551615,"]),
        lines(&["-1,r,en,a.jsonl,1,18446744073709551616,"]),
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let world = World::new();
        for name in ["a", "b", "c"] {
            std::fs::write(world.path(&format!("{name}.jsonl")), "{}\n").unwrap();
        }
        std::fs::write(world.path("m.csv"), format!("{header}{case}")).unwrap();
        survives(&world, "plan --manifest m.csv --source .");
        let taken = survives(&world, "snapshot --manifest m.csv --source . --queue q.db").code == 0;
        assert!(taken || number >= 3, "case {number} was refused");
        if taken {
            for command in
                ["plan", "run --output out", "status --json", "failures", "verify", "sync-back", "retry", "release"]
            {
                survives(&world, &format!("{command} --queue q.db"));
            }
        }
    }
}

#[test]
fn what_postgres_can_say_of_times_and_numbers_is_taken_or_refused_with_the_microshards_id() {
    let database = database();
    let world = World::with(vec![("DATABASE_URL", database.url.clone())]);
    database.filled(3);
    let mut client = database.client();
    for (number, set) in [
        "created_at = 'infinity'",
        "created_at = '-infinity'",
        "created_at = '4713-01-01 BC'",
        "created_at = '294276-12-31'",
        "updated_at = 'infinity'",
        "segment_count = -1",
        "byte_size = -9223372036854775808",
        "byte_size = 9223372036854775807",
        "sha256 = repeat('+f', 32)",
        "microshard_id = -9223372036854775808",
        "lease_expires_at = '-infinity', status = 'claimed'",
    ]
    .into_iter()
    .enumerate()
    {
        client.batch_execute("BEGIN").unwrap();
        client.batch_execute("CREATE TABLE kept AS TABLE final_export_microshards").unwrap();
        client
            .batch_execute(&format!("UPDATE final_export_microshards SET {set} WHERE microshard_id = 2; COMMIT"))
            .unwrap();
        let ran = survives(&world, &format!("snapshot --claim none --source . --queue {number}.db"));
        assert!(ran.code == 0 || ran.stderr.contains("microshard 2"), "{set}: {}", ran.stderr);
        client
            .batch_execute(
                "DELETE FROM final_export_microshards; INSERT INTO final_export_microshards SELECT * FROM kept; DROP TABLE kept",
            )
            .unwrap();
    }
}

#[test]
fn side_files_and_an_index_that_hold_something_else_are_an_error_that_names_them() {
    for text in ["", "[]", "{}", "{\"version\":18446744073709551615}", "\u{0}", "{\"shards\":[{\"uri\":\"../../x\"}]}"]
    {
        let world = World::new();
        generated(&world.path("input"), 30, 0);
        world.ok("snapshot --manifest input/manifest.csv --source input --queue q.db");
        std::fs::create_dir(world.path("out")).unwrap();
        std::fs::write(world.path("out/index.json"), text).unwrap();
        let ran = survives(&world, "run --queue q.db --output out");
        assert!(ran.code == 0 || ran.stderr.contains("index.json"), "{text}: {}", ran.stderr);
        survives(&world, "verify --queue q.db");
        std::fs::write(world.path("q.db.holder"), text).unwrap();
        std::fs::write(world.path("q.db.slots"), text).unwrap();
        for command in
            ["status", "run --output out", "release", "snapshot --manifest input/manifest.csv --source input"]
        {
            survives(&world, &format!("{command} --queue q.db"));
        }
    }
}

/// The mapped crash slots of a dead process, whatever is in them.
#[test]
fn crash_slots_full_of_anything_accuse_only_microshards_that_there_are() {
    let world = World::new();
    generated(&world.path("input"), 30, 0);
    world.ok("snapshot --manifest input/manifest.csv --source input --queue q.db");
    std::fs::write(world.path("q.db.slots"), vec![0xff; 20_000]).unwrap();
    world.ok("run --queue q.db --output out");
    assert_eq!(world.json("status --json --queue q.db")["microshards"]["consumed"], 30);
}
