//! The query plans of every hot statement: a partial index, no scan, no sorting (I7). Checked on a fresh connection, as
//! cached statements show old plans.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;

use crossbeam_channel::bounded;
use microshard_queue::{Claimed, Client, Failure, Finish, Outcome, SUSPECTS, statements_of};

use crate::world::{World, claim, claim_at, finish, published};

/// The steps of a statement's plan.
fn plan(conn: &rusqlite::Connection, sql: &str) -> String {
    let mut explain = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("prepares");
    let parameters = vec![1_i64; explain.parameter_count()];
    let plan: Vec<String> = explain
        .query_map(rusqlite::params_from_iter(parameters), |row| row.get(3))
        .expect("explains")
        .collect::<rusqlite::Result<_>>()
        .expect("reads");
    // A SELECT without FROM "scans" its one constant row.
    plan.join("; ").replace("SCAN CONSTANT ROW", "")
}

/// What may scan or sort: how it begins, and how it does.
const EXCEPTIONS: [(&str, &str); 3] = [
    // The languages that have something pending: a handful, whatever is done.
    (
        "SELECT g.grp, r.run, r.turn",
        "SCAN g USING INDEX groups_pending; SEARCH r USING INTEGER PRIMARY KEY (rowid=?); USE TEMP B-TREE FOR ORDER BY",
    ),
    // Its first entry.
    ("SELECT not_before", "SCAN shards USING INDEX shards_waiting"),
    // Once for every start of a runner.
    (
        "SELECT shard FROM shards",
        "SCAN shards USING INDEX shards_pending; LIST SUBQUERY 1; SEARCH groups USING COVERING INDEX \
         sqlite_autoindex_groups_1 (run=?); CREATE BLOOM FILTER; USE TEMP B-TREE FOR ORDER BY",
    ),
];

#[test]
fn no_statement_of_a_runner_at_work_scans_or_sorts() {
    let world = World::with(60, 10);
    let statements = of_a_runner_at_work(&world);
    let conn = rusqlite::Connection::open(&world.path).expect("opens");
    for sql in &statements {
        let plan = plan(&conn, sql);
        match EXCEPTIONS.iter().find(|(start, _)| sql.starts_with(start)) {
            Some((_, exception)) => assert_eq!(&plan, exception, "{sql}"),
            None => assert!(!plan.contains("SCAN") && !plan.contains("TEMP B-TREE"), "{sql}\n{plan}"),
        }
    }
}

/// Whatever a runner has SQLite do while lanes claim, hang, and finish in every way.
fn of_a_runner_at_work(world: &World) -> BTreeSet<String> {
    let queue = world.queue();
    finish(&queue, &claim(&queue).lease, Outcome::Released);
    queue.start_runner("me", "host", &[]).expect("starts");
    let mut statements = statements_of(|| {
        let (to_writer, inbox) = bounded(1);
        thread::scope(|scope| {
            scope.spawn(move || work(&Client::new(to_writer), &world.path));
            queue.serve("me", None, &inbox, &AtomicBool::new(false), &|_| {}).expect("serves");
        });
    });
    statements.retain(|sql| !sql.starts_with("BEGIN") && !sql.starts_with("COMMIT"));
    for expected in [
        "UPDATE shards SET state = 2",
        "UPDATE shards SET owner = ?2",
        "UPDATE shards SET lease_expires_at",
        "UPDATE shards SET state = 0, not_before = NULL",
        "UPDATE shards SET state = 3",
        "UPDATE runs SET turn",
        "UPDATE runner SET beat_at",
        "INSERT INTO troubles",
        "INSERT INTO exceptions",
        "INSERT INTO uploads",
    ] {
        assert!(statements.iter().any(|sql| sql.starts_with(expected)), "{expected} is not among {statements:#?}");
    }
    statements
}

fn work(client: &Client, path: &Path) {
    let job = || match client.claim().expect("claims") {
        Claimed::Job(job) => job,
        other => panic!("something is left: {other:?}"),
    };
    let failure = |seq| Failure { seq, sentence: "bad".into(), tries: 1 };
    let end = |outcome, failures, troubles| Finish { outcome, failures, troubles };
    let hung = job();
    hung.lease.pulse.beat();
    // It runs out, and is renewed, as its lane has made headway.
    let conn = rusqlite::Connection::open(path).expect("opens");
    conn.execute("UPDATE shards SET lease_expires_at = 1 WHERE state = 2", []).expect("updates");
    client.upload_started("key", "id").expect("writes");
    client.upload_ended("key", "id").expect("writes");
    client.finish(hung.lease, end(published("a"), vec![failure(hung.members[0].seq)], vec![])).expect("finishes");
    let later = job();
    let deferred = Outcome::Deferred { until_ms: 0, why: "later".into(), progress: false };
    client.finish(later.lease, end(deferred, vec![], vec![failure(later.members[0].seq)])).expect("finishes");
    for outcome in [Outcome::Failed("bad".into()), Outcome::Held("bad".into()), Outcome::Released] {
        client.finish(job().lease, end(outcome, vec![], vec![])).expect("finishes");
    }
    while let Claimed::Job(job) = client.claim().expect("claims") {
        client.finish(job.lease, end(published(&job.name), vec![], vec![])).expect("finishes");
    }
}

/// It was read from all microshards once, for seconds of every start where there are ten million.
#[test]
fn suspects_are_found_among_the_troubles_and_not_among_all_microshards() {
    let world = World::with(1000, 10);
    drop(world.queue());
    let conn = rusqlite::Connection::open(&world.path).expect("opens");
    assert_eq!(plan(&conn, SUSPECTS), "SCAN t; SEARCH m USING INTEGER PRIMARY KEY (rowid=?)");
}

#[test]
fn no_statement_of_a_runner_at_work_is_compiled_twice() {
    let world = World::with(1000, 10);
    let queue = world.queue();
    let statements = statements_of(|| {
        for number in 0..10 {
            let job = claim_at(&queue, number).expect("something is pending");
            finish(&queue, &job.lease, published(&job.name));
        }
    });
    assert!(statements.len() > 10, "{statements:#?}");
    for sql in &statements {
        assert_eq!(queue.compiled_anew(sql).expect("reads"), 0, "{sql}");
    }
}

#[test]
fn the_file_has_never_been_analyzed() {
    let world = World::with(10, 2);
    drop(world.queue());
    let conn = rusqlite::Connection::open(&world.path).expect("opens");
    let tables: i64 = conn
        .query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_stat1'", [], |row| row.get(0))
        .expect("reads");
    assert_eq!(tables, 0, "one ANALYZE makes the planner prefer scans for the whole run");
}
