//! A queue file in which bytes were changed, or that was cut: whatever is asked of it is answered or refused.

use std::path::Path;
use std::sync::LazyLock;

use compact_local::error;
use compact_local::naming;
use compact_local::plan::{Policy, Remainder};
use microshard_queue::{
    Claimer, Failure, Finish, Intake, Item, Job, NewSnapshot, Number, Outcome, Queue, Receipt, Result, RetrySelection,
};

/// A good queue, and where it has bytes that are not zero.
static BASE: LazyLock<(Vec<u8>, Vec<usize>)> = LazyLock::new(|| {
    let directory = super::directory();
    let path = directory.path().join("queue.db");
    fill(&path).expect("is filled");
    let bytes = std::fs::read(&path).expect("reads");
    let places = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    (bytes, places)
});

/// The first byte says how much of the file is there, the others what is changed.
pub(crate) fn check(input: &[u8]) {
    let Some((cut, patches)) = input.split_first() else { return };
    let (base, places) = &*BASE;
    let mut bytes = super::patched(base, places, patches);
    if *cut >= 0xf0 {
        bytes.truncate(bytes.len() * usize::from(cut - 0xf0) / 16 + 1);
    }
    let directory = super::directory();
    let path = directory.path().join("queue.db");
    std::fs::write(&path, bytes).expect("writes");
    for step in [read, work, results, retry] {
        if let Err(refused) = Queue::open(&path).and_then(|queue| step(&queue)) {
            super::assert_shown(&error::sentence(&refused.into()));
        }
    }
}

/// Shards of one run in every state.
fn fill(path: &Path) -> Result<()> {
    let mut intake = Intake::begin(path)?;
    for id in 1..=40 {
        let language = if id % 4 == 0 { "de" } else { "en" }.to_owned();
        let (uri, created_at) = (format!("/in/{id}.jsonl"), Some(id));
        let sums = Item { rows: Some(10), bytes: Some(99), sha256: Some([id as u8; 32]), ..Item::default() };
        intake.add(&Item { microshard_id: Some(id), language, uri, created_at, ..sums })?;
    }
    let policy = Policy { rows_max: 40, bytes_max: None, microshards_max: None, remainder: Remainder::Hold };
    let snapshot =
        NewSnapshot { run_id: "r".into(), number: Number::From(0), claim: "{}".into(), remainders_given_back: false };
    intake.plan(&snapshot, &policy, &naming::shard_name)?;
    let queue = Queue::open(path)?;
    queue.set_meta("output", "{}")?;
    queue.start_runner("me", "here", &[])?;
    for number in 0..5 {
        if let Some(job) = claim(&queue)? {
            end(&queue, &job, number)?;
        }
    }
    Ok(())
}

fn claim(queue: &Queue) -> Result<Option<Job>> {
    queue.transaction(|| queue.claim(Claimer { owner: "me", now_ms: 1, lease_ms: 1000, only: None }))
}

/// Ends a lease: published, with a failure, deferred, failed, or not at all.
fn end(queue: &Queue, job: &Job, how: u32) -> Result<()> {
    let receipt = Receipt { key: "en/r.jsonl.zst".into(), rows: 10, bytes_in: 9, bytes_out: 5, sha256: [7; 32] };
    let outcome = match how % 5 {
        0 | 1 => Outcome::Published(receipt),
        2 => Outcome::Deferred { until_ms: 2, why: "busy".into(), progress: false },
        3 => Outcome::Failed("all of them failed".into()),
        _ => return Ok(()),
    };
    let failed = job.members.first().filter(|_| how % 5 == 1);
    let failures = failed.map(|member| Failure { seq: member.seq, sentence: "is cut off".into(), tries: 2 });
    let finish = Finish { outcome, failures: failures.into_iter().collect(), troubles: Vec::new() };
    queue.transaction(|| queue.finish(&job.lease, &finish)).map(|_| ())
}

fn read(queue: &Queue) -> Result<()> {
    let _ = (queue.status(), queue.check(), queue.runner(), queue.runner_state(), queue.refusals(), queue.uploads());
    let _ = (queue.queue_id(), queue.meta("output"), queue.next_deferred(None), queue.largest_pending_shard());
    let _ = queue.for_each_failure(&mut |_| Ok(()));
    let _ = queue.for_each_shard(&mut |shard| -> Result<()> { queue.members_of(&shard).map(|_| ()) });
    Ok(())
}

fn work(queue: &Queue) -> Result<()> {
    queue.start_runner("me", "here", &[1, -1])?;
    queue.suspects()?;
    for number in 0..6 {
        let Some(job) = claim(queue)? else { break };
        end(queue, &job, number)?;
    }
    Ok(())
}

fn results(queue: &Queue) -> Result<()> {
    for snapshot in queue.snapshots()? {
        let number = snapshot.snapshot;
        for shard in queue.unsynced_shards(number, 0, 100)? {
            queue.consumed(&shard)?;
        }
        queue.unsynced_failures(number, 0, 100)?;
        queue.for_each_held(number, &mut |_| {})?;
        queue.release_unworked(number, &mut |_| {})?;
    }
    queue.for_each_microshard(&mut |_| -> Result<()> { Ok(()) })
}

fn retry(queue: &Queue) -> Result<()> {
    queue.retry(&RetrySelection::default(), &naming::shard_name).map(|_| ())
}
