//! Behind PgBouncer in transaction mode, where any transaction may meet another session. Needs the Debian package
//! pgbouncer; without it the test fails and says so.

use std::time::Duration;

use compact_local::manifest::{ClaimMode, Member, Postgres, Selection, SyncShard, Synced};
use postgres::{Client, NoTls};

use crate::postgres::{database, names};
use crate::supervisor::{self, Server};

/// A pooler with one session for each database: whatever one client leaves behind, the next one meets.
fn pooler(port: u16) -> Server {
    let binary = "/usr/sbin/pgbouncer";
    assert!(std::path::Path::new(binary).is_file(), "no {binary}: install the Debian package pgbouncer");
    let dir = supervisor::directory("compact-local-pgbouncer-");
    let users = dir.join("users");
    std::fs::write(&users, "\"postgres\" \"\"\n").unwrap();
    supervisor::start(&dir, "process up", |listen| {
        let file = dir.join("pgbouncer.ini");
        let ini = format!(
            "[databases]\n* = host=127.0.0.1 port={port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {listen}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = 1\n",
            users.display()
        );
        std::fs::write(&file, ini).unwrap();
        vec![binary.to_owned(), file.to_str().unwrap().to_owned()]
    })
}

#[test]
fn two_machines_share_one_session_of_a_pooler_and_leave_nothing_in_it() {
    let database = database();
    database.filled(300);
    let pooler = pooler(database.port);
    let url = database.url.replace(&format!(":{}/", database.port), &format!(":{}/", pooler.port));
    let lease = Duration::from_secs(60);
    let selection = Selection { limit: Some(100), ..Selection::default() };
    let work = |seq: u32| {
        let mut manifest = Postgres::connect(Some(&url), names()).unwrap();
        assert_eq!(manifest.init().unwrap(), Vec::<String>::new());
        let claim = manifest.claim(&selection, ClaimMode::Rows, None, lease).unwrap();
        let mut members = Vec::new();
        let mut take = |record: compact_local::manifest::Record| {
            members.push(Member { microshard_id: record.microshard_id.unwrap(), updated_at: record.updated_at });
            Ok(())
        };
        manifest.read(&claim, &selection, &mut take).unwrap();
        let kept = members.pop().unwrap();
        assert_eq!(manifest.give_back(&claim, &mut [kept.microshard_id].into_iter()).unwrap(), 1);
        let shard = SyncShard {
            shard_id: format!("s{seq}"),
            language: "en".to_owned(),
            seq,
            uri: "u".to_owned(),
            rows: 1,
            bytes: 1,
            sha256: [0; 32],
            members,
        };
        assert_eq!(manifest.sync_back(&claim, &[shard], &[]).unwrap().0, [Synced::Written]);
        manifest
    };
    let _machines = std::thread::scope(|scope| {
        let other = scope.spawn(|| work(1));
        (work(2), other.join().unwrap())
    });
    let mut client = Client::connect(&url, NoTls).unwrap();
    let left = "SELECT (SELECT count(*) FROM pg_prepared_statements) + (SELECT count(*) FROM pg_class WHERE relpersistence = 't') \
                || current_setting('lock_timeout') || current_setting('idle_in_transaction_session_timeout')";
    let messages = client.simple_query(left).unwrap();
    let row = messages.iter().find_map(|message| match message {
        postgres::SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    assert_eq!(row, Some("000"), "statements and temporary tables, lock_timeout, idle timeout");
    let consumed = "SELECT count(*) FROM final_export_microshards WHERE status = 'consumed'";
    assert_eq!(database.client().query_one(consumed, &[]).unwrap().get::<_, i64>(0), 198);
}
