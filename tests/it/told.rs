//! What commands say of what is not in the dataset, and of what to do next: nothing that is missing ends with 0, every
//! microshard is counted under one word, and a command that is suggested can be typed as it is printed.

use serde_json::json;

use crate::microshards::{Served, copy_manifest, generated, served};
use crate::postgres::database;
use crate::world::{Ran, World};

/// A queue `a.db` over a listing of 300 microshards, four of them faulty.
fn faulty() -> (Served, World) {
    let (served, world) = (served(300, 4), World::new());
    let manifest = served.generated.manifest.display().to_string();
    world.ok(&format!("snapshot --manifest {manifest} --source {} --shard-rows 1500 --queue a.db", served.nginx.url));
    (served, world)
}

/// The commands that are suggested in a text: each behind `compact-local`, up to the end of the quote or of the line.
fn suggested(text: &str) -> Vec<String> {
    let commands = text.split("compact-local ").skip(1);
    commands.map(|command| command.split(['`', '\n']).next().unwrap().to_owned()).collect()
}

fn failed_in_csv(world: &World) -> usize {
    let csv = std::fs::read_to_string(world.path("out/microshards.csv")).unwrap();
    csv.lines().filter(|line| line.split(',').nth(1) == Some("failed")).count()
}

#[test]
fn what_is_suggested_works_as_it_is_printed() {
    let (_served, world) = faulty();
    for command in ["verify --queue a.db", "sync-back --queue a.db"] {
        let early = world.run(command).ends(1).stderr;
        assert_eq!(suggested(&early), ["run --queue a.db --output DIR"], "{early}");
    }
    let ran = world.run("run --queue a.db --output out --level 1 --on-failure hold").ends(3).stdout;
    assert_eq!(suggested(&ran), ["failures --queue a.db"], "{ran}");
    assert_eq!(world.ok(&suggested(&ran)[0]).lines().count(), 4);
    let retried = world.ok("retry --queue a.db");
    assert!(retried.starts_with("4 microshards are pending again"), "{retried}");
    let run = suggested(&retried).remove(0);
    assert!(run.ends_with("/out --level 1 --on-failure hold"), "{run}");
    world.run(&run).ends(3);
}

#[test]
fn where_nothing_has_failed_no_run_is_suggested_and_what_was_named_is_an_error() {
    let world = World::new();
    generated(&world.path("input"), 30, 0);
    world.ok("snapshot --manifest input/manifest.csv --source input --queue a.db");
    assert_eq!(world.ok("retry --queue a.db"), "there is nothing to retry\n");
    for named in ["--language xx", "--microshard 5"] {
        let refused = world.run(&format!("retry {named} --queue a.db")).ends(1).stderr;
        assert!(refused.contains(named.split(' ').nth(1).unwrap()), "{refused}");
        assert_eq!(suggested(&refused), ["failures --queue a.db"], "{refused}");
    }
}

#[test]
fn what_is_released_before_it_is_retried_stays_on_record_and_can_be_retried() {
    let (_served, world) = faulty();
    world.run("run --queue a.db --output out").ends(3);
    world.ok("sync-back --queue a.db");
    assert_eq!(failed_in_csv(&world), 4);
    let failures = world.ok("failures --queue a.db");
    world.ok("retry --queue a.db");
    let released = world.ok("release --queue a.db");
    assert!(
        released.contains("0 microshards are released") && released.contains("4 microshards that waited"),
        "{released}"
    );
    assert_eq!(world.ok("failures --queue a.db"), failures);
    world.run("run --queue a.db --output out").ends(3);
    world.ok("sync-back --queue a.db");
    assert_eq!(failed_in_csv(&world), 4);
    assert_eq!(world.json("retry --json --queue a.db")["microshards"], 4);
    world.run("verify --queue a.db").ends(3);
}

#[test]
fn a_failure_is_a_line_of_five_columns() {
    let (_served, world) = faulty();
    world.run("run --queue a.db --output out").ends(3);
    for line in world.ok("failures --queue a.db").lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        assert_eq!(columns.len(), 5, "{line}");
        assert!(columns[0].parse::<i64>().is_ok() && columns[4].parse::<u32>().is_ok_and(|tries| tries > 0), "{line}");
    }
}

#[test]
fn held_failed_and_built_are_counted_apart_and_verify_ends_with_3() {
    let (_served, world) = faulty();
    let planned = world.json("plan --json --queue a.db");
    let ran = world.run("run --queue a.db --output out --on-failure hold").ends(3);
    let microshards = world.json("status --json --queue a.db")["microshards"].clone();
    let held = microshards["held"].as_u64().unwrap();
    assert!(held > 0 && microshards["failed"] == 4, "{microshards}");
    let last = ran.stderr.lines().last().unwrap();
    assert!(last.ends_with(&format!("failed 4, held {held}")), "{last}");
    let verified = world.run("verify --queue a.db").ends(3).stdout;
    assert!(verified.contains(&format!("4 microshards failed, {held} held, 0 pending")), "{verified}");
    let plan = world.ok("plan --queue a.db");
    assert!(plan.contains(&format!("{held} microshards are held: {held} wait for `retry`\n")), "{plan}");
    world.ok("release --queue a.db");
    let plan = world.ok("plan --queue a.db");
    assert!(plan.contains(&format!("{held} microshards are held: {held} were released\n")), "{plan}");
    assert!(planned.as_array().unwrap().iter().all(|group| group["held_microshards"] == 0));
}

