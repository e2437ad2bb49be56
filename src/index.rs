//! The dataset index, `index.json`: what exists, and has just been seen, written last and replaced atomically (I4). It can
//! be made again from the queue at any time. Shards that other queues (other machines) put under the same output are kept in
//! it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context, Result, anyhow, bail};
use microshard_queue::Queue;
use serde::{Deserialize, Serialize};

use crate::config::Output;
use crate::format::{EXTENSION, Frames};
use crate::hex;
use crate::hint;
use crate::store::{GetOptions, ObjectStore, Trouble};

/// The key of the index, relative to the output.
pub const KEY: &str = "index.json";
const VERSION: u32 = 1;
/// How often somebody else may have written the index at the same moment.
const MERGES_MAX: u32 = 10;
/// Where the queue keeps that a run was lenient.
const LENIENT_KEY: &str = "lenient";
/// An index larger than this is not ours: a shard takes some 300 bytes in it.
const BYTES_MAX: u64 = 1 << 30;

/// The dataset index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// Of this layout.
    pub version: u32,
    /// What shards are like.
    pub options: Options,
    /// Sums over all shards.
    pub totals: Totals,
    /// The shards, by uri.
    pub shards: Vec<Shard>,
}

/// What shards are like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// `jsonl.zst`.
    pub format: String,
    /// Compression level.
    pub level: i32,
    /// How shards are cut into zstd frames, as `--frames` takes it. Indexes of before there was a choice do not say.
    #[serde(default = "single")]
    pub frames: String,
    /// Shards may hold rows that readers of JSON refuse or differ about.
    #[serde(default)]
    pub lenient: bool,
}

fn single() -> String {
    Frames::Single.to_string()
}

/// Sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Shards.
    pub shards: u64,
    /// Microshards in them.
    pub microshards: u64,
    /// Rows in them.
    pub rows: u64,
    /// Bytes of their objects.
    pub bytes: u64,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Its key, relative to the index.
    pub uri: String,
    /// Its run.
    pub run_id: String,
    /// Its language.
    pub language: String,
    /// Rows in it.
    pub rows: u64,
    /// Bytes of its object.
    pub bytes: u64,
    /// SHA-256 of its object.
    pub sha256: String,
    /// Microshards it was made of.
    pub microshards: u64,
    /// The queue it came from.
    pub queue: String,
}

/// Writes the index of all published shards of `queue`; whether there was anything to write. It is left as it is, with an
/// error, where one of them is not there any more.
pub fn write(queue: &Queue, store: &dyn ObjectStore, output: &Output) -> Result<bool> {
    let queue_id = queue.queue_id()?;
    let before =
        read(store).context("the dataset index that is there cannot be read; move it away to have it made anew")?;
    let mut shards: Vec<Shard> = before.as_ref().map(|index| index.shards.clone()).unwrap_or_default();
    shards.retain(|shard| shard.queue != queue_id);
    let ours = of_queue(queue, &queue_id)?;
    refuse_missing(&ours, queue, store)?;
    shards.extend(ours);
    // Ours stand last, and stay: another queue that built the same shard to the byte has built the same object.
    shards.reverse();
    shards.sort_by(|one, other| one.uri.cmp(&other.uri));
    shards.dedup_by(|one, other| one.uri == other.uri);
    let was_lenient = before.as_ref().is_some_and(|index| index.options.lenient);
    let options = Options {
        format: EXTENSION.to_owned(),
        level: output.level,
        frames: output.frames.to_string(),
        lenient: was_lenient || queue.meta(LENIENT_KEY)?.is_some(),
    };
    let index = Index { version: VERSION, options, totals: Totals::of(&shards), shards };
    if before.as_ref() == Some(&index) {
        return Ok(false);
    }
    let mut text = serde_json::to_vec_pretty(&index)?;
    text.push(b'\n');
    store.replace(KEY, &text)?;
    Ok(true)
}

/// What this queue publishes from now on may hold such rows as only a lenient run takes.
pub fn expect_lenient(queue: &Queue) -> Result<()> {
    queue.set_meta(LENIENT_KEY, "yes").map_err(Into::into)
}

/// Brings a queue's published shards into the index before its runs have reached their end. Somebody else who writes it at
/// the same moment may not have seen them there: it is looked at until nothing is left to write.
pub fn merge(queue: &Queue, store: &dyn ObjectStore, output: &Output) -> Result<()> {
    for _ in 0..MERGES_MAX {
        if !write(queue, store, output)? {
            return Ok(());
        }
    }
    bail!("others write {}/{KEY} again and again at the same time; run this again when they have ended", store.base())
}

/// Whether the index has, or had, anything of this queue; asks the queue only.
pub fn concerns(queue: &Queue) -> Result<bool> {
    Ok(!of_queue(queue, "")?.is_empty() || !queue.refusals()?.is_empty())
}

