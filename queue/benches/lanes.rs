//! 256 lanes that claim and finish as fast as they can, through the one writer as `run` does, while another connection
//! reads the status; then the naive way, a connection for each lane and SQLite's busy timeout. Ends with code 1 where the
//! writer's way does not hold what it must.
//!
//!     cargo bench -p microshard-queue --bench lanes                # a million microshards
//!     cargo bench -p microshard-queue --bench lanes -- 100000

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod common;
#[path = "common/latencies.rs"]
mod latencies;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{Run, published};
use crossbeam_channel::bounded;
use latencies::Latencies;
use microshard_queue::{
    Claimed, Claimer, Client, Finished, GroupStatus, Job, LEASE, Queue, Result, now_ms, with_suffix,
};

const LANGUAGES: [&str; 12] = ["ar", "bn", "de", "en", "es", "fr", "hi", "ja", "ko", "pt", "ru", "zh"];
const LANES: usize = 256;
const OWNER: &str = "bench";
/// The naive way is stopped then; it would take minutes.
const NAIVE_MAX: Duration = Duration::from_secs(20);
/// The busy timeout that SQLite's bindings set unless told otherwise. The queue's own is longer, so that the naive way gets
/// as far as it can: who waits longer than this would have had an error.
const USUAL_BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What must hold.
const MICROSHARDS_PER_S_MIN: f64 = 100_000.0;
/// Shards of the busiest lane for each of the median's.
const SHARE_MAX: f64 = 2.0;

fn main() -> ExitCode {
    let microshards = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(1_000_000);
    let run = Run { run_id: "run", languages: &LANGUAGES, microshards, per_shard: 250 };
    let directory = tempfile::tempdir().expect("a directory");
    let [ours, naive] = ["ours.db", "naive.db"].map(|name| directory.path().join(name));
    let shards = run.fill(&ours).shards;
    run.fill(&naive);
    println!("{microshards} microshards in {shards} shards, {LANES} lanes\n");

    let measured = one_writer(&ours);
    measured.print("one writer, group commit");
    a_connection_each(&naive).print("naive: a connection each, busy timeout");

    let missed = missed(&measured, &ours, microshards as u64, shards);
    missed.iter().for_each(|sentence| println!("MISSED: {sentence}"));
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What one lane did.
#[derive(Default)]
struct Lane {
    shards: Vec<i64>,
    microshards: u64,
    claims: Vec<Duration>,
    errors: Vec<String>,
}

impl Lane {
    /// Works until `claim` has nothing more. An error ends the lane, as it ends one of `run`'s.
    fn work(claim: impl Fn() -> Result<Option<Job>>, finish: impl Fn(&Job) -> Result<Finished>) -> Lane {
        let mut lane = Lane::default();
        loop {
            let started = Instant::now();
            let claimed = claim();
            let waited = started.elapsed();
            let finished =
                claimed.and_then(|job| job.map(|job| finish(&job).map(|finished| (job, finished))).transpose());
            match finished {
                Ok(Some((job, Finished::Accepted))) => {
                    lane.claims.push(waited);
                    lane.shards.push(job.lease.shard);
                    lane.microshards += job.members.len() as u64;
                }
                Ok(Some((job, Finished::Lost))) => lane.errors.push(format!("{} was lost", job.name)),
                Ok(None) => return lane,
                Err(error) => {
                    lane.errors.push(error.to_string());
                    return lane;
                }
            }
        }
    }
}

/// What all lanes did, and what was seen meanwhile.
struct Measured {
    elapsed: Duration,
    lanes: Vec<Lane>,
    claims: Latencies,
    statuses: Latencies,
    wal_max: u64,
    errors: Vec<String>,
}

/// As `run` works: every lane asks the one writer.
fn one_writer(path: &Path) -> Measured {
    let queue = Queue::open(path).expect("opens");
    queue.start_runner(OWNER, "host", &[]).expect("starts");
    let (requests, inbox) = bounded(LANES);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| queue.serve(OWNER, None, &inbox, &stop, &|_| {}));
        let mut measured = measure(path, move || {
            let client = Client::new(requests.clone());
            move || {
                let claim = || match client.claim()? {
                    Claimed::Job(job) => Ok(Some(*job)),
                    Claimed::Drained | Claimed::Stopped => Ok(None),
                };
                Lane::work(claim, |job| client.finish(job.lease.clone(), published(job)))
            }
        });
        let served = writer.join().expect("no panic");
        measured.errors.extend(served.err().map(|error| error.to_string()));
        measured
    })
}

/// Every lane is a writer of its own: SQLite lets one in and has the others try again.
fn a_connection_each(path: &Path) -> Measured {
    let until = Instant::now() + NAIVE_MAX;
    measure(path, || {
        let queue = Queue::open(path).expect("opens");
        move || {
            let claim = || {
                let lease_ms = LEASE.as_millis() as i64;
                let claimer = Claimer { owner: OWNER, now_ms: now_ms(), lease_ms, only: None };
                if Instant::now() < until { queue.transaction(|| queue.claim(claimer)) } else { Ok(None) }
            };
            Lane::work(claim, |job| queue.transaction(|| queue.finish(&job.lease, &published(job))))
        }
    })
}

