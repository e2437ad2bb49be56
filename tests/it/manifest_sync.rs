//! Sync-back: exactly once, whole shards, safe to repeat, safe to kill.

use std::collections::BTreeMap;
use std::time::Duration;

use compact_local::manifest::{Claim, ClaimMode, Member, Postgres, Selection, SyncFailure, SyncShard, Synced};
use postgres::Client;

use crate::postgres::{Database, database, fill};

const LEASE: Duration = Duration::from_secs(3600);

/// A snapshot of every microshard there is.
struct Snapshot {
    manifest: Postgres,
    claim: Claim,
    members: BTreeMap<i64, Member>,
}

fn snapshot(database: &Database, mode: ClaimMode) -> Snapshot {
    let mut manifest = database.manifest();
    let selection = Selection::default();
    let claim = manifest.claim(&selection, mode, None, LEASE).unwrap();
    let mut members = BTreeMap::new();
    let mut take = |record: compact_local::manifest::Record| {
        let microshard_id = record.microshard_id.unwrap();
        members.insert(microshard_id, Member { microshard_id, updated_at: record.updated_at });
        Ok(())
    };
    manifest.read(&claim, &selection, &mut take).unwrap();
    Snapshot { manifest, claim, members }
}

impl Snapshot {
    fn shard(&self, seq: u32, ids: &[i64]) -> SyncShard {
        SyncShard {
            shard_id: format!("r-en-001-{seq:05}"),
            language: "en".to_owned(),
            seq,
            uri: format!("s3://out/en/r-en-001-{seq:05}.jsonl.zst"),
            rows: 70 * ids.len() as u64,
            bytes: 12_345,
            sha256: [seq as u8; 32],
            members: ids.iter().map(|id| self.members[id]).collect(),
        }
    }

    fn failure(&self, id: i64, sentence: &str) -> SyncFailure {
        SyncFailure { member: self.members[&id], sentence: sentence.to_owned(), attempts: 8 }
    }

    fn sync(&mut self, shards: &[SyncShard], failures: &[SyncFailure]) -> (Vec<Synced>, Vec<Synced>) {
        self.manifest.sync_back(&self.claim, shards, failures).unwrap()
    }
}

