//! The two-step stop, and closed pipes. The first Ctrl-C (or SIGTERM) only sets a flag that lanes look at between phases;
//! the second ends the process at once: what it was doing is repeated at the next start (I4), so nothing is lost.
//!
//! Rust ignores SIGPIPE, so writing to a closed pipe is an error and not a death; `println!` would turn it into a panic
//! and is not used. Commands print through `to_stdout`, and `main` ends quietly where it returned `StdoutClosed`.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code of an interrupted process.
pub const EXIT_CODE: i32 = 130;

/// Whether the run was asked to stop.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    requested: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens for SIGINT and SIGTERM from now on; once per process. `Interrupt::default()` listens for nothing.
    pub fn install() -> io::Result<Interrupt> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the exit must see the flag before this very signal has set it.
            flag::register_conditional_shutdown(signal, EXIT_CODE, Arc::clone(&interrupt.requested))?;
            flag::register(signal, Arc::clone(&interrupt.requested))?;
        }
        Ok(interrupt)
    }

    /// Asks for the stop as the first signal does.
    pub fn request(&self) {
        self.requested.store(true, Ordering::SeqCst);
    }

    /// Whether to claim no more, and to finish or release at the next phase boundary.
    pub fn requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }
}

/// Nobody reads standard output any more, as after `| head`: no failure, but no reason to go on either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("standard output was closed by its reader")]
pub struct StdoutClosed;

/// Writes to standard output, buffered and flushed. The error is a `StdoutClosed` where its reader has gone; a full disk
/// and the like are real errors.
pub fn to_stdout(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    print(io::stdout().lock(), write)
}

fn print(to: impl Write, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let mut buffered = io::BufWriter::new(to);
    match write(&mut buffered).and_then(|()| buffered.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(StdoutClosed.into()),
        result => result.context("failed to write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_closed_by_its_reader_is_told_from_a_full_disk() {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let closed = print(writer, |to| writeln!(to, "x")).expect_err("closed");
        assert_eq!(closed.downcast_ref(), Some(&StdoutClosed));
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("opens");
        let full = print(full, |to| writeln!(to, "x")).expect_err("full");
        assert!(full.downcast_ref::<StdoutClosed>().is_none() && full.to_string().contains("standard output"));
    }
}
