//! Reading the manifest: every value as it is, flat memory, and no row that cannot be right.

use std::process::Command;
use std::time::Duration;

use compact_local::manifest::{ClaimMode, Record, Selection};

use crate::postgres::{Database, database, fill, names};

const LEASE: Duration = Duration::from_secs(3600);

fn all(database: &Database) -> Result<Vec<Record>, String> {
    let mut manifest = database.manifest();
    let selection = Selection::default();
    let claim = manifest.claim(&selection, ClaimMode::None, None, LEASE).map_err(|error| format!("{error:#}"))?;
    let mut records = Vec::new();
    let mut take = |record| {
        records.push(record);
        Ok(())
    };
    manifest.read(&claim, &selection, &mut take).map_err(|error| format!("{error:#}"))?;
    Ok(records)
}

#[test]
fn a_record_is_what_the_manifest_says() {
    let database = database();
    database.filled(1);
    let want = Record {
        microshard_id: Some(1),
        run_id: "r".to_owned(),
        language: "en".to_owned(),
        uri: "s3://bucket/1.jsonl.zst".to_owned(),
        segment_count: Some(1),
        byte_size: Some(1001),
        sha256: Some([1; 32]),
        created_at: Some(1_000_000),
        updated_at: Some(1),
    };
    assert_eq!(all(&database).unwrap(), std::slice::from_ref(&want));
    let nulls = "UPDATE final_export_microshards SET segment_count = NULL, byte_size = NULL, sha256 = NULL, created_at = NULL, \
                 updated_at = NULL";
    database.client().execute(nulls, &[]).unwrap();
    let want =
        Record { segment_count: None, byte_size: None, sha256: None, created_at: None, updated_at: None, ..want };
    assert_eq!(all(&database).unwrap(), [want]);
}

#[test]
fn a_value_that_cannot_be_right_is_an_error_with_the_microshards_id() {
    let database = database();
    database.filled(3);
    for (set, fault) in [
        ("sha256 = 'abc'", "its sha256 has 3 characters, not 64 hex digits"),
        ("sha256 = repeat('g', 64)", "its sha256 is not 64 hex digits"),
        ("sha256 = repeat('+1', 32)", "its sha256 is not 64 hex digits"),
        ("segment_count = -1", "its segment_count is -1, less than nothing"),
        ("byte_size = -5", "its byte_size is -5, less than nothing"),
        ("uri = ''", "it has no uri"),
        ("language = ''", "it has no language"),
        ("created_at = 'infinity'", "its created_at: a timestamp of infinity"),
    ] {
        let mut client = database.client();
        client.batch_execute("CREATE TABLE kept AS SELECT * FROM final_export_microshards").unwrap();
        client.execute(&format!("UPDATE final_export_microshards SET {set} WHERE microshard_id = 2"), &[]).unwrap();
        let error = all(&database).unwrap_err();
        assert!(error.contains("microshard 2 of run r") && error.contains(fault), "{fault}: {error}");
        let back = "DELETE FROM final_export_microshards; INSERT INTO final_export_microshards SELECT * FROM kept; DROP TABLE kept";
        client.batch_execute(back).unwrap();
    }
    assert_eq!(all(&database).unwrap().len(), 3);
}

#[test]
fn an_error_of_the_taker_ends_the_reading_and_the_connection_stays_good() {
    let database = database();
    let mut manifest = database.filled(20_000);
    let selection = Selection::default();
    let claim = manifest.claim(&selection, ClaimMode::Rows, None, LEASE).unwrap();
    let error = manifest.read(&claim, &selection, &mut |_| anyhow::bail!("the disk is full")).unwrap_err();
    assert!(format!("{error:#}").contains("the disk is full"));
    assert_eq!(manifest.abandon(&claim).unwrap(), 20_000);
}

/// Set in the process that measures itself: the database's url.
const MEASURED: &str = "COMPACT_LOCAL_TEST_MEASURED";

#[test]
fn reading_200_000_microshards_takes_a_few_megabytes() {
    if let Ok(url) = std::env::var(MEASURED) {
        return measure(&url);
    }
    let database = database();
    database.manifest().init().unwrap();
    fill(&mut database.client(), "r", 1..=200_000);
    // In a process of its own, in which no other test takes memory at the same time.
    let name = "manifest_read::reading_200_000_microshards_takes_a_few_megabytes";
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args([name, "--exact", "--nocapture"]).env(MEASURED, &database.url).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// As records in a Vec they would take over 40 MB, as `query()` holds them over 60.
fn measure(url: &str) {
    let mut manifest = compact_local::manifest::Postgres::connect(Some(url), names()).unwrap();
    let selection = Selection::default();
    let claim = manifest.claim(&selection, ClaimMode::None, None, LEASE).unwrap();
    let before = peak_kib();
    assert_eq!(manifest.read(&claim, &selection, &mut |_| Ok(())).unwrap(), 200_000);
    let grown = peak_kib() - before;
    assert!(grown < 16 * 1024, "{grown} KiB");
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
