//! `failures`: every microshard that failed, with the sentence that says why.

use std::io::Write;

use anyhow::Result;
use microshard_queue::Queue;
use serde_json::json;

use super::Exit;
use crate::cli::QueueJson;
use crate::shown::{one_line, shown_uri};

pub(super) fn run(args: &QueueJson, out: &mut dyn Write) -> Result<Exit> {
    let queue = Queue::open(&args.queue.queue)?;
    let mut count = 0_u64;
    let mut written = Ok(());
    if args.json {
        write!(out, "[")?;
    }
    queue.for_each_failure(&mut |failure| {
        if written.is_err() {
            return Ok(());
        }
        written = if args.json {
            let separator = if count == 0 { "\n" } else { ",\n" };
            let entry = json!({
                "microshard_id": failure.microshard_id, "uri": shown_uri(&failure.uri), "run_id": failure.run_id,
                "language": failure.language, "shard": failure.shard, "sentence": failure.sentence,
                "attempts": failure.tries, "at": crate::time::rfc3339(failure.at_ms),
            });
            write!(out, "{separator}{entry}")
        } else {
            writeln!(
                out,
                "{}\t{}\t{}\t{}\t{}",
                failure.microshard_id,
                one_line(&failure.language),
                shown_uri(&failure.uri),
                one_line(&failure.sentence),
                failure.tries
            )
        };
        count += 1;
        Ok(())
    })?;
    written?;
    if args.json {
        writeln!(out, "\n]")?;
    } else if count == 0 {
        writeln!(out, "no microshard has failed")?;
    }
    Ok(Exit::Done)
}
