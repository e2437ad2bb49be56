//! `run`: builds and publishes what is pending.

use std::io::Write;

use anyhow::Result;
use microshard_queue::GroupStatus;

use super::Exit;
use crate::cli;
use crate::compact::{self, Ended};
use crate::config::Config;
use crate::interrupt::Interrupt;
use crate::memory;
use crate::monitor;

pub(super) fn run(args: &cli::Run, out: &mut dyn Write) -> Result<Exit> {
    let config = Config::from_args(args)?;
    let interrupt = Interrupt::install()?;
    let monitor = monitor::for_stderr();
    let ended = compact::run(&config, monitor.as_ref(), &interrupt)?;
    let exit = match ended {
        Ended::Done(total) => {
            writeln!(out, "{}", summary(&total))?;
            exit(&total)
        }
        Ended::Interrupted(total) => {
            writeln!(out, "interrupted; {} What is pending is built by the next run.", summary(&total))?;
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
pub(super) fn exit(total: &GroupStatus) -> Exit {
    if total.microshards.failed > 0 { Exit::SomeFailed } else { Exit::Done }
}

pub(super) fn summary(total: &GroupStatus) -> String {
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
        text += &format!(" {} microshards failed: see `compact-local failures`.", human::count(microshards.failed));
    }
    if microshards.held > 0 {
        text += &format!(" {} microshards are held.", human::count(microshards.held));
    }
    text
}
