//! A queue in a temporary directory, and short ways to fill it and to work on it.

use std::path::{Path, PathBuf};

use microshard_queue::{
    Claimer, Cut, Finish, Finished, GroupTotals, Intake, Item, Job, Lease, NewSnapshot, Number, Outcome, Planned,
    Planner, Queue, Receipt, Result, SizesPass,
};

/// Cuts every `0` microshards; the rest is held where `1` says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Every(pub(crate) u64, pub(crate) bool);

impl Planner for Every {
    fn cut(&self, group: &GroupTotals, sizes: &mut SizesPass<'_>) -> Result<Vec<Cut>> {
        let mut seen = 0;
        sizes(&mut |_| seen += 1)?;
        assert_eq!(seen, group.microshards, "a pass sees every microshard");
        let full = group.microshards / self.0;
        let rest = group.microshards % self.0;
        let mut cuts = vec![Cut { microshards: self.0, held: false, closed_by: "microshards" }; full as usize];
        if rest > 0 {
            cuts.push(Cut { microshards: rest, held: self.1, closed_by: "end" });
        }
        Ok(cuts)
    }
}

pub(crate) fn name(run: &str, language: &str, snapshot: u32, shard: u32) -> String {
    format!("{run}-{language}-{snapshot:03}-{shard:05}")
}

pub(crate) struct World {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl World {
    pub(crate) fn new() -> World {
        // In memory where there is such a place: these tests commit thousands of times, and kill nothing but processes.
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let directory = directory.expect("a directory");
        let path = directory.path().join("queue.db");
        World { directory, path }
    }

    /// A queue with `microshards` of one language, `per_shard` to a shard.
    pub(crate) fn with(microshards: i64, per_shard: u64) -> World {
        let world = World::new();
        world.snapshot("run", &items("en", 1..=microshards), Every(per_shard, false)).expect("a snapshot");
        world
    }

    pub(crate) fn snapshot(&self, run: &str, items: &[Item], every: Every) -> Result<Planned> {
        snapshot(&self.path, run, items, every)
    }

    pub(crate) fn queue(&self) -> Queue {
        Queue::open(&self.path).expect("opens")
    }
}

pub(crate) fn snapshot(path: &Path, run: &str, items: &[Item], every: Every) -> Result<Planned> {
    let mut intake = Intake::begin(path)?;
    for item in items {
        intake.add(item)?;
    }
    let snapshot = NewSnapshot {
        run_id: run.to_owned(),
        number: Number::From(0),
        claim: "{}".to_owned(),
        remainders_given_back: false,
    };
    intake.plan(&snapshot, &every, &name)
}

pub(crate) fn item(language: &str, id: i64) -> Item {
    Item {
        microshard_id: Some(id),
        language: language.to_owned(),
        uri: format!("http://127.0.0.1/{language}/{id}.jsonl.zst"),
        rows: Some(10),
        bytes: Some(100),
        sha256: Some([id as u8; 32]),
        created_at: Some(id),
        updated_at: Some(id * 2),
    }
}

pub(crate) fn items(language: &str, ids: impl IntoIterator<Item = i64>) -> Vec<Item> {
    ids.into_iter().map(|id| item(language, id)).collect()
}

pub(crate) fn claim_at(queue: &Queue, now_ms: i64) -> Option<Job> {
    queue.transaction(|| queue.claim(Claimer { owner: "me", now_ms, lease_ms: 1000, only: None })).expect("claims")
}

pub(crate) fn claim(queue: &Queue) -> Job {
    claim_at(queue, 0).expect("something is pending")
}

pub(crate) fn finish(queue: &Queue, lease: &Lease, outcome: Outcome) -> Finished {
    let finish = Finish { outcome, failures: Vec::new(), troubles: Vec::new() };
    queue.transaction(|| queue.finish(lease, &finish)).expect("finishes")
}

pub(crate) fn published(key: &str) -> Outcome {
    Outcome::Published(Receipt { key: key.to_owned(), rows: 10, bytes_in: 100, bytes_out: 50, sha256: [7; 32] })
}

pub(crate) fn ids(job: &Job) -> Vec<i64> {
    job.members.iter().map(|member| member.microshard_id).collect()
}

/// The books agree with the rows (I1).
pub(crate) fn assert_sound(queue: &Queue) {
    assert_eq!(queue.check().expect("checks"), Vec::<String>::new());
}