#[test]
fn a_plan_counts_microshards_rows_and_bytes_without_what_failed_and_sums_them_up() {
    let (_served, world) = faulty();
    let sum = |plan: &serde_json::Value, of: &str| -> u64 {
        plan.as_array().unwrap().iter().map(|group| group[of].as_u64().unwrap()).sum()
    };
    let before = world.json("plan --json --queue a.db");
    assert_eq!(sum(&before, "microshards"), 300);
    world.run("run --queue a.db --output out").ends(3);
    let (plan, status) = (world.json("plan --json --queue a.db"), world.json("status --json --queue a.db"));
    assert_eq!((sum(&plan, "microshards"), json!(sum(&plan, "rows"))), (296, status["rows"].clone()));
    assert_eq!(json!(sum(&plan, "bytes_in")), status["bytes_in"]);
    let text = world.ok("plan --queue a.db");
    let all = text.lines().find(|line| line.starts_with("all ")).unwrap();
    assert_eq!(all.split_whitespace().nth(1), Some("296"), "{text}");
    assert!(text.contains("4 microshards failed and are not counted"), "{text}");
}

#[test]
fn what_the_manifest_refused_is_told_by_status_run_and_verify() {
    let database = database();
    let world = World::with(vec![("DATABASE_URL", database.url.clone())]);
    world.ok("init-manifest");
    let generated = generated(&world.path("input"), 60, 0);
    copy_manifest(&mut database.client(), &generated.manifest);
    world.ok("snapshot --source input --shard-rows 1000 --queue a.db");
    world.ok("run --queue a.db --output out");
    assert!(!world.ok("status --queue a.db").contains("refused"));
    let sql = "UPDATE final_export_microshards SET updated_at = now() + interval '1 s' WHERE microshard_id = 100007";
    database.client().batch_execute(sql).unwrap();
    world.run("sync-back --queue a.db").ends(1);

    assert_eq!(world.json("status --json --queue a.db")["refused"], json!({"shards": 1, "failures": 0}));
    let status = world.ok("status --queue a.db");
    assert!(status.contains("the manifest refused 1 shards and 0 failures"), "{status}");
    let ran = world.ok("run --queue a.db --output out");
    assert!(ran.contains("1 refused by the manifest"), "{ran}");
    let verified = world.run("verify --queue a.db").ends(3).stdout;
    assert!(verified.contains("1 results refused by the manifest"), "{verified}");
    for said in [status, ran] {
        assert_eq!(suggested(&said), ["sync-back --queue a.db"], "{said}");
    }
}

#[test]
fn where_there_is_nothing_to_take_it_is_told_where_everything_is_and_no_queue_is_made() {
    let database = database();
    let world = World::with(vec![("DATABASE_URL", database.url.clone())]);
    world.ok("init-manifest");
    let generated = generated(&world.path("input"), 30, 0);
    copy_manifest(&mut database.client(), &generated.manifest);
    let sql = "UPDATE final_export_microshards SET status = CASE WHEN microshard_id = 100003 THEN 'failed' ELSE 'consumed' END";
    database.client().batch_execute(sql).unwrap();
    let told = "29 are consumed, 1 failed, 0 claimed, 0 pending";
    for command in ["snapshot --queue a.db", "snapshot --claim rows --queue a.db", "plan --manifest"] {
        let command =
            if command.starts_with("plan") { format!("{command} {}", database.url) } else { command.to_owned() };
        let nothing: Ran = world.run(&format!("{command} --source input")).ends(1);
        assert!(nothing.stderr.contains(told), "{}", nothing.stderr);
        assert!(!world.path("a.db").exists());
    }
    let leased = "SELECT count(*) FROM final_export_microshards_slices WHERE claimed_by IS NOT NULL";
    assert_eq!(database.client().query_one(leased, &[]).unwrap().get::<_, i64>(0), 0, "slices are kept for nothing");
    // Into a queue that is there it is no error: there may be something the next time.
    database
        .client()
        .batch_execute("UPDATE final_export_microshards SET status = 'pending' WHERE language = 'en'")
        .unwrap();
    world.ok("snapshot --source input --queue a.db");
    world.ok("run --queue a.db --output out");
    world.ok("sync-back --queue a.db");
    let nothing = world.ok("snapshot --source input --queue a.db");
    assert!(nothing.contains("There is nothing new") && nothing.contains("0 pending"), "{nothing}");
    let other = world.run("snapshot --source input --language xx --queue b.db").ends(1).stderr;
    assert!(other.contains("--language"), "{other}");
}

#[test]
fn numbers_and_directories_in_the_wrong_place_are_told_with_what_to_write() {
    let world = World::new();
    let unit = world.run("snapshot --shard-rows 5k").ends(2).stderr;
    assert!(unit.contains("write a whole number"), "{unit}");
    std::fs::create_dir(world.path("shards")).unwrap();
    let directory = world.run("cat shards").ends(1).stderr;
    assert!(directory.contains("shards is a directory"), "{directory}");
}
