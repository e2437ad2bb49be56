//! How long a run of one shard waits when it is added while a big run is at work: with turns, and first in, first out,
//! which is what the same queue does when it is told to claim the big run for as long as there is any of it. Prints a
//! Markdown table. The counts are exact: lanes finish one after the other. The times are of threads that take 20 ms a shard.
//!
//!     cargo bench -p microshard-queue --bench turns

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod common;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{Run, published};
use microshard_queue::{Claimer, Job, LEASE, Queue, now_ms};

const BIG: Run<'_> = Run { run_id: "big", languages: &["en"], microshards: 2000, per_shard: 10 };
const SMALL: Run<'_> = Run { run_id: "small", languages: &["en"], microshards: 10, per_shard: 10 };
const LANES: usize = 6;
/// Shards of the big run that are claimed when the small one is added.
const MOMENTS: [usize; 3] = [10, 100, 150];
/// How long a lane works on a shard, where time is measured.
const WORK: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
enum Order {
    Turns,
    FirstInFirstOut,
}

fn main() {
    println!("| added after | turns: shards before it | time | first in, first out: shards before it | time |");
    println!("|---:|---:|---:|---:|---:|");
    for moment in MOMENTS {
        let [turns, fifo] = [Order::Turns, Order::FirstInFirstOut].map(|order| {
            let (shards, time) = (shards_before(order, moment), time_until_published(order, moment));
            format!("{shards} | {:.2} s", time.as_secs_f64())
        });
        println!("| {moment} of 200 shards claimed | {turns} | {fifo} |");
    }
}

/// A queue that the big run is claimed from, in one order.
struct Work {
    queue: Queue,
    order: Order,
    big: i64,
    claimed: usize,
}

impl Work {
    fn new(path: &Path, order: Order) -> Work {
        BIG.fill(path);
        let queue = Queue::open(path).expect("opens");
        let big = queue.run_named(BIG.run_id).expect("is there");
        Work { queue, order, big, claimed: 0 }
    }

    fn claim(&mut self) -> Option<Job> {
        let claim = |only| {
            let claimer = Claimer { owner: "bench", now_ms: now_ms(), lease_ms: LEASE.as_millis() as i64, only };
            self.queue.transaction(|| self.queue.claim(claimer)).expect("claims")
        };
        let job = match self.order {
            Order::Turns => claim(None),
            Order::FirstInFirstOut => claim(Some(self.big)).or_else(|| claim(None)),
        };
        self.claimed += usize::from(job.is_some());
        job
    }

    fn finish(&self, job: &Job) {
        self.queue.transaction(|| self.queue.finish(&job.lease, &published(job))).expect("finishes");
    }
}

/// How many shards of the big run are still published before the small one's. Lanes finish one after the other.
fn shards_before(order: Order, moment: usize) -> usize {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("queue.db");
    let mut work = Work::new(&path, order);
    let mut in_flight = VecDeque::new();
    let (mut added, mut before) = (false, 0);
    loop {
        while in_flight.len() < LANES
            && let Some(job) = work.claim()
        {
            in_flight.push_back(job);
            if work.claimed == moment {
                SMALL.fill(&path);
                added = true;
            }
        }
        let job = in_flight.pop_front().expect("the small run comes before the queue is empty");
        work.finish(&job);
        if job.run_id == SMALL.run_id {
            return before;
        }
        before += usize::from(added);
    }
}

/// From the beginning of the small run's snapshot until its shard is published.
fn time_until_published(order: Order, moment: usize) -> Duration {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("queue.db");
    let work = Mutex::new(Work::new(&path, order));
    let (tell_moment, moment_came) = mpsc::channel();
    let (tell_published, small_published) = mpsc::channel();
    let lane = || {
        let claim = || {
            let mut work = work.lock().expect("unpoisoned");
            let job = work.claim()?;
            Some((job, work.claimed))
        };
        while let Some((job, claimed)) = claim() {
            if claimed == moment {
                tell_moment.send(()).expect("is waited for");
            }
            thread::sleep(WORK);
            work.lock().expect("unpoisoned").finish(&job);
            if job.run_id == SMALL.run_id {
                tell_published.send(Instant::now()).expect("is waited for");
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(lane);
        }
        moment_came.recv().expect("it comes");
        let started = Instant::now();
        SMALL.fill(&path);
        small_published.recv().expect("it is published") - started
    })
}
