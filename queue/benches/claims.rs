//! What a claim, a finish and a status read cost, for queues of 1 and 10 million microshards at 0, 50 and 99 % done;
//! beside them the naive design, in the same run. The commit, which many claims and finishes share when a runner works, is
//! told apart: it is mostly the disk's. The queues take turns, sample by sample, so that what else the machine
//! does meets them alike: read the ratios.
//!
//!     cargo bench -p microshard-queue --bench claims                  # 1 and 10 million
//!     cargo bench -p microshard-queue --bench claims -- 1000000       # one size

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod common;
#[path = "common/latencies.rs"]
mod latencies;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{Run, published};
use latencies::Latencies;
use microshard_queue::{Claimer, Queue, with_suffix};
use rusqlite::{Connection, params};

const LANGUAGES: [&str; 12] = ["ar", "bn", "de", "en", "es", "fr", "hi", "ja", "ko", "pt", "ru", "zh"];
const DONE: [i64; 3] = [0, 50, 99];
/// Shards claimed and finished in one round: fewer than are left of a million at 99 % done.
const PER_ROUND: usize = 36;
const ROUNDS: usize = 10;

fn main() {
    let sizes: Vec<i64> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![1_000_000, 10_000_000] } else { sizes };
    let directory = tempfile::tempdir().expect("a directory");
    let paths: Vec<_> = sizes.iter().map(|size| enqueued(directory.path(), *size)).collect();
    let mut queues: Vec<_> = sizes.iter().zip(&paths).flat_map(|(size, path)| Sampled::at_each(path, *size)).collect();
    for _ in 0..ROUNDS {
        for _ in 0..PER_ROUND {
            queues.iter_mut().for_each(Sampled::claim_finish_and_read);
        }
        queues.iter_mut().for_each(Sampled::bring_back);
    }
    let measured: Vec<_> = queues.into_iter().map(Measured::from).collect();
    print(&measured);
    print_ratios(&measured);
    for size in sizes {
        naive(directory.path(), size);
    }
}

/// Fills a queue of this size and prints what that took.
fn enqueued(directory: &Path, size: i64) -> PathBuf {
    let path = directory.join(format!("{size}.db"));
    let started = Instant::now();
    Run { run_id: "run", languages: &LANGUAGES, microshards: size, per_shard: 250 }.fill(&path);
    let took = started.elapsed();
    let bytes = std::fs::metadata(&path).expect("is there").len();
    let payload: i64 = Connection::open(&path)
        .and_then(|conn| conn.query_row("SELECT sum(length(uri) + 32) FROM microshards", [], |row| row.get(0)))
        .expect("reads");
    println!(
        "{size} microshards enqueued in {took:.1?}: {:.0} rows/s, peak memory {} MB, file {} MB, {:.0} bytes a microshard \
         beyond uri and sha256",
        size as f64 / took.as_secs_f64(),
        peak_memory_mb(),
        bytes >> 20,
        (bytes as f64 - payload as f64) / size as f64
    );
    path
}

/// A queue of which samples are taken.
struct Sampled {
    size: i64,
    done: i64,
    queue: Queue,
    claims: Vec<Duration>,
    finishes: Vec<Duration>,
    /// Of the claims: what the disk takes.
    commits: Vec<Duration>,
    reads: Vec<Duration>,
    finished: Vec<i64>,
    largest_wal: u64,
}

impl Sampled {
    /// Copies of the queue, each done so far.
    fn at_each(path: &Path, size: i64) -> [Sampled; 3] {
        DONE.map(|done| {
            let copy = path.with_extension(format!("{done}.db"));
            std::fs::copy(path, &copy).expect("copies");
            finish_until(&copy, done);
            let queue = Queue::open(&copy).expect("opens");
            let (claims, finishes, commits, reads, finished) = (vec![], vec![], vec![], vec![], vec![]);
            Sampled { size, done, queue, claims, finishes, commits, reads, finished, largest_wal: 0 }
        })
    }

    fn claim_finish_and_read(&mut self) {
        let queue = &self.queue;
        let claimer = Claimer { owner: "bench", now_ms: 0, lease_ms: i64::MAX / 4, only: None };
        let started = Instant::now();
        let claim = || queue.claim(claimer).map(|job| (job, started.elapsed()));
        let (job, claimed) = queue.transaction(claim).expect("claims");
        self.commits.push(started.elapsed() - claimed);
        self.claims.push(claimed);
        let job = job.expect("something is pending");
        let finish = published(&job);
        let started = Instant::now();
        let finish = || queue.finish(&job.lease, &finish).map(|_| started.elapsed());
        self.finishes.push(queue.transaction(finish).expect("finishes"));
        let started = Instant::now();
        drop(queue.status().expect("reads"));
        self.reads.push(started.elapsed());
        self.finished.push(job.lease.shard);
        let wal = std::fs::metadata(with_suffix(queue.path(), "-wal")).map_or(0, |metadata| metadata.len());
        self.largest_wal = self.largest_wal.max(wal);
    }

    /// Makes what was finished pending again, behind the queue's back, so that as much is done as before.
    fn bring_back(&mut self) {
        let conn = Connection::open(self.queue.path()).expect("opens");
        for shard in self.finished.drain(..) {
            conn.execute(
                "UPDATE shards SET state = 0, key = NULL, rows = NULL, bytes_in = NULL, bytes_out = NULL, sha256 = NULL,
                   published_at = NULL WHERE shard = ?1",
                [shard],
            )
            .expect("updates");
        }
    }
}

