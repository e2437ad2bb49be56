//! Claiming: disjoint, complete, never too much, free before expired.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::time::Duration;

use compact_local::manifest::{Claim, ClaimMode, Names, Postgres, Record, Selection};

use crate::postgres::{Database, database, fill};

const LEASE: Duration = Duration::from_secs(3600);

fn of_run(limit: Option<u64>) -> Selection {
    Selection { run_id: Some("r".to_owned()), limit, ..Selection::default() }
}

fn read(manifest: &mut Postgres, claim: &Claim, selection: &Selection) -> Vec<Record> {
    let mut records = Vec::new();
    let count = manifest
        .read(claim, selection, &mut |record| {
            records.push(record);
            Ok(())
        })
        .unwrap();
    assert_eq!(count, records.len() as u64);
    records
}

fn ids(records: &[Record]) -> BTreeSet<i64> {
    let ids: BTreeSet<i64> = records.iter().filter_map(|record| record.microshard_id).collect();
    assert_eq!(ids.len(), records.len(), "an id came twice");
    ids
}

/// A text that changes with any write to the microshards, and with which the tests look for writes.
fn fingerprint(database: &Database) -> String {
    let sql = "SELECT md5(string_agg(t::text || t.xmin || t.ctid, ',' ORDER BY microshard_id)) FROM final_export_microshards t";
    database.client().query_one(sql, &[]).unwrap().get(0)
}

#[test]
fn two_machines_get_disjoint_slices_that_make_the_whole_run() {
    let database = database();
    let mut one = database.filled(3000);
    fill(&mut database.client(), "another run", 10_000..=10_050);
    let mut two = database.manifest();
    let before = fingerprint(&database);
    let first = one.claim(&of_run(None), ClaimMode::Slices, Some(20), LEASE).unwrap();
    let second = two.claim(&of_run(None), ClaimMode::Slices, None, LEASE).unwrap();
    assert_eq!((first.slices.len(), second.slices.len()), (20, 44));
    assert_eq!((first.number, second.number), (1, 2));
    assert_ne!(first.claimed_by, second.claimed_by);
    let (left, right) = (read(&mut one, &first, &of_run(None)), read(&mut two, &second, &of_run(None)));
    assert!(ids(&left).is_disjoint(&ids(&right)));
    assert_eq!(&ids(&left) | &ids(&right), (1..=3000).collect());
    assert_eq!(fingerprint(&database), before, "a microshard row was written");

    let error = format!("{:#}", two.claim(&of_run(None), ClaimMode::Slices, None, LEASE).unwrap_err());
    assert!(error.contains("every slice of run `r` is leased"), "{error}");
    assert!(error.contains(&format!("20 by {}", first.claimed_by)), "{error}");
    assert_eq!(one.release_slices(&first).unwrap(), 20);
    assert_eq!(one.release_slices(&first).unwrap(), 0);
    let third = two.claim(&of_run(None), ClaimMode::Slices, None, LEASE).unwrap();
    assert_eq!((third.slices, third.number), (first.slices, 3));
}

#[test]
fn a_queue_that_leases_slices_already_may_lease_them_again_after_the_free_ones() {
    let database = database();
    let mut manifest = database.filled(10);
    let first = manifest.claim(&of_run(None), ClaimMode::Slices, Some(40), LEASE).unwrap();
    let again = Selection { earlier: vec![first.claimed_by.clone()], ..of_run(None) };
    let second = manifest.claim(&again, ClaimMode::Slices, Some(24), LEASE).unwrap();
    assert!(second.slices.iter().all(|slice| !first.slices.contains(slice)), "free ones first");
    let third = manifest.claim(&again, ClaimMode::Slices, None, LEASE).unwrap();
    assert_eq!(third.slices, first.slices);
    assert_eq!(manifest.release_slices(&first).unwrap(), 0, "they are the third claim's now");
    let error = format!("{:#}", manifest.claim(&again, ClaimMode::Slices, None, LEASE).unwrap_err());
    assert!(error.contains("every slice of run `r` is leased"), "{error}");
}

