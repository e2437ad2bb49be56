//! One file per subcommand, short: from what was typed to what is called, and what is printed.

mod cat;
mod failures;
mod init_manifest;
pub mod out;
mod plan;
mod release;
mod retry;
mod run;
mod snapshot;
mod status;
mod sync_back;
mod verify;
mod demo;
mod claims;
mod table;

use std::io::Write;

use anyhow::Result;

use crate::cli::Command;

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0
    Done,
    /// 3: finished, but something that was planned is not in the dataset.
    Incomplete,
    /// 4: another runner is at work.
    Busy,
    /// 130
    Interrupted,
}

impl Exit {
    /// The exit code.
    pub fn code(self) -> i32 {
        match self {
            Exit::Done => 0,
            Exit::Incomplete => 3,
            Exit::Busy => 4,
            Exit::Interrupted => 130,
        }
    }
}

/// Carries out a command; results go to `out`, progress to the terminal.
pub fn run(command: &Command, out: &mut dyn Write) -> Result<Exit> {
    match command {
        Command::InitManifest(args) => init_manifest::run(args, out),
        Command::Snapshot(args) => snapshot::run(args, out),
        Command::Plan(args) => plan::run(args, out),
        Command::Run(args) => run::run(args, out),
        Command::SyncBack(args) => sync_back::run(args, out),
        Command::Status(args) => status::run(args, out),
        Command::Failures(args) => failures::run(args, out),
        Command::Retry(args) => retry::run(args, out),
        Command::Release(args) => release::run(args, out),
        Command::Verify(args) => verify::run(args, out),
        Command::Cat(args) => cat::run(args, out),
        Command::Demo(args) => demo::run(args, out),
    }
}
