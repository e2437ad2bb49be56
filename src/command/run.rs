//! `run`: builds and publishes what is pending.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use microshard_queue::{GroupStatus, Queue};

use super::Exit;
use crate::cli;
use crate::compact::{self, Ended};
use crate::config::Config;
use crate::hint;
use crate::interrupt::Interrupt;
use crate::memory;
use crate::monitor;

pub(super) fn run(args: &cli::Run, out: &mut dyn Write) -> Result<Exit> {
    let config = Config::from_args(args)?;
    let interrupt = Interrupt::install()?;
    let monitor = monitor::for_stderr();
    let path = &args.queue.queue;
    let ended = compact::run(&config, monitor.as_ref(), &interrupt)?;
    let exit = match ended {
        Ended::Done(total) => {
            writeln!(out, "{}", summary(&total, &Queue::open(path)?, path)?)?;
            exit(&total)
        }
        Ended::Interrupted(total) => {
            let summary = summary(&total, &Queue::open(path)?, path)?;
            writeln!(out, "interrupted; {summary} What is pending is built by the next run.")?;
            Exit::Interrupted
        }
        Ended::Busy(who) => {
            writeln!(out, "{who}")?;
            return Ok(Exit::Busy);
        }
    };
    if let Some(peak) = memory::peak() {
        let (peak, allowed) = (monitor::human::bytes(peak), monitor::human::bytes(config.memory));
        writeln!(out, "resident memory: {peak} at most, of {allowed}")?;
    }
    Ok(exit)
}

/// 3 where microshards failed, so that nobody takes an incomplete data set for a complete one.
fn exit(total: &GroupStatus) -> Exit {
    if total.microshards.failed > 0 { Exit::Incomplete } else { Exit::Done }
}

fn summary(total: &GroupStatus, queue: &Queue, path: &Path) -> Result<String> {
    use monitor::human;
    let (shards, microshards) = (&total.shards, &total.microshards);
    let mut text = format!(
        "{} of {} shards published: {} microshards, {} rows, {} in, {} out.",
        human::count(shards.published),
        human::count(shards.total()),
        human::count(microshards.consumed),
        human::count(total.rows),
        human::bytes(total.bytes_in),
        human::bytes(total.bytes_out)
    );
    if shards.failed > 0 {
        text += &format!(" {} shards came to nothing.", human::count(shards.failed));
    }
    if microshards.failed > 0 {
        let see = hint::command("failures", path);
        text += &format!(" {} microshards failed: see `{see}`.", human::count(microshards.failed));
    }
    if microshards.held > 0 {
        text += &format!(" {} microshards are held.", human::count(microshards.held));
    }
    let refused = queue.refused()?.total();
    if refused > 0 {
        let see = hint::command("sync-back", path);
        text += &format!(" {} refused by the manifest: see `{see}`.", human::count(refused));
    }
    Ok(text)
}