/// The queue's part of the index.
fn of_queue(queue: &Queue, queue_id: &str) -> Result<Vec<Shard>> {
    let mut shards = Vec::new();
    queue.for_each_shard(&mut |shard| -> Result<()> {
        // A shard that the manifest refused holds rows that another shard has too: it is an orphan.
        let receipt = shard.receipt.filter(|receipt| receipt.rows > 0 && shard.refused.is_none());
        if let Some(receipt) = receipt {
            shards.push(Shard {
                uri: receipt.key,
                run_id: shard.run_id,
                language: shard.language,
                rows: receipt.rows,
                bytes: receipt.bytes_out,
                sha256: hex::encode(&receipt.sha256),
                microshards: shard.members,
                queue: queue_id.to_owned(),
            });
        }
        Ok(())
    })?;
    Ok(shards)
}

/// A directory that is not mounted, or was moved, is as writable as another: nothing else would tell that shards are gone.
fn refuse_missing(shards: &[Shard], queue: &Queue, store: &dyn ObjectStore) -> Result<()> {
    let missing = missing(shards, store)?;
    let Some((first, seen)) = missing.first_key_value() else { return Ok(()) };
    let how = seen.map_or("is not there".to_owned(), |bytes| format!("has another size, {bytes} bytes"));
    bail!(
        "failed to write {KEY} to {}: {} of {} published shards are not there as they were published, the first: {first} \
         {how}; is this the output, and is it mounted? `{}` names them all; what is gone for good can be built again in a \
         queue of its own, as README tells under \"Kill and resume\"",
        store.base(),
        missing.len(),
        shards.len(),
        hint::command("verify", queue.path())
    )
}

/// The shards that are not in the output with just their size, and the size they have there. A listing of each directory
/// with shards: thousands of them cost a few requests, and what else is in the output costs none.
fn missing<'a>(shards: &'a [Shard], store: &dyn ObjectStore) -> Result<BTreeMap<&'a str, Option<u64>>> {
    let mut seen = HashMap::new();
    let directories = shards.iter().filter_map(|shard| shard.uri.rsplit_once('/'));
    let directories: BTreeSet<&str> = directories.map(|(directory, _)| directory).collect();
    for directory in directories {
        let listed = store.list(&format!("{directory}/"), &mut |entry| {
            seen.insert(entry.key, entry.bytes);
            Ok(())
        });
        listed.map_err(|error| match error.trouble {
            Trouble::Denied => anyhow!("{error}; {KEY} lists what is seen in the output: allow s3:ListBucket"),
            _ => error.into(),
        })?;
    }
    let found = |shard: &Shard| seen.get(&shard.uri).copied();
    let missing = shards.iter().filter(|shard| found(shard) != Some(shard.bytes));
    Ok(missing.map(|shard| (shard.uri.as_str(), found(shard))).collect())
}

/// Reads the index; `None` where there is none.
pub fn read(store: &dyn ObjectStore) -> Result<Option<Index>> {
    if store.head(KEY)?.is_none() {
        return Ok(None);
    }
    let mut text = Vec::new();
    store.get(KEY, &mut text, GetOptions { bytes_max: BYTES_MAX, fresh: false })?;
    let index: Index =
        serde_json::from_slice(&text).with_context(|| format!("{}/{KEY} is no dataset index", store.base()))?;
    Ok(Some(index))
}

impl Index {
    /// What is wrong with it in itself.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for pair in self.shards.windows(2) {
            if let [one, other] = pair
                && one.uri >= other.uri
            {
                faults.push(format!("the index lists {} twice, or out of order", other.uri));
            }
        }
        if self.totals != Totals::of(&self.shards) {
            faults.push("the totals of the index are not the sums of its shards".to_owned());
        }
        faults
    }
}

impl Totals {
    fn of(shards: &[Shard]) -> Totals {
        shards.iter().fold(Totals::default(), |sum, shard| Totals {
            shards: sum.shards + 1,
            microshards: sum.microshards.saturating_add(shard.microshards),
            rows: sum.rows.saturating_add(shard.rows),
            bytes: sum.bytes.saturating_add(shard.bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its numbers are whatever the file says.
    #[test]
    fn the_sums_of_an_index_that_holds_nonsense_are_no_panic() {
        let shard = |uri: &str| Shard {
            uri: uri.to_owned(),
            run_id: "r".to_owned(),
            language: "en".to_owned(),
            rows: u64::MAX,
            bytes: u64::MAX,
            sha256: String::new(),
            microshards: u64::MAX,
            queue: "q".to_owned(),
        };
        let totals = Totals::of(&[shard("a"), shard("b")]);
        assert_eq!((totals.shards, totals.rows, totals.bytes, totals.microshards), (2, u64::MAX, u64::MAX, u64::MAX));
    }
}