/// Marks shards published until so many per cent are, behind the queue's back but through its triggers.
fn finish_until(path: &Path, percent: i64) {
    let conn = Connection::open(path).expect("opens");
    conn.execute(
        "UPDATE shards SET state = 3, key = name, rows = 1, bytes_in = 1, bytes_out = 1, sha256 = zeroblob(32), published_at = 1
         WHERE number * 100 < ?1 * (SELECT count(*) FROM shards s WHERE s.grp = shards.grp)",
        [percent],
    )
    .expect("updates");
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("checkpoints");
}

struct Measured {
    size: i64,
    done: i64,
    claims: Latencies,
    finishes: Latencies,
    commits: Latencies,
    reads: Latencies,
    largest_wal: u64,
}

impl From<Sampled> for Measured {
    fn from(sampled: Sampled) -> Measured {
        let Sampled { size, done, largest_wal, .. } = sampled;
        let [claims, finishes] = [sampled.claims, sampled.finishes].map(Latencies::new);
        let [commits, reads] = [sampled.commits, sampled.reads].map(Latencies::new);
        Measured { size, done, claims, finishes, commits, reads, largest_wal }
    }
}

fn print(measured: &[Measured]) {
    println!(
        "\n| microshards | done | claim p50, p99 | finish p50, p99 | commit p50, p99 | status p50, p99 | largest WAL |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    for Measured { size, done, claims, finishes, commits, reads, largest_wal } in measured {
        let [claims, finishes, commits, reads] = [claims, finishes, commits, reads].map(shown);
        let wal = *largest_wal as f64 / 1e6;
        println!("| {size} | {done} % | {claims} | {finishes} | {commits} | {reads} | {wal:.1} MB |");
    }
    println!();
}

/// What must not grow with what is done, nor with the size.
fn print_ratios(measured: &[Measured]) {
    let p50 = |measured: &Measured| measured.claims.percentile(50).as_secs_f64();
    for same_size in measured.chunks(DONE.len()) {
        if let [nothing, .., most] = same_size {
            println!("{}: claim p50 at 99 % done / at 0 % done = {:.2}", most.size, p50(most) / p50(nothing));
        }
    }
    for (small, large) in measured.iter().zip(measured.iter().skip(DONE.len())) {
        let ratio = p50(large) / p50(small);
        println!("{} / {} at {} % done: claim p50 = {ratio:.2}", large.size, small.size, large.done);
    }
}

/// One row a microshard, with a key of its own; a plain index on the status; claims in the order of ids, the language by
/// GROUP BY.
fn naive(directory: &Path, size: i64) {
    let conn = naive_queue(&directory.join(format!("naive-{size}.db")), size);
    println!("\nnaive, {size} microshards:");
    for percent in DONE {
        conn.execute("UPDATE m SET status = 'done' WHERE id * 100 < ?1 * ?2", params![percent, size]).expect("updates");
        let claims = sample(|| {
            let ids: Vec<i64> = conn
                .prepare_cached("SELECT id FROM m WHERE status = 'pending' ORDER BY id LIMIT 250")
                .expect("prepares")
                .query_map([], |row| row.get(0))
                .expect("reads")
                .collect::<rusqlite::Result<_>>()
                .expect("reads");
            assert_eq!(ids.len(), 250);
        });
        let languages = sample(|| {
            let sql =
                "SELECT language, count(*) FROM m WHERE status = 'pending' GROUP BY language ORDER BY 2 DESC LIMIT 1";
            let _: String = conn.query_row(sql, [], |row| row.get(0)).expect("reads");
        });
        println!("  {percent:2} % done: ids of a claim {}, language {}", shown(&claims), shown(&languages));
    }
}

fn naive_queue(path: &Path, size: i64) -> Connection {
    let conn = Connection::open(path).expect("opens");
    conn.execute_batch(
        "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;
         CREATE TABLE m(id INTEGER NOT NULL, language TEXT NOT NULL, uri TEXT NOT NULL, status TEXT NOT NULL); BEGIN",
    )
    .expect("creates");
    {
        let mut insert = conn.prepare("INSERT INTO m VALUES(?1, ?2, ?3, 'pending')").expect("prepares");
        for id in 0..size {
            let id = (id * 7_919 + 13) % size;
            let uri = format!("s3://an-export-bucket/{:02x}/{id:012}.jsonl.zst", id % 256);
            insert.execute(params![id, LANGUAGES[id as usize % 12], uri]).expect("inserts");
        }
    }
    // ANALYZE, as a maintenance job would: from then on the index is passed over.
    conn.execute_batch(
        "COMMIT; CREATE UNIQUE INDEX m_id ON m(id); CREATE INDEX m_status ON m(status); ANALYZE; PRAGMA journal_mode=WAL",
    )
    .expect("indexes");
    conn
}

/// A few samples: each may take seconds.
fn sample(mut work: impl FnMut()) -> Latencies {
    let timed = |_| {
        let started = Instant::now();
        work();
        started.elapsed()
    };
    Latencies::new((0..5).map(timed).collect())
}

fn shown(samples: &Latencies) -> String {
    let [p50, p99] = [50, 99].map(|percent| samples.percentile(percent).as_secs_f64() * 1e3);
    format!("{p50:.3}, {p99:.3} ms")
}

/// The process's peak resident memory, as Linux counts it.
fn peak_memory_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) / 1024
}
