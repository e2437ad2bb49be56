//! The query plans of every hot statement: a partial index, no scan, no sorting (I7). Checked on a fresh connection, as
//! cached statements show old plans.

use microshard_queue::{STATEMENTS, SUSPECTS};

use crate::world::{World, claim_at, finish, published};

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

#[test]
fn no_hot_statement_scans_or_sorts() {
    let world = World::with(1000, 10);
    drop(world.queue());
    let conn = rusqlite::Connection::open(&world.path).expect("opens");
    for sql in STATEMENTS {
        let plan = plan(&conn, sql);
        assert!(!plan.contains("SCAN"), "{sql}\n{plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{sql}\n{plan}");
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
fn no_hot_statement_is_compiled_twice() {
    let world = World::with(1000, 10);
    let queue = world.queue();
    for number in 0..10 {
        let job = claim_at(&queue, number).expect("something is pending");
        finish(&queue, &job.lease, published(&job.name));
    }
    for sql in STATEMENTS {
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
