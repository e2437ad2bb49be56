//! What a snapshot costs a runner at work: six lanes that take 20 ms a shard, alone, then while a million microshards of
//! another run are added, and while the same million is listed again. Prints a Markdown table.
//!
//!     cargo bench -p microshard-queue --bench beside

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Run, published};
use crossbeam_channel::bounded;
use microshard_queue::{Acquired, Claimed, Client, Lock, LockKind, Queue};

const AT_WORK: Run<'_> = Run { run_id: "at-work", languages: &["en", "de"], microshards: 300_000, per_shard: 10 };
const ADDED: Run<'_> = Run { run_id: "added", languages: &["fr"], microshards: 1_000_000, per_shard: 250 };
const LANES: usize = 6;
/// How long a lane works on a shard.
const WORK: Duration = Duration::from_millis(20);
/// How long the runner is watched alone.
const ALONE: Duration = Duration::from_secs(3);

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("queue.db");
    AT_WORK.fill(&path);
    let Ok(Acquired::Ours(_lock)) = Lock::acquire(&path, LockKind::Runner) else { panic!("the lock is free") };
    let queue = Queue::open(&path).expect("opens");
    queue.start_runner("bench", "host", &[]).expect("starts");
    let (to_queue, requests) = bounded(LANES);
    let (stop, turnarounds) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        scope.spawn(|| queue.serve("bench", None, &requests, &stop, &|_| {}).expect("serves"));
        for _ in 0..LANES {
            let (client, turnarounds) = (Client::new(to_queue.clone()), &turnarounds);
            scope.spawn(move || work(&client, turnarounds));
        }
        drop(to_queue);
        println!("| | took | shards/s | longest for one |");
        println!("|---|---:|---:|---:|");
        row("alone", &turnarounds, || thread::sleep(ALONE));
        row("a million added", &turnarounds, || _ = ADDED.fill(&path));
        row("a million listed again", &turnarounds, || _ = ADDED.fill(&path));
        stop.store(true, Ordering::Relaxed);
    });
}

/// A lane: keeps how long each shard took it from claim to finish.
fn work(client: &Client, turnarounds: &Mutex<Vec<Duration>>) {
    loop {
        let started = Instant::now();
        let Claimed::Job(job) = client.claim().expect("claims") else { return };
        thread::sleep(WORK);
        client.finish(job.lease.clone(), published(&job)).expect("finishes");
        turnarounds.lock().expect("no lane panicked").push(started.elapsed());
    }
}

fn row(what: &str, turnarounds: &Mutex<Vec<Duration>>, meanwhile: impl FnOnce()) {
    turnarounds.lock().expect("no lane panicked").clear();
    let started = Instant::now();
    meanwhile();
    let took = started.elapsed().as_secs_f64();
    let turnarounds = std::mem::take(&mut *turnarounds.lock().expect("no lane panicked"));
    let longest = turnarounds.iter().max().copied().unwrap_or_default().as_millis();
    println!("| {what} | {took:.1} s | {:.0} | {longest} ms |", turnarounds.len() as f64 / took);
}
