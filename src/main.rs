//! Parse, run, exit. The only caller of `process::exit`.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)]
#![warn(clippy::indexing_slicing, clippy::string_slice)]

use std::io::{self, BufWriter, Write};

use clap::Parser;
use compact_local::cli::Cli;
use compact_local::command::{self, out, out::Out};
use compact_local::{error, limits};

fn main() {
    let cli = Cli::parse();
    let mut out = BufWriter::new(Out(io::stdout().lock()));
    let result = limits::prepare().and_then(|()| command::run(&cli.command, &mut out));
    let flushed = out.flush();
    let code = match result.and_then(|exit| flushed.map(|()| exit).map_err(Into::into)) {
        Ok(exit) => exit.code(),
        // Who reads our output has seen enough: `failures | head`.
        Err(error) if out::is_closed(&error) => 0,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {}", error::sentence(&error));
            1
        }
    };
    std::process::exit(code);
}
