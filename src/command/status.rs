//! `status`: from the counters, in one short read that no claim waits for.

use std::io::Write;

use anyhow::Result;
use microshard_queue::{GroupStatus, Queue, RunnerState};
use serde_json::{Value, json};

use super::Exit;
use super::table::Table;
use crate::cli::QueueJson;
use crate::monitor::human;

pub(super) fn run(args: &QueueJson, out: &mut dyn Write) -> Result<Exit> {
    let queue = Queue::open(&args.queue.queue)?;
    let groups = queue.status()?;
    if args.json {
        writeln!(out, "{:#}", as_json(&queue, &groups)?)?;
    } else {
        print(&queue, &groups, out)?;
    }
    Ok(Exit::Done)
}

fn as_json(queue: &Queue, groups: &[GroupStatus]) -> Result<Value> {
    let mut status = counts(&GroupStatus::total(groups));
    let runner = queue.runner()?;
    status["runner"] = json!({
        "state": queue.runner_state()?.word(),
        "pid": runner.as_ref().map(|runner| runner.pid),
        "host": runner.as_ref().map(|runner| &runner.host),
        "started_at_ms": runner.as_ref().map(|runner| runner.started_at_ms),
        "beat_at_ms": runner.as_ref().map(|runner| runner.beat_at_ms),
        "waiting_until_ms": queue.next_deferred()?.map(|(at, _)| at),
    });
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

fn print(queue: &Queue, groups: &[GroupStatus], out: &mut dyn Write) -> Result<()> {
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
    writeln!(out, "{}", runner_line(queue)?)?;
    if let Some((at_ms, why)) = queue.next_deferred()? {
        let seconds = (at_ms - microshard_queue::now_ms()).max(0) / 1000;
        writeln!(out, "{} shards wait; the next for {seconds} s more: {why}", all.shards.waiting)?;
    }
    Ok(())
}

fn runner_line(queue: &Queue) -> Result<String> {
    let state = queue.runner_state()?;
    let Some(runner) = queue.runner()? else { return Ok("runner: idle, there was none yet".to_owned()) };
    let ago = |at_ms: i64| {
        human::duration(std::time::Duration::from_millis((microshard_queue::now_ms() - at_ms).max(0) as u64))
    };
    let who = format!("process {} on {}, started {} ago", runner.pid, runner.host, ago(runner.started_at_ms));
    Ok(match state {
        RunnerState::Running => format!("runner: running, {who}"),
        RunnerState::Quiet => format!("runner: quiet for {}, {who}", ago(runner.beat_at_ms)),
        RunnerState::Dead => format!("runner: dead ({who}); `compact-local run` takes its shards over at once"),
        RunnerState::Idle => format!("runner: idle; the last was {who}"),
    })
}