#[test]
fn expired_slices_are_taken_only_when_free_ones_do_not_suffice() {
    let database = database();
    let mut manifest = database.filled(10);
    let dead = manifest.claim(&of_run(None), ClaimMode::Slices, Some(30), LEASE).unwrap();
    let expire = "UPDATE final_export_microshards_slices SET lease_expires_at = now() - interval '1 second' WHERE claimed_by IS NOT NULL";
    database.client().execute(expire, &[]).unwrap();
    let free = manifest.claim(&of_run(None), ClaimMode::Slices, Some(34), LEASE).unwrap();
    assert!(free.slices.iter().all(|slice| !dead.slices.contains(slice)), "an expired slice before a free one");
    let expired = manifest.claim(&of_run(None), ClaimMode::Slices, Some(10), LEASE).unwrap();
    assert_eq!(expired.slices.len(), 10);
    assert!(expired.slices.iter().all(|slice| dead.slices.contains(slice)));
}

#[test]
fn a_limit_leases_no_more_slices_than_it_needs_and_reads_no_more_rows() {
    let database = database();
    let mut manifest = database.filled(6400);
    let selection = of_run(Some(250));
    let claim = manifest.claim(&selection, ClaimMode::Slices, None, LEASE).unwrap();
    assert!((2..=5).contains(&claim.slices.len()), "{:?}", claim.slices);
    assert_eq!(read(&mut manifest, &claim, &selection).len(), 250);
}

#[test]
fn rows_are_never_claimed_beyond_the_limit_even_under_a_nested_loop() {
    let database = database();
    database.filled(10);
    let mut client = database.client();
    // The planner's way into a nested loop that runs an inner SELECT .. FOR UPDATE once for every row outside: with it
    // `WHERE id IN (SELECT .. LIMIT 3 FOR UPDATE SKIP LOCKED)` claims all ten.
    for way in ["hashjoin", "mergejoin", "material", "hashagg", "sort"] {
        client.batch_execute(&format!("ALTER DATABASE {} SET enable_{way} = off", database.name)).unwrap();
    }
    client.batch_execute("DELETE FROM final_export_microshards WHERE microshard_id > 1").unwrap();
    client.batch_execute("VACUUM ANALYZE final_export_microshards").unwrap();
    fill(&mut client, "r", 2..=10);
    let mut manifest = database.manifest();
    let claim = manifest.claim(&of_run(Some(3)), ClaimMode::Rows, None, LEASE).unwrap();
    assert_eq!(ids(&read(&mut manifest, &claim, &of_run(Some(3)))), [1, 2, 3].into());
    let sql = "SELECT count(*) FROM final_export_microshards WHERE status = 'claimed'";
    assert_eq!(database.client().query_one(sql, &[]).unwrap().get::<_, i64>(0), 3);
}

#[test]
fn concurrent_claimers_of_rows_get_disjoint_ones_and_what_they_asked_for() {
    let database = database();
    database.filled(2000);
    let barrier = Barrier::new(4);
    let claimed: Vec<BTreeSet<i64>> = std::thread::scope(|scope| {
        let claim = || {
            let mut manifest = database.manifest();
            barrier.wait();
            let claim = manifest.claim(&of_run(Some(400)), ClaimMode::Rows, None, LEASE).unwrap();
            ids(&read(&mut manifest, &claim, &of_run(Some(400))))
        };
        let machines: Vec<_> = (0..4).map(|_| scope.spawn(claim)).collect();
        machines.into_iter().map(|machine| machine.join().unwrap()).collect()
    });
    assert!(claimed.iter().all(|ids| ids.len() == 400));
    let all: BTreeSet<i64> = claimed.iter().flatten().copied().collect();
    assert_eq!(all.len(), 1600);
}