/// Starts all lanes at once and watches the queue until the last has ended.
fn measure<W: FnOnce() -> Lane + Send>(path: &Path, lane: impl Fn() -> W) -> Measured {
    let workers: Vec<W> = (0..LANES).map(|_| lane()).collect();
    drop(lane); // its own way to the writer, which ends when none is left
    let start = Barrier::new(LANES + 1);
    thread::scope(|scope| {
        let spawn = |work: W| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                work()
            })
        };
        let working: Vec<_> = workers.into_iter().map(spawn).collect();
        let (end, ended) = mpsc::channel();
        let watcher = scope.spawn(move || watch(path, &ended));
        start.wait();
        let started = Instant::now();
        let mut lanes: Vec<Lane> = working.into_iter().map(|lane| lane.join().expect("no panic")).collect();
        let elapsed = started.elapsed();
        drop(end);
        let (statuses, wal_max, mut errors) = watcher.join().expect("no panic");
        errors.extend(lanes.iter_mut().flat_map(|lane| std::mem::take(&mut lane.errors)));
        let claims = Latencies::new(lanes.iter().flat_map(|lane| &lane.claims).copied().collect());
        Measured { elapsed, lanes, claims, statuses, wal_max, errors }
    })
}

/// Reads the status every 10 ms until the channel ends: how long each read took, the largest WAL, and what failed.
fn watch(path: &Path, ended: &mpsc::Receiver<()>) -> (Latencies, u64, Vec<String>) {
    let queue = Queue::open(path).expect("opens");
    let wal = with_suffix(path, "-wal");
    let (mut statuses, mut wal_max, mut errors) = (Vec::new(), 0, Vec::new());
    while let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(Duration::from_millis(10)) {
        let started = Instant::now();
        let status = queue.status();
        statuses.push(started.elapsed());
        errors.extend(status.err().map(|error| error.to_string()));
        wal_max = wal_max.max(std::fs::metadata(&wal).map_or(0, |metadata| metadata.len()));
    }
    (Latencies::new(statuses), wal_max, errors)
}

impl Measured {
    fn microshards(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.microshards).sum()
    }

    fn per_s(&self) -> f64 {
        self.microshards() as f64 / self.elapsed.as_secs_f64()
    }

    /// Shards of a lane: fewest, median, most.
    fn shares(&self) -> [usize; 3] {
        let mut shares: Vec<usize> = self.lanes.iter().map(|lane| lane.shards.len()).collect();
        shares.sort_unstable();
        [shares[0], shares[shares.len() / 2], shares[shares.len() - 1]]
    }

    fn share(&self) -> f64 {
        let [_, median, max] = self.shares();
        max as f64 / median.max(1) as f64
    }

    fn print(&self, title: &str) {
        let [min, median, max] = self.shares();
        println!("{title}");
        println!(
            "  {:.0} microshards/s ({} in {:.1} s), largest WAL {:.1} MB, errors {}",
            self.per_s(),
            self.microshards(),
            self.elapsed.as_secs_f64(),
            self.wal_max as f64 / 1e6,
            self.errors.len()
        );
        println!("  shards a lane: min {min}, median {median}, max {max}, max/median {:.2}", self.share());
        let claims = self.lanes.iter().flat_map(|lane| &lane.claims);
        let late = claims.filter(|waited| **waited > USUAL_BUSY_TIMEOUT).count();
        println!("  claim {}, over {USUAL_BUSY_TIMEOUT:?}: {late}", self.claims);
        println!("  status read beside it {}\n", self.statuses);
        self.errors.iter().take(3).for_each(|error| println!("  {error}"));
    }
}

/// What does not hold, as sentences.
fn missed(measured: &Measured, path: &Path, microshards: u64, shards: u64) -> Vec<String> {
    let queue = Queue::open(path).expect("opens");
    let mut missed = queue.check().expect("checks");
    let mut say = |holds: bool, sentence: String| {
        if !holds {
            missed.push(sentence);
        }
    };
    let finished: Vec<i64> = measured.lanes.iter().flat_map(|lane| &lane.shards).copied().collect();
    let once = finished.iter().collect::<BTreeSet<_>>().len() as u64;
    let published = GroupStatus::total(&queue.status().expect("reads")).shards.published;
    let finishes = finished.len() as u64;
    say(finishes == shards && once == shards, format!("{finishes} finishes of {once} shards; there are {shards}"));
    say(published == shards, format!("{published} of {shards} shards are published"));
    say(measured.microshards() == microshards, format!("{} microshards were handed out", measured.microshards()));
    say(measured.errors.is_empty(), format!("{} errors", measured.errors.len()));
    let per_s = measured.per_s();
    say(per_s >= MICROSHARDS_PER_S_MIN, format!("{per_s:.0} microshards/s, at least {MICROSHARDS_PER_S_MIN:.0}"));
    let [min, ..] = measured.shares();
    let share = measured.share();
    say(min > 0 && share <= SHARE_MAX, format!("max/median {share:.2}, at most {SHARE_MAX}; min {min}, at least 1"));
    missed
}
