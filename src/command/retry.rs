//! `retry`: failed microshards go into new shards; the next `run` builds them.

use std::io::Write;

use anyhow::{Result, bail};
use microshard_queue::{Error, Queue, RetrySelection};
use serde_json::json;

use super::Exit;
use crate::cli::Retry;
use crate::config::Output;
use crate::hint;
use crate::monitor::human;
use crate::naming;

pub(super) fn run(args: &Retry, out: &mut dyn Write) -> Result<Exit> {
    let queue = Queue::open(&args.queue.queue.queue)?;
    let selection = RetrySelection { languages: args.language.clone(), microshard_ids: args.microshard.clone() };
    let path = &args.queue.queue.queue;
    let retried = match queue.retry(&selection, &naming::shard_name) {
        Err(error @ Error::NotFailed(_)) => bail!("{error}: `{}` lists what has", hint::command("failures", path)),
        retried => retried?,
    };
    if args.queue.json {
        let retried = json!({
            "microshards": retried.microshards, "new_shards": retried.shards, "held_shards_resumed": retried.unheld,
        });
        writeln!(out, "{retried}")?;
    } else if retried.microshards == 0 {
        writeln!(out, "there is nothing to retry")?;
    } else {
        writeln!(
            out,
            "{} microshards are pending again, in {} new shards and {} that were held; now: {}",
            human::count(retried.microshards),
            human::count(retried.shards),
            human::count(retried.unheld),
            hint::run(path, Output::of(&queue)?.as_ref())
        )?;
    }
    Ok(Exit::Done)
}