#[test]
fn a_row_that_somebody_else_has_locked_is_passed_over_not_waited_for() {
    let database = database();
    let mut manifest = database.filled(5);
    let mut client = database.client();
    let mut lock = client.transaction().unwrap();
    lock.execute("SELECT FROM final_export_microshards WHERE microshard_id = 1 FOR UPDATE", &[]).unwrap();
    let claim = manifest.claim(&of_run(Some(2)), ClaimMode::Rows, None, LEASE).unwrap();
    assert_eq!(ids(&read(&mut manifest, &claim, &of_run(None))), [2, 3].into());
    lock.rollback().unwrap();
}

#[test]
fn expired_rows_are_taken_only_when_pending_ones_do_not_suffice_and_others_never() {
    let database = database();
    let mut manifest = database.filled(20);
    let states = "UPDATE final_export_microshards SET status = 'claimed', claimed_by = 'x', lease_expires_at = now() - interval '1 s' WHERE microshard_id <= 5; \
                  UPDATE final_export_microshards SET status = 'claimed', claimed_by = 'y', lease_expires_at = now() + interval '1 h' WHERE microshard_id = 6; \
                  UPDATE final_export_microshards SET status = 'failed' WHERE microshard_id = 7; \
                  UPDATE final_export_microshards SET status = 'consumed' WHERE microshard_id = 8";
    database.client().batch_execute(states).unwrap();
    let first = manifest.claim(&of_run(Some(10)), ClaimMode::Rows, None, LEASE).unwrap();
    assert_eq!(ids(&read(&mut manifest, &first, &of_run(Some(10)))), (9..=18).collect());
    let second = manifest.claim(&of_run(Some(4)), ClaimMode::Rows, None, LEASE).unwrap();
    assert_eq!(ids(&read(&mut manifest, &second, &of_run(Some(4)))), [1, 2, 19, 20].into());
    let third = manifest.claim(&of_run(None), ClaimMode::Rows, None, LEASE).unwrap();
    assert_eq!(ids(&read(&mut manifest, &third, &of_run(None))), [3, 4, 5].into());
    let none = manifest.claim(&of_run(None), ClaimMode::Rows, None, LEASE).unwrap();
    assert_eq!(read(&mut manifest, &none, &of_run(None)), []);

    let row = "SELECT attempt_count, claimed_by, lease_expires_at > now() + interval '59 min', claimed_at IS NOT NULL \
               FROM final_export_microshards WHERE microshard_id = 3";
    let row = database.client().query_one(row, &[]).unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, String>(1)), (1, third.claimed_by.clone()));
    assert!(row.get::<_, bool>(2) && row.get::<_, bool>(3));
    assert!(third.claimed_by.starts_with("compact-local:") && third.claimed_by.rsplit(':').next().unwrap().len() == 16);
}

#[test]
fn rows_claimed_elsewhere_are_not_read_with_slices_but_expired_ones_are() {
    let database = database();
    let mut manifest = database.filled(4);
    let states = "UPDATE final_export_microshards SET status = 'claimed', lease_expires_at = now() - interval '1 s' WHERE microshard_id = 1; \
                  UPDATE final_export_microshards SET status = 'claimed', lease_expires_at = now() + interval '1 h' WHERE microshard_id = 2; \
                  UPDATE final_export_microshards SET status = 'consumed' WHERE microshard_id = 3";
    database.client().batch_execute(states).unwrap();
    let claim = manifest.claim(&of_run(None), ClaimMode::Slices, None, LEASE).unwrap();
    assert_eq!(ids(&read(&mut manifest, &claim, &of_run(None))), [1, 4].into());
    assert_eq!(
        ids(&read(&mut manifest, &claim, &of_run(Some(1)))),
        [4].into(),
        "an expired claim before a pending row"
    );
}

#[test]
fn claiming_none_writes_nothing_at_all() {
    let database = database();
    let mut manifest = database.filled(100);
    database
        .client()
        .batch_execute(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name))
        .unwrap();
    manifest = {
        drop(manifest);
        database.manifest()
    };
    let claim = manifest.claim(&of_run(None), ClaimMode::None, None, LEASE).unwrap();
    assert_eq!(read(&mut manifest, &claim, &of_run(None)).len(), 100);
    assert_eq!((claim.number, claim.slices.len()), (1, 0));
    assert_eq!(manifest.abandon(&claim).unwrap(), 0);
}

