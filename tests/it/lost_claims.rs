//! A snapshot that is killed while it reads the manifest. Its claim is in Postgres, and no queue knows of it: a side file
//! does, so nobody has to wait until the lease ends. The process really dies.

use std::os::unix::fs::PermissionsExt;

use compact_local::manifest::Held;
use microshard_queue::{Acquired, Lock, LockKind, Queue};
use postgres::Client;

use crate::microshards::{copy_manifest, generated};
use crate::postgres::{Database, database};
use crate::world::World;

const SIGABRT: i32 = -6;
const SLICES: &str = "snapshot --claim slices --source input --queue q.db";
const ROWS: &str = "snapshot --claim rows --source input --queue q.db";

/// A world that finds a manifest of 30 microshards in Postgres.
fn world(database: &Database) -> World {
    let world = World::with(vec![("DATABASE_URL", database.url.clone())]);
    world.ok("init-manifest");
    let generated = generated(&world.path("input"), 30, 0);
    copy_manifest(&mut database.client(), &generated.manifest);
    world
}

/// Runs a snapshot that dies when it is given the last microshard.
fn kill(world: &World, database: &Database, snapshot: &str) {
    let sql = "SELECT max(microshard_id) FROM final_export_microshards";
    let last: i64 = database.client().query_one(sql, &[]).unwrap().get(0);
    let mut command = world.command(snapshot);
    let output = command.env("COMPACT_LOCAL_TEST_DIE_TAKING", last.to_string()).output().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status).map(|signal| -signal);
    assert_eq!(signal, Some(SIGABRT), "{}", String::from_utf8_lossy(&output.stderr));
    let mode = std::fs::metadata(world.path("q.db.holder")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// How many slices and rows are claimed, by how many.
fn claimed(client: &mut Client) -> (i64, i64, i64) {
    let sql = "SELECT (SELECT count(*) FROM final_export_microshards_slices WHERE claimed_by IS NOT NULL), \
               (SELECT count(*) FROM final_export_microshards WHERE status = 'claimed'), \
               (SELECT count(*) FROM (SELECT claimed_by FROM final_export_microshards_slices WHERE claimed_by IS NOT NULL \
                UNION SELECT claimed_by FROM final_export_microshards WHERE status = 'claimed') AS holders)";
    let row = client.query_one(sql, &[]).unwrap();
    (row.get(0), row.get(1), row.get(2))
}

fn pending(world: &World) -> i64 {
    world.json("status --json --queue q.db")["microshards"]["pending"].as_i64().unwrap()
}

fn killed_then_taken_again(snapshot: &str, held: (i64, i64, i64)) {
    let database = database();
    let world = world(&database);
    kill(&world, &database, snapshot);
    assert!(!world.path("q.db").exists());
    assert_eq!(claimed(&mut database.client()), held);
    // Once more: the second to die must not forget what the first one had.
    kill(&world, &database, snapshot);
    world.ok(snapshot);
    assert_eq!((pending(&world), claimed(&mut database.client())), (30, held));
    assert!(!world.path("q.db.holder").exists(), "the queue says it itself now");
}

#[test]
fn a_killed_snapshot_takes_its_slices_again_at_once() {
    killed_then_taken_again(SLICES, (64, 0, 1));
}

#[test]
fn a_killed_snapshot_takes_its_rows_again_at_once() {
    killed_then_taken_again(ROWS, (0, 30, 1));
}

#[test]
fn a_killed_snapshot_into_a_queue_that_has_others_is_taken_again_at_once() {
    for snapshot in [SLICES, ROWS] {
        let database = database();
        let world = world(&database);
        world.ok(&format!("{snapshot} --limit 10"));
        let first = pending(&world);
        kill(&world, &database, snapshot);
        assert_eq!(pending(&world), first, "{snapshot}");
        world.ok(snapshot);
        assert_eq!(pending(&world), 30, "{snapshot}");
        // What the first snapshot claimed is still the queue's.
        world.ok("run --queue q.db --output out");
        assert_eq!(world.json("sync-back --json --queue q.db")["refused"], serde_json::json!([]), "{snapshot}");
    }
}

#[test]
fn what_a_killed_snapshot_claimed_is_released_although_there_is_no_queue() {
    for (snapshot, released) in [(SLICES, (64, 0)), (ROWS, (0, 30))] {
        let database = database();
        let world = world(&database);
        kill(&world, &database, snapshot);
        let report = world.json("release --json --queue q.db");
        assert_eq!((report["slices_released"].as_i64(), report["rows_given_back"].as_i64()), {
            (Some(released.0), Some(released.1))
        });
        assert_eq!(claimed(&mut database.client()), (0, 0, 0));
        let again = world.run("release --queue q.db").ends(1);
        assert!(again.stderr.contains("no queue at q.db"), "{}", again.stderr);
    }
}

#[test]
fn what_a_killed_snapshot_claimed_is_released_with_the_queue_that_has_others() {
    let database = database();
    let world = world(&database);
    world.ok(&format!("{ROWS} --limit 10"));
    kill(&world, &database, ROWS);
    assert_eq!(claimed(&mut database.client()), (0, 30, 2));
    assert_eq!(world.json("release --json --queue q.db")["rows_given_back"], 30);
    assert_eq!(claimed(&mut database.client()), (0, 0, 0));
}

/// The queue's record is there, the side file not yet gone.
#[test]
fn a_snapshot_killed_when_its_queue_was_made_has_lost_nothing() {
    let database = database();
    let world = world(&database);
    world.ok(ROWS);
    let record = Queue::open(&world.path("q.db")).unwrap().snapshots().unwrap().remove(0).claim;
    std::fs::write(world.path("q.db.holder"), &record).unwrap();
    world.ok(ROWS);
    let Held::Postgres { claim, .. } = Held::parse(&record).unwrap() else { panic!("{record}") };
    let sql = "SELECT count(*) FROM final_export_microshards WHERE claimed_by = $1";
    let held: i64 = database.client().query_one(sql, &[&claim.claimed_by]).unwrap().get(0);
    assert_eq!(held, 30, "what the queue works on was given away");
    assert!(!world.path("q.db.holder").exists());
}

#[test]
fn a_claim_lost_in_another_manifest_is_not_forgotten() {
    let (here, there) = (database(), database());
    let world = world(&there);
    kill(&world, &there, SLICES);
    here.filled(5);
    let elsewhere = world.run(&format!("{SLICES} --manifest {}", here.url)).ends(1);
    for word in ["was killed", &there.name, &here.name, "release", "q.db.holder"] {
        assert!(elsewhere.stderr.contains(word), "no `{word}` in: {}", elsewhere.stderr);
    }
    assert_eq!(world.json("release --json --queue q.db")["slices_released"], 64);
    world.ok("snapshot --queue q.db --manifest input/manifest.csv --source input");
}

#[test]
fn a_snapshot_at_work_is_not_robbed_by_release() {
    let database = database();
    let world = world(&database);
    kill(&world, &database, SLICES);
    let Acquired::Ours(lock) = Lock::acquire(&world.path("q.db"), LockKind::Intake).unwrap() else { panic!("busy") };
    let refused = world.run("release --queue q.db").ends(1);
    assert!(refused.stderr.contains("a snapshot is at work on q.db"), "{}", refused.stderr);
    assert_eq!(claimed(&mut database.client()).0, 64);
    drop(lock);
    world.ok("release --queue q.db");
}

#[test]
fn a_snapshot_that_is_refused_leaves_no_side_file() {
    let database = database();
    let world = world(&database);
    world.ok("snapshot --source input --queue other.db");
    let refused = world.run(SLICES).ends(1);
    assert!(refused.stderr.contains("every slice of run"), "{}", refused.stderr);
    assert!(!world.path("q.db.holder").exists());
}