/// Status, shard and error of every microshard, as `1 consumed r-en-001-00001`.
fn states(client: &mut Client) -> Vec<String> {
    let sql = "SELECT concat_ws(' ', microshard_id, status, shard_id, error) FROM final_export_microshards ORDER BY microshard_id";
    client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// Changes with any write to either table.
fn fingerprint(client: &mut Client) -> String {
    let sql = "SELECT md5(string_agg(x, ',' ORDER BY x)) FROM (SELECT t::text || xmin || ctid AS x FROM final_export_microshards t \
               UNION ALL SELECT t::text || xmin || ctid FROM final_export_shards t) y";
    client.query_one(sql, &[]).unwrap().get(0)
}

const MODES: [ClaimMode; 3] = [ClaimMode::Slices, ClaimMode::Rows, ClaimMode::None];

#[test]
fn results_are_written_once_and_a_second_time_changes_nothing() {
    for mode in MODES {
        let database = database();
        database.filled(6);
        let nobodys = "UPDATE final_export_microshards SET updated_at = NULL WHERE microshard_id = 5";
        database.client().execute(nobodys, &[]).unwrap();
        let mut snapshot = snapshot(&database, mode);
        let shards = [snapshot.shard(1, &[1, 3]), snapshot.shard(2, &[5, 2])];
        let failures = [snapshot.failure(4, "the server answered 404")];
        let written = (vec![Synced::Written; 2], vec![Synced::Written]);
        assert_eq!(snapshot.sync(&shards, &failures), written, "{mode:?}");
        let mut client = database.client();
        let sixth = if mode == ClaimMode::Rows { "6 claimed" } else { "6 pending" };
        let want = [
            "1 consumed r-en-001-00001",
            "2 consumed r-en-001-00002",
            "3 consumed r-en-001-00001",
            "4 failed the server answered 404",
            "5 consumed r-en-001-00002",
            sixth,
        ];
        assert_eq!(states(&mut client), want);
        let shard = "SELECT concat_ws(' ', run_id, language, seq, uri, segment_count, microshard_count, byte_size, sha256, created_by) \
                     FROM final_export_shards WHERE shard_id = 'r-en-001-00001'";
        let shard: String = client.query_one(shard, &[]).unwrap().get(0);
        let sha256 = "01".repeat(32);
        let by = &snapshot.claim.claimed_by;
        assert_eq!(shard, format!("r en 1 s3://out/en/r-en-001-00001.jsonl.zst 140 2 12345 {sha256} {by}"));
        let sql = "SELECT count(*) FROM final_export_microshards WHERE microshard_id < 6 AND claimed_by = $1 AND lease_expires_at IS NULL \
                   AND updated_at > now() - interval '1 h'";
        assert_eq!(client.query_one(sql, &[by]).unwrap().get::<_, i64>(0), 5);
        let attempts = "SELECT attempt_count FROM final_export_microshards WHERE microshard_id = 4";
        assert_eq!(client.query_one(attempts, &[]).unwrap().get::<_, i32>(0), 8);

        let before = fingerprint(&mut client);
        assert_eq!(snapshot.sync(&shards, &failures), (vec![Synced::Already; 2], vec![Synced::Already]));
        assert_eq!(fingerprint(&mut client), before);
    }
}

/// What somebody else does to microshard 3, and what sync-back says about it, by mode: slices and none, rows.
const TOUCHES: [(&str, &str, &str); 7] = [
    (
        "SET status = 'consumed', shard_id = 'theirs'",
        "is now consumed by shard theirs",
        "is now consumed by shard theirs",
    ),
    (
        "SET status = 'claimed', claimed_by = 'them', lease_expires_at = now() + interval '1 h'",
        "is now claimed by them",
        "is now claimed by them",
    ),
    ("SET status = 'failed', claimed_by = 'them'", "is now failed by them", "is now failed by them"),
    ("SET updated_at = now()", "was updated after the snapshot read it", "was updated after the snapshot read it"),
    ("SET updated_at = NULL", "was updated after the snapshot read it", "was updated after the snapshot read it"),
    (
        "SET status = 'pending', claimed_by = NULL, updated_at = now()",
        "was updated after the snapshot read it",
        "is now pending",
    ),
    ("", "is no longer in the manifest", "is no longer in the manifest"),
];

#[test]
fn a_shard_is_refused_whole_when_somebody_else_touched_one_row() {
    let database = database();
    database.manifest().init().unwrap();
    for mode in MODES {
        for (touch, otherwise, in_rows) in TOUCHES {
            let empty = "TRUNCATE final_export_microshards, final_export_shards, final_export_microshards_slices";
            database.client().batch_execute(empty).unwrap();
            fill(&mut database.client(), "r", 1..=6);
            let mut snapshot = snapshot(&database, mode);
            let mut client = database.client();
            let table = "final_export_microshards";
            let touch = match touch {
                "" => format!("DELETE FROM {table} WHERE microshard_id = 3"),
                set => format!("UPDATE {table} {set} WHERE microshard_id = 3"),
            };
            client.execute(&touch, &[]).unwrap();
            let shards = [snapshot.shard(1, &[1, 3, 5]), snapshot.shard(2, &[2, 4])];
            let (synced, _) = snapshot.sync(&shards, &[]);
            let how = if mode == ClaimMode::Rows { in_rows } else { otherwise };
            assert_eq!(synced, [Synced::Refused(format!("microshard 3 {how}")), Synced::Written], "{mode:?} {touch}");
            let states = states(&mut client);
            // The others of the refused shard are free again, with rows as well.
            assert_eq!(states[0], "1 pending", "{mode:?} {touch}");
            assert!(
                states.contains(&"5 pending".to_owned()) && states.contains(&"2 consumed r-en-001-00002".to_owned())
            );
            let shards_there: i64 = client.query_one("SELECT count(*) FROM final_export_shards", &[]).unwrap().get(0);
            assert_eq!(shards_there, 1, "a refused shard has a row");
            let before = fingerprint(&mut client);
            let (again, _) = snapshot.sync(&shards, &[]);
            assert!(matches!(again.as_slice(), [Synced::Refused(_), Synced::Already]), "{again:?}");
            assert_eq!(fingerprint(&mut client), before);
        }
    }
}

#[test]
fn a_failure_somebody_else_has_dealt_with_is_refused() {
    let database = database();
    database.filled(2);
    let mut snapshot = snapshot(&database, ClaimMode::Slices);
    let mut client = database.client();
    client
        .execute("UPDATE final_export_microshards SET status = 'consumed', shard_id = 'x' WHERE microshard_id = 1", &[])
        .unwrap();
    let failures = [snapshot.failure(1, "no"), snapshot.failure(2, "a \0 in it")];
    let (_, synced) = snapshot.sync(&[], &failures);
    assert_eq!(synced, [Synced::Refused("microshard 1 is now consumed by shard x".to_owned()), Synced::Written]);
    assert_eq!(states(&mut client), ["1 consumed x", "2 failed a \u{fffd} in it"]);
}

#[test]
fn a_failed_microshard_may_fail_again_or_be_consumed_by_a_later_shard() {
    for mode in MODES {
        let database = database();
        database.filled(3);
        let mut snapshot = snapshot(&database, mode);
        let failures = [snapshot.failure(1, "first"), snapshot.failure(2, "first")];
        snapshot.sync(&[], &failures);
        let shard = snapshot.shard(9, &[1]);
        let failure = snapshot.failure(2, "second");
        assert_eq!(snapshot.sync(&[shard], &[failure]), (vec![Synced::Written], vec![Synced::Written]));
        assert_eq!(states(&mut database.client())[..2], ["1 consumed r-en-001-00009", "2 failed second"]);
    }
}

#[test]
fn an_expired_claim_that_was_taken_over_is_synced_while_it_stays_expired() {
    let database = database();
    database.filled(2);
    let mut client = database.client();
    let expired = "UPDATE final_export_microshards SET status = 'claimed', claimed_by = 'dead', lease_expires_at = now() - interval '1 s'";
    client.execute(expired, &[]).unwrap();
    let mut snapshot = snapshot(&database, ClaimMode::Slices);
    // The dead one comes back, and does not tell by updated_at.
    let renewed =
        "UPDATE final_export_microshards SET lease_expires_at = now() + interval '1 h' WHERE microshard_id = 2";
    client.execute(renewed, &[]).unwrap();
    let shards = [snapshot.shard(1, &[1]), snapshot.shard(2, &[2])];
    let (synced, _) = snapshot.sync(&shards, &[]);
    assert_eq!(synced, [Synced::Written, Synced::Refused("microshard 2 is now claimed by dead".to_owned())]);
}

#[test]
fn another_shard_under_the_same_name_is_refused_and_so_is_a_lost_one() {
    let database = database();
    database.filled(4);
    let mut snapshot = snapshot(&database, ClaimMode::Rows);
    let mut client = database.client();
    let other = "INSERT INTO final_export_shards VALUES ('r-en-001-00001', 'r', 'en', 1, 's3://x', 1, 1, 9, 'ff')";
    client.execute(other, &[]).unwrap();
    let shards = [snapshot.shard(1, &[1]), snapshot.shard(2, &[2])];
    let (synced, _) = snapshot.sync(&shards, &[]);
    let Synced::Refused(why) = &synced[0] else { panic!("{synced:?}") };
    assert_eq!(why, "`final_export_shards` has another shard r-en-001-00001: s3://x, 9 bytes, sha256 ff");
    assert_eq!(states(&mut client)[..2], ["1 pending", "2 consumed r-en-001-00002"]);

    client.execute("DELETE FROM final_export_shards WHERE shard_id = 'r-en-001-00002'", &[]).unwrap();
    let (synced, _) = snapshot.sync(&shards[1..], &[]);
    let Synced::Refused(why) = &synced[0] else { panic!("{synced:?}") };
    assert!(why.contains("which `final_export_shards` does not have"), "{why}");
}

#[test]
fn a_microshard_in_two_shards_of_a_chunk_is_an_error_and_nothing_is_written() {
    let database = database();
    database.filled(3);
    let mut snapshot = snapshot(&database, ClaimMode::Slices);
    let shards = [snapshot.shard(1, &[1, 2]), snapshot.shard(2, &[2, 3])];
    let error = snapshot.manifest.sync_back(&snapshot.claim, &shards, &[]).unwrap_err().to_string();
    assert!(error.contains("microshard 2 comes twice") && error.contains("r-en-001-00002"), "{error}");
    assert_eq!(states(&mut database.client()), ["1 pending", "2 pending", "3 pending"]);
}

#[test]
fn a_table_without_updated_at_and_error_can_be_synced() {
    let database = database();
    database.filled(2);
    let mut client = database.client();
    let drop =
        "ALTER TABLE final_export_microshards DROP updated_at, DROP error, DROP attempt_count, DROP lease_expires_at";
    client.batch_execute(drop).unwrap();
    let mut snapshot = snapshot(&database, ClaimMode::Slices);
    let (shards, failures) = ([snapshot.shard(1, &[1])], [snapshot.failure(2, "no")]);
    assert_eq!(snapshot.sync(&shards, &failures), (vec![Synced::Written], vec![Synced::Written]));
    assert_eq!(snapshot.sync(&shards, &failures), (vec![Synced::Already], vec![Synced::Already]));
}

#[test]
fn a_connection_killed_in_the_middle_is_made_again_and_all_is_written_once() {
    let database = database();
    database.filled(4);
    let mut snapshot = snapshot(&database, ClaimMode::Rows);
    let shards = [snapshot.shard(1, &[1, 3]), snapshot.shard(2, &[2])];
    // Our lock on one row holds sync-back in the middle of its transaction; there it is killed.
    let mut client = database.client();
    let mut lock = client.transaction().unwrap();
    lock.execute("SELECT FROM final_export_microshards WHERE microshard_id = 3 FOR UPDATE", &[]).unwrap();
    let synced = std::thread::scope(|scope| {
        let sync = scope.spawn(|| snapshot.sync(&shards, &[]));
        kill_the_one_that_waits(&database);
        lock.rollback().unwrap();
        sync.join().unwrap()
    });
    assert_eq!(synced.0, [Synced::Written, Synced::Written]);
    let before = fingerprint(&mut client);
    assert_eq!(snapshot.sync(&shards, &[]).0, [Synced::Already, Synced::Already]);
    assert_eq!(fingerprint(&mut client), before);
}

pub(crate) fn kill_the_one_that_waits(database: &Database) {
    let mut client = database.client();
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
               AND application_name = 'compact-local' AND wait_event_type = 'Lock'";
    while client.query(sql, &[]).unwrap().is_empty() {
        std::thread::yield_now();
    }
}

#[test]
fn two_machines_that_built_the_same_microshards_publish_them_once() {
    let database = database();
    database.filled(40);
    let ids: Vec<i64> = (1..=40).collect();
    let reversed: Vec<i64> = (1..=40).rev().collect();
    let (mut one, mut two) = (snapshot(&database, ClaimMode::None), snapshot(&database, ClaimMode::None));
    let (first, second) = ([one.shard(1, &ids)], [two.shard(2, &reversed)]);
    let barrier = std::sync::Barrier::new(2);
    let sync = |snapshot: &mut Snapshot, shards: &[SyncShard]| {
        barrier.wait();
        snapshot.sync(shards, &[]).0.remove(0)
    };
    let verdicts = std::thread::scope(|scope| {
        let other = scope.spawn(|| sync(&mut two, &second));
        [sync(&mut one, &first), other.join().unwrap()]
    });
    let written = verdicts.iter().filter(|verdict| **verdict == Synced::Written).count();
    assert_eq!(written, 1, "{verdicts:?}");
    let sql = "SELECT count(DISTINCT shard_id), count(*) FROM final_export_microshards WHERE status = 'consumed'";
    let row = database.client().query_one(sql, &[]).unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (1, 40));
}
