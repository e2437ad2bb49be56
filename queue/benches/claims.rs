//! What a claim, a finish and a status read cost, for queues of 1 and 10 million microshards at 0, 50 and 99 % done;
//! beside them the naive design, in the same run. Times on shared machines are noisy: read the ratios.
//!
//!     cargo bench -p microshard-queue                  # 1 and 10 million
//!     cargo bench -p microshard-queue -- 1000000       # one size

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::path::Path;
use std::time::{Duration, Instant};

use microshard_queue::{
    Claimer, Cut, Finish, GroupTotals, Intake, Item, NewSnapshot, Number, Outcome, Planner, Queue, Receipt, Result,
    SizesPass,
};
use rusqlite::{Connection, params};

const LANGUAGES: [&str; 12] = ["ar", "bn", "de", "en", "es", "fr", "hi", "ja", "ko", "pt", "ru", "zh"];
const PER_SHARD: u64 = 250;
/// Samples of each cost: enough for a p99, few enough not to change how much is done.
const SAMPLES: usize = 300;

struct Every;

impl Planner for Every {
    fn cut(&self, group: &GroupTotals, _: &mut SizesPass<'_>) -> Result<Vec<Cut>> {
        let cut = |microshards| Cut { microshards, held: false, closed_by: "microshards" };
        let mut cuts = vec![cut(PER_SHARD); (group.microshards / PER_SHARD) as usize];
        if !group.microshards.is_multiple_of(PER_SHARD) {
            cuts.push(cut(group.microshards % PER_SHARD));
        }
        Ok(cuts)
    }
}

fn main() {
    let sizes: Vec<i64> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![1_000_000, 10_000_000] } else { sizes };
    let mut medians = Vec::new();
    for size in sizes {
        let directory = tempfile::tempdir().expect("a directory");
        medians.push((size, planned(directory.path(), size)));
        naive(directory.path(), size);
    }
    for (size, done) in &medians {
        let ratio = done[2].as_secs_f64() / done[0].as_secs_f64();
        println!("{size}: claim p50 at 99 % done / at 0 % done = {ratio:.2}");
    }
    if let [(_, small), .., (_, large)] = medians.as_slice() {
        for (index, percent) in [0, 50, 99].iter().enumerate() {
            let ratio = large[index].as_secs_f64() / small[index].as_secs_f64();
            println!("claim p50 largest / smallest at {percent} % done = {ratio:.2}");
        }
    }
}

/// Fills a queue and measures it; returns the claim's p50 at 0, 50 and 99 % done.
fn planned(directory: &Path, size: i64) -> [Duration; 3] {
    let path = directory.join("queue.db");
    let started = Instant::now();
    fill(&path, size);
    let took = started.elapsed();
    let bytes = std::fs::metadata(&path).expect("is there").len();
    println!(
        "\n{size} microshards: enqueued in {took:.1?}, {:.0} rows/s, peak memory {} MB",
        size as f64 / took.as_secs_f64(),
        peak_memory_mb()
    );
    println!(
        "file {} MB, {} bytes a microshard beyond uri and sha256",
        bytes >> 20,
        (bytes as i64 - payload(size)) / size
    );
    let mut wal_max = 0;
    let medians = [0, 50, 99].map(|percent| {
        finish_until(&path, percent);
        let queue = Queue::open(&path).expect("opens");
        let (claims, finishes) = claim_and_finish(&queue, &path, &mut wal_max);
        let status = sample(|| drop(queue.status().expect("reads")));
        println!(
            "  {percent:2} % done: claim {} finish {} status {}",
            shown(&claims),
            shown(&finishes),
            shown(&status)
        );
        percentile(&claims, 50)
    });
    println!("  largest WAL {:.1} MB", wal_max as f64 / 1e6);
    medians
}

fn uri(id: i64) -> String {
    format!("s3://an-export-bucket/microshards/{}/{:02x}/{id:012}.jsonl.zst", LANGUAGES[id as usize % 12], id % 256)
}

fn payload(size: i64) -> i64 {
    (0..1000).map(|id| uri(id).len() as i64 + 32).sum::<i64>() * size / 1000
}

fn fill(path: &Path, size: i64) {
    let mut intake = Intake::begin(path).expect("begins");
    let mut item = Item { rows: Some(69), bytes: Some(9000), sha256: Some([7; 32]), ..Item::default() };
    for id in 0..size {
        // Ids arrive in the order of a hash, as they do from a big table.
        let id = (id * 7_919 + 13) % size;
        item.microshard_id = Some(id);
        item.language.clear();
        item.language.push_str(LANGUAGES[id as usize % 12]);
        item.uri = uri(id);
        item.created_at = Some(id / 100);
        item.updated_at = Some(id);
        intake.add(&item).expect("adds");
    }
    let snapshot = NewSnapshot { run_id: "run".into(), number: Number::From(0), claim: String::new() };
    let name =
        |run: &str, language: &str, snapshot: u32, shard: u32| format!("{run}-{language}-{snapshot:03}-{shard:05}");
    intake.plan(&snapshot, &Every, &name).expect("plans");
}

