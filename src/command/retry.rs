//! `retry`: failed microshards go into new shards; the next `run` builds them.

use std::io::Write;

use anyhow::Result;
use microshard_queue::{Queue, RetrySelection};
use serde_json::json;

use super::Exit;
use crate::cli::Retry;
use crate::naming;

pub(super) fn run(args: &Retry, out: &mut dyn Write) -> Result<Exit> {
    let queue = Queue::open(&args.queue.queue.queue)?;
    let selection = RetrySelection { languages: args.language.clone(), microshard_ids: args.microshard.clone() };
    let retried = queue.retry(&selection, &naming::shard_name)?;
    if args.queue.json {
        let retried = json!({
            "microshards": retried.microshards, "new_shards": retried.shards, "held_shards_resumed": retried.unheld,
        });
        writeln!(out, "{retried}")?;
    } else {
        writeln!(
            out,
            "{} microshards are pending again, in {} new shards and {} that were held; now: compact-local run",
            retried.microshards, retried.shards, retried.unheld
        )?;
    }
    Ok(Exit::Done)
}
