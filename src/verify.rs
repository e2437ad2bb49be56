//! Reads one published shard again: size, sum, rows, and row by row against its microshards. What is wrong is data here,
//! one sentence each.

use std::sync::Arc;

use microshard_queue::{Member, PlannedShard};
use sha2::{Digest, Sha256};

use crate::config::Output;
use crate::format::seek::RowIndex;
use crate::format::{Encoded, JsonlReader, Limits, RowReader, Rows, check_tables};
use crate::patience::Patience;
use crate::shown::shown_uri;
use crate::store::{GetOptions, ObjectStore, Reader, Sources, Trouble};

/// A shard is read whole; larger ones than this were not written by us.
const SHARD_BYTES_MAX: u64 = 16 << 30;

/// What shards are verified against.
pub struct Verifier<'a> {
    /// Where shards are.
    pub store: &'a dyn ObjectStore,
    /// Where microshards are, to compare with them.
    pub sources: Option<&'a Arc<Sources>>,
    /// What shards are like.
    pub output: &'a Output,
    /// How long to wait for a microshard.
    pub patience: &'a Patience,
}

/// What was found of one shard.
#[derive(Debug, Default)]
pub struct Verified {
    /// Rows read.
    pub rows: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What is wrong with it.
    pub wrong: Vec<String>,
    /// Why it could not be compared with its microshards; no fault of the shard.
    pub not_compared: Option<String>,
}

impl Verifier<'_> {
    /// Verifies one shard; `members` are needed only to compare with the source.
    pub fn verify(&self, shard: &PlannedShard, members: &[Member]) -> Verified {
        let mut verified = Verified::default();
        if let Err(wrong) = self.read(shard, members, &mut verified) {
            verified.wrong.push(format!("{}: {wrong}", shard.name));
        }
        verified
    }

    fn read(&self, shard: &PlannedShard, members: &[Member], verified: &mut Verified) -> Result<(), String> {
        let receipt = shard.receipt.as_ref().ok_or("has no receipt")?;
        let mut object = Vec::new();
        let options = GetOptions { bytes_max: SHARD_BYTES_MAX, fresh: false };
        self.store.get(&receipt.key, &mut object, options).map_err(|error| error.to_string())?;
        verified.bytes = object.len() as u64;
        if verified.bytes != receipt.bytes_out {
            return Err(format!("has {} bytes, the queue says {}", verified.bytes, receipt.bytes_out));
        }
        if Sha256::digest(&object).as_slice() != receipt.sha256 {
            return Err("has another SHA-256 than the queue says".to_owned());
        }
        let mut reader = JsonlReader::default();
        let Rows::Lines { text, count, encoded } =
            reader.read(&object, Limits { bytes_max: u64::MAX, lenient: true }).map_err(|bad| bad.to_string())?;
        verified.rows = count;
        if count != receipt.rows {
            return Err(format!("has {count} rows, the queue says {}", receipt.rows));
        }
        let index = self.check_tables(shard, text, encoded)?;
        match self.sources {
            Some(sources) => self.compare(text, index.as_ref(), members, sources, verified),
            None => Ok(()),
        }
    }

    /// The tables at the end of a shard, where there are to be any.
    fn check_tables(
        &self,
        shard: &PlannedShard,
        text: &[u8],
        encoded: Option<Encoded<'_>>,
    ) -> Result<Option<RowIndex>, String> {
        if !self.output.frames.has_tables() {
            return Ok(None);
        }
        let encoded = encoded.ok_or("has rows that would need repair, or is no zstd")?;
        let index = check_tables(text, encoded).map_err(|bad| bad.to_string())?;
        match index.microshards.len() as u64 {
            listed if listed == shard.members => Ok(Some(index)),
            listed => Err(format!("its row index lists {listed} microshards, the queue says {}", shard.members)),
        }
    }

    /// Every row of every microshard, in order, and nothing else.
    fn compare(
        &self,
        mut text: &[u8],
        index: Option<&RowIndex>,
        members: &[Member],
        sources: &Arc<Sources>,
        verified: &mut Verified,
    ) -> Result<(), String> {
        let mut reader = JsonlReader::default();
        let mut source = sources.reader();
        let mut object = Vec::new();
        let limits = Limits { bytes_max: self.output.max_microshard_bytes, lenient: true };
        for (place, member) in members.iter().enumerate() {
            let named = |what: &dyn std::fmt::Display| {
                format!("microshard {} ({}): {what}", member.microshard_id, shown_uri(&member.uri))
            };
            if let Err(why) = self.get(sources, &mut source, member, &mut object) {
                verified.not_compared = Some(why);
                return Ok(());
            }
            let Rows::Lines { text: rows, count, .. } = reader.read(&object, limits).map_err(|bad| named(&bad))?;
            text =
                text.strip_prefix(rows).ok_or_else(|| named(&"its rows are not where they should be in the shard"))?;
            if index.is_some_and(|index| index.microshards.get(place) != Some(&(member.microshard_id, count))) {
                return Err(named(&format!("has {count} rows, the shard's row index says otherwise")));
            }
        }
        if text.is_empty() { Ok(()) } else { Err("has rows that no microshard has".to_owned()) }
    }

    /// As patient with passing trouble as `run` is, and no more: an origin that is lost for all is asked once for each.
    fn get(
        &self,
        sources: &Arc<Sources>,
        source: &mut Reader,
        member: &Member,
        object: &mut Vec<u8>,
    ) -> Result<(), String> {
        let mut tries = 0;
        loop {
            let options = GetOptions { bytes_max: self.output.max_microshard_bytes, fresh: tries > 0 };
            let Err(error) = source.get(&member.uri, object, options) else { return Ok(()) };
            tries += u32::from(!matches!(error.trouble, Trouble::Paused(_)));
            if !error.trouble.is_passing() {
                return Err(error.to_string());
            }
            let tally = sources.tally(&member.uri).map_err(|error| error.to_string())?;
            if tries >= self.patience.tries_max || self.patience.origin_is_lost(&tally, error.trouble) {
                return Err(format!("{error} ({tries} tries)"));
            }
            std::thread::sleep(self.patience.repeat(tries, error.trouble));
        }
    }
}