/// Marks shards published until so many per cent are, behind the queue's back but through its triggers.
fn finish_until(path: &Path, percent: i64) {
    let conn = Connection::open(path).expect("opens");
    conn.execute(
        "UPDATE shards SET state = 3, key = name, rows = 1, bytes_in = 1, bytes_out = 1, sha256 = zeroblob(32), published_at = 1,
           owner = NULL, lease_expires_at = NULL
         WHERE state < 3 AND number * 100 < ?1 * (SELECT count(*) FROM shards s WHERE s.grp = shards.grp)",
        [percent],
    )
    .expect("updates");
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("checkpoints");
}

fn claim_and_finish(queue: &Queue, path: &Path, wal_max: &mut u64) -> (Vec<Duration>, Vec<Duration>) {
    let (mut claims, mut finishes) = (Vec::new(), Vec::new());
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    for _ in 0..SAMPLES {
        let started = Instant::now();
        let claimer = Claimer { owner: "bench", now_ms: 0, lease_ms: i64::MAX / 4, only: None };
        let Some(job) = queue.transaction(|| queue.claim(claimer)).expect("claims") else { break };
        claims.push(started.elapsed());
        let started = Instant::now();
        let receipt = Receipt { key: job.name, rows: 17_000, bytes_in: 1, bytes_out: 1, sha256: [1; 32] };
        let finish = Finish { outcome: Outcome::Published(receipt), failures: vec![], troubles: vec![] };
        queue.transaction(|| queue.finish(&job.lease, &finish)).expect("finishes");
        finishes.push(started.elapsed());
        *wal_max = (*wal_max).max(std::fs::metadata(Path::new(&wal)).map_or(0, |metadata| metadata.len()));
    }
    (claims, finishes)
}

/// One row a microshard, with a key of its own; a plain index on the status; claims in the order of ids, the language by
/// GROUP BY.
fn naive(directory: &Path, size: i64) {
    let mut conn = Connection::open(directory.join("naive.db")).expect("opens");
    conn.execute_batch(
        "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;
         CREATE TABLE m(id INTEGER NOT NULL, language TEXT NOT NULL, uri TEXT NOT NULL, status TEXT NOT NULL)",
    )
    .expect("creates");
    let load = conn.transaction().expect("begins");
    {
        let mut insert = load.prepare("INSERT INTO m VALUES(?1, ?2, ?3, 'pending')").expect("prepares");
        for id in 0..size {
            let id = (id * 7_919 + 13) % size;
            insert.execute(params![id, LANGUAGES[id as usize % 12], uri(id)]).expect("inserts");
        }
    }
    load.commit().expect("commits");
    // As a maintenance job would: and from then on the index is passed over.
    conn.execute_batch(
        "CREATE UNIQUE INDEX m_id ON m(id); CREATE INDEX m_status ON m(status); ANALYZE; PRAGMA journal_mode=WAL",
    )
    .expect("indexes");
    println!("  naive:");
    for percent in [0, 50, 99] {
        conn.execute("UPDATE m SET status = 'done' WHERE id * 100 < ?1 * ?2", params![percent, size]).expect("updates");
        let claims = sample_few(|| {
            let ids: Vec<i64> = conn
                .prepare_cached("SELECT id FROM m WHERE status = 'pending' ORDER BY id LIMIT 250")
                .expect("prepares")
                .query_map([], |row| row.get(0))
                .expect("reads")
                .collect::<rusqlite::Result<_>>()
                .expect("reads");
            assert_eq!(ids.len(), 250);
        });
        let languages = sample_few(|| {
            let sql =
                "SELECT language, count(*) FROM m WHERE status = 'pending' GROUP BY language ORDER BY 2 DESC LIMIT 1";
            let _: String = conn.query_row(sql, [], |row| row.get(0)).expect("reads");
        });
        println!("  {percent:2} % done: claim {} language {}", shown(&claims), shown(&languages));
    }
}

fn sample(mut work: impl FnMut()) -> Vec<Duration> {
    timed(SAMPLES, &mut work)
}

fn sample_few(mut work: impl FnMut()) -> Vec<Duration> {
    timed(5, &mut work)
}

fn timed(count: usize, work: &mut dyn FnMut()) -> Vec<Duration> {
    (0..count)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed()
        })
        .collect()
}

fn percentile(samples: &[Duration], percent: usize) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort();
    sorted.get(sorted.len() * percent / 100).or(sorted.last()).copied().unwrap_or_default()
}

fn shown(samples: &[Duration]) -> String {
    format!(
        "p50 {:.3} ms p99 {:.3} ms;",
        percentile(samples, 50).as_secs_f64() * 1e3,
        percentile(samples, 99).as_secs_f64() * 1e3
    )
}

/// The process's peak resident memory, as Linux counts it.
fn peak_memory_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) / 1024
}
