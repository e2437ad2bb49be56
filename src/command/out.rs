//! Standard output, whose reader may have gone (`failures | head`): that is no failure, but no reason to go on either.
//! Rust ignores SIGPIPE, so it comes as an error; it is given a type of its own here, as a broken pipe of the network
//! must never be taken for it.

use std::io::{self, Write};

/// Nobody reads standard output any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("standard output was closed by its reader")]
pub struct StdoutClosed;

/// Writes to standard output.
#[derive(Debug)]
pub struct Out<W>(pub W);

impl<W: Write> Write for Out<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(closed)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(closed)
    }
}

fn closed(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe { io::Error::other(StdoutClosed) } else { error }
}

/// Whether `error` says that nobody reads our output any more.
pub fn is_closed(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        io.and_then(io::Error::get_ref).is_some_and(|inner| inner.is::<StdoutClosed>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_closed_by_its_reader_is_told_from_a_full_disk_and_from_the_network() {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let closed = anyhow::Error::from(writeln!(Out(writer), "x").expect_err("closed")).context("printing");
        assert!(is_closed(&closed));
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("opens");
        assert!(!is_closed(&writeln!(Out(full), "x").expect_err("full").into()));
        let network = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(!is_closed(&anyhow::Error::from(network).context("failed to put s3://bucket/key")));
    }
}
