//! `status`: from the counters, in one short read that no claim waits for.

#![expect(clippy::indexing_slicing, reason = "members of JSON objects that are made here")]

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use microshard_queue::{GroupStatus, Queue, Refused, RunnerState, ShardCounts, Waiting, now_ms};
use serde_json::{Value, json};

use super::Exit;
use super::table::Table;
use crate::cli::QueueJson;
use crate::config::Output;
use crate::hint;
use crate::monitor::human;
use crate::origins::{self, OriginLoad};
use crate::shown::one_line;
use crate::time::rfc3339;
use crate::told;
use crate::waits::{self, Wait};

pub(super) fn run(args: &QueueJson, out: &mut dyn Write) -> Result<Exit> {
    let queue = Queue::open(&args.queue.queue)?;
    let groups = queue.status()?;
    if args.json {
        writeln!(out, "{:#}", as_json(&queue, &groups)?)?;
    } else {
        print(&queue, &args.queue.queue, &groups, out)?;
    }
    Ok(Exit::Done)
}

fn as_json(queue: &Queue, groups: &[GroupStatus]) -> Result<Value> {
    let mut status = counts(&GroupStatus::total(groups));
    let runner = queue.runner()?;
    let waiting = queue.next_deferred(None)?;
    status["runner"] = json!({
        "state": queue.runner_state()?.word(),
        "pid": runner.as_ref().map(|runner| runner.pid),
        "host": runner.as_ref().map(|runner| &runner.host),
        "started_at_ms": runner.as_ref().map(|runner| runner.started_at_ms),
        "beat_at_ms": runner.as_ref().map(|runner| runner.beat_at_ms),
        "waiting_until_ms": waiting.as_ref().map(|waiting| waiting.until_ms),
        "waiting_why": waiting.as_ref().map(|waiting| &waiting.why),
    });
    let refused = queue.refused()?;
    status["refused"] = json!({"shards": refused.shards, "failures": refused.failures});
    status["origins"] = json!(told::read::<OriginLoad>(queue, origins::KEY)?);
    status["waits"] = json!(told::read::<Wait>(queue, waits::KEY)?);
    let language = |group: &GroupStatus| {
        let mut language = counts(group);
        language["run_id"] = json!(group.run_id);
        language["language"] = json!(group.language);
        language
    };
    status["languages"] = groups.iter().map(language).collect();
    Ok(status)
}

fn counts(group: &GroupStatus) -> Value {
    let (shards, microshards) = (&group.shards, &group.microshards);
    json!({
        "microshards": {
            "pending": microshards.pending, "claimed": microshards.claimed, "consumed": microshards.consumed,
            "failed": microshards.failed, "held": microshards.held, "total": microshards.total(),
        },
        "shards": {
            "pending": shards.pending, "waiting": shards.waiting, "claimed": shards.claimed,
            "published": shards.published, "failed": shards.failed, "synced": shards.synced, "held": shards.held,
            "total": shards.total(),
        },
        "rows": group.rows, "bytes_in": group.bytes_in, "bytes_out": group.bytes_out,
    })
}

fn print(queue: &Queue, path: &Path, groups: &[GroupStatus], out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new(&[
        "run/language",
        "microshards",
        "pending",
        "claimed",
        "consumed",
        "failed",
        "held",
        "shards",
        "published",
        "synced",
        "rows",
        "in",
        "out",
    ]);
    let all = GroupStatus::total(groups);
    for group in groups.iter().chain([&all]) {
        let (shards, microshards) = (&group.shards, &group.microshards);
        let name =
            if group.run_id.is_empty() { "all".to_owned() } else { format!("{}/{}", group.run_id, group.language) };
        let numbers = [
            microshards.total(),
            microshards.pending,
            microshards.claimed,
            microshards.consumed,
            microshards.failed,
            microshards.held,
            shards.total(),
            shards.published,
            shards.synced,
            group.rows,
        ];
        let mut cells = vec![name];
        cells.extend(numbers.map(human::count));
        cells.extend([human::bytes(group.bytes_in), human::bytes(group.bytes_out)]);
        table.row(cells);
    }
    table.print(out)?;
    let refused = queue.refused()?;
    if refused.total() > 0 {
        writeln!(out, "{}", refused_line(&refused, path))?;
    }
    writeln!(out, "{}", runner_line(queue, path)?)?;
    for origin in told::read::<OriginLoad>(queue, origins::KEY)? {
        writeln!(out, "{}", origin.line(now_ms()))?;
    }
    for wait in told::read::<Wait>(queue, waits::KEY)? {
        writeln!(out, "{}", wait.line(now_ms()))?;
    }
    if let Some(waiting) = queue.next_deferred(None)? {
        writeln!(out, "{}", waiting_line(&all.shards, &waiting, now_ms()))?;
    }
    Ok(())
}

fn waiting_line(shards: &ShardCounts, waiting: &Waiting, now_ms: i64) -> String {
    let nothing_else = if shards.all_wait() { ", and nothing else is left" } else { "" };
    let when = match u64::try_from(waiting.until_ms - now_ms) {
        Ok(left_ms @ 1..) => {
            format!("in {}, at {}", human::duration(Duration::from_millis(left_ms)), rfc3339(waiting.until_ms))
        }
        _ => "now".to_owned(),
    };
    let (count, why) = (human::count(shards.waiting), one_line(&waiting.why));
    format!("{count} shards wait{nothing_else}; the next is due {when}: {why}")
}

fn refused_line(refused: &Refused, path: &Path) -> String {
    format!(
        "the manifest refused {} shards and {} failures: `{}` says why",
        human::count(refused.shards),
        human::count(refused.failures),
        hint::command("sync-back", path)
    )
}

fn runner_line(queue: &Queue, path: &Path) -> Result<String> {
    let state = queue.runner_state()?;
    let Some(runner) = queue.runner()? else { return Ok("runner: idle, there was none yet".to_owned()) };
    let ago = |at_ms: i64| human::duration(Duration::from_millis((now_ms() - at_ms).max(0) as u64));
    let who = format!("process {} on {}, started {} ago", runner.pid, runner.host, ago(runner.started_at_ms));
    Ok(match state {
        RunnerState::Running => format!("runner: running, {who}"),
        RunnerState::Quiet => format!("runner: quiet for {}, {who}", ago(runner.beat_at_ms)),
        RunnerState::Dead => {
            let run = hint::run(path, Output::of(queue)?.as_ref());
            format!("runner: dead ({who}); `{run}` takes its shards over at once")
        }
        RunnerState::Idle => format!("runner: idle; the last was {who}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_told_with_its_time_and_its_reason_and_a_time_that_has_passed_is_now() {
        let some = ShardCounts { pending: 5, waiting: 2, claimed: 1, ..ShardCounts::default() };
        let all = ShardCounts { pending: 2, waiting: 2, ..ShardCounts::default() };
        let waiting = Waiting { until_ms: 45_000, why: "the server\nanswered 503".to_owned() };
        assert_eq!(
            waiting_line(&some, &waiting, 0),
            "2 shards wait; the next is due in 45 s, at 1970-01-01T00:00:45.000Z: the server\\nanswered 503"
        );
        for now_ms in [45_000, 99_000] {
            assert_eq!(
                waiting_line(&all, &waiting, now_ms),
                "2 shards wait, and nothing else is left; the next is due now: the server\\nanswered 503"
            );
        }
    }
}
