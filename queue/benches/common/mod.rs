//! What the benches share: a queue to fill, and the outcome of a shard that went well.

use std::path::Path;

use microshard_queue::{
    Cut, Finish, GroupTotals, Intake, Item, Job, NewSnapshot, Number, Outcome, Planned, Planner, Receipt, Result,
    SizesPass,
};

/// A run of microshards that are all alike, spread evenly over its languages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) run_id: &'a str,
    pub(crate) languages: &'a [&'a str],
    pub(crate) microshards: i64,
    /// Microshards of one shard; the last of a language has fewer.
    pub(crate) per_shard: u64,
}

impl Run<'_> {
    /// Snapshots it into `path`, which may or may not exist.
    pub(crate) fn fill(&self, path: &Path) -> Planned {
        let mut intake = Intake::begin(path).expect("begins");
        let mut item = Item { rows: Some(69), bytes: Some(9000), sha256: Some([7; 32]), ..Item::default() };
        for id in 0..self.microshards {
            // Ids arrive in the order of a hash, as they do from a big table.
            let id = (id * 7_919 + 13) % self.microshards;
            let language = self.languages[id as usize % self.languages.len()];
            item.microshard_id = Some(id);
            item.language.clear();
            item.language.push_str(language);
            item.uri = format!("s3://an-export-bucket/{}/{language}/{:02x}/{id:012}.jsonl.zst", self.run_id, id % 256);
            item.created_at = Some(id / 100);
            item.updated_at = Some(id);
            intake.add(&item).expect("adds");
        }
        let snapshot = NewSnapshot {
            run_id: self.run_id.into(),
            number: Number::From(0),
            claim: String::new(),
            remainders_given_back: false,
        };
        let name =
            |run: &str, language: &str, snapshot: u32, shard: u32| format!("{run}-{language}-{snapshot:03}-{shard:05}");
        intake.plan(&snapshot, &Every(self.per_shard), &name).expect("plans")
    }
}

/// Cuts every so many microshards.
struct Every(u64);

impl Planner for Every {
    fn cut(&self, group: &GroupTotals, _: &mut SizesPass<'_>) -> Result<Vec<Cut>> {
        let cut = |microshards| Cut { microshards, held: false, closed_by: "microshards" };
        let mut cuts = vec![cut(self.0); (group.microshards / self.0) as usize];
        if !group.microshards.is_multiple_of(self.0) {
            cuts.push(cut(group.microshards % self.0));
        }
        Ok(cuts)
    }
}

/// The shard's object is there and nothing failed.
pub(crate) fn published(job: &Job) -> Finish {
    let receipt = Receipt { key: job.name.clone(), rows: 17_000, bytes_in: 1, bytes_out: 1, sha256: [1; 32] };
    Finish { outcome: Outcome::Published(receipt), failures: vec![], troubles: vec![] }
}