#[test]
fn languages_and_foreign_names_are_followed() {
    let database = database();
    let table = "CREATE TABLE \"Parts\" (id int PRIMARY KEY, \"Lang\" varchar(9), uri text, state text DEFAULT 'pending', \
                 claimed_by text, shard_id text, member_id text, group_no int, until timestamptz); \
                 INSERT INTO \"Parts\" SELECT i, CASE WHEN i % 3 = 0 THEN 'it''s' ELSE 'en' END, 'u' || i FROM generate_series(1, 30) i";
    database.client().batch_execute(table).unwrap();
    let columns = ["microshard_id=id", "language=Lang", "status=state", "lease_expires_at=until"].map(str::to_owned);
    let names = Names::from_args("Parts", "Out", &columns).unwrap();
    let mut manifest = Postgres::connect(Some(&database.url), names).unwrap();
    manifest.init().unwrap();
    let selection = Selection {
        run_id: Some("only".to_owned()),
        languages: vec!["it's".to_owned()],
        limit: Some(8),
        ..Selection::default()
    };
    for mode in [ClaimMode::None, ClaimMode::Slices, ClaimMode::Rows] {
        let claim = manifest.claim(&selection, mode, None, LEASE).unwrap();
        let records = read(&mut manifest, &claim, &selection);
        assert_eq!(records.len(), 8, "{mode:?}");
        assert!(records.iter().all(|record| record.language == "it's" && record.run_id == "only"));
        assert!(records.iter().all(|record| record.segment_count.is_none() && record.updated_at.is_none()));
    }
    let error = manifest.claim(&Selection::default(), ClaimMode::None, None, LEASE).unwrap_err();
    assert!(format!("{error:#}").contains("no column `run_id`"), "{error:#}");
}

#[test]
fn a_run_need_not_be_named_when_there_is_only_one() {
    let database = database();
    let mut manifest = database.filled(3);
    let any = Selection::default();
    assert_eq!(manifest.claim(&any, ClaimMode::None, None, LEASE).unwrap().run_id, "r");
    fill(&mut database.client(), "q", 4..=5);
    let error = format!("{:#}", manifest.claim(&any, ClaimMode::None, None, LEASE).unwrap_err());
    assert!(error.contains("several runs") && error.contains("q, r"), "{error}");
    let typo = Selection { run_id: Some("s".to_owned()), ..any };
    let error = format!("{:#}", manifest.claim(&typo, ClaimMode::None, None, LEASE).unwrap_err());
    assert!(error.contains("no run `s`") && error.contains("q, r"), "{error}");
}

#[test]
fn a_claim_given_back_is_pending_again_and_only_our_own_is() {
    let database = database();
    let mut manifest = database.filled(10);
    let claim = manifest.claim(&of_run(Some(6)), ClaimMode::Rows, None, LEASE).unwrap();
    database
        .client()
        .execute("UPDATE final_export_microshards SET claimed_by = 'x' WHERE microshard_id = 2", &[])
        .unwrap();
    assert_eq!(manifest.give_back(&claim, &mut [1, 2, 3, 9].into_iter()).unwrap(), 2);
    assert_eq!(manifest.give_back(&claim, &mut [1, 2, 3, 9].into_iter()).unwrap(), 0);
    let left = ids(&read(&mut manifest, &claim, &of_run(None)));
    assert_eq!(left, [4, 5, 6].into());
    assert_eq!(manifest.abandon(&claim).unwrap(), 3);
    let sql = "SELECT count(*) FROM final_export_microshards WHERE status = 'pending' AND claimed_by IS NULL AND lease_expires_at IS NULL";
    assert_eq!(database.client().query_one(sql, &[]).unwrap().get::<_, i64>(0), 9);
}
