//! An origin that is far away: it holds the files below a directory in memory, and waits before each answer. A thread for
//! each connection, so that nothing but the wait and the client sets the pace.
//!
//!     cargo bench --bench origin -- DIR --delay 30ms --port 8080

#![expect(clippy::print_stdout, reason = "tells where it listens")]

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Parser;

/// Connections served at the same time; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 1024;
const STACK_BYTES: usize = 64 * 1024;

#[derive(Parser)]
struct Cli {
    /// Whose files are served.
    dir: Option<PathBuf>,
    /// How long each answer is held back.
    #[arg(long, default_value = "30ms", value_parser = humantime::parse_duration)]
    delay: Duration,
    /// On 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Whole answers, by the request's path.
type Answers = HashMap<String, Vec<u8>>;

fn main() -> io::Result<()> {
    let cli = Cli::parse();
    let Some(dir) = cli.dir else {
        println!("origin: nothing served; give a directory");
        return Ok(());
    };
    let mut answers = Answers::new();
    load(&dir, "", &mut answers)?;
    let answers = Arc::new(answers);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, cli.port))?;
    println!("serving {} files at http://{}, each after {:?}", answers.len(), listener.local_addr()?, cli.delay);
    let (enter, leave) = crossbeam_channel::bounded(CONNECTIONS_MAX);
    for stream in listener.incoming() {
        let (stream, answers, leave) = (stream?, Arc::clone(&answers), leave.clone());
        let _ = enter.send(()); // waits for room; `leave` is here, so it cannot fail
        thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
            let _ = serve(&stream, &answers, cli.delay); // the client sees the closed connection
            let _ = leave.recv();
        })?;
    }
    Ok(())
}

/// Reads all files below `dir`.
fn load(dir: &Path, prefix: &str, answers: &mut Answers) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = format!("{prefix}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            load(&entry.path(), &path, answers)?;
        } else {
            let body = std::fs::read(entry.path())?;
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            answers.insert(path, [head.as_bytes(), &body].concat());
        }
    }
    Ok(())
}

/// Answers requests until the client is done. Every request is taken for a GET without a body.
fn serve(stream: &TcpStream, answers: &Answers, delay: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut requests, mut to, mut line) = (BufReader::with_capacity(4096, stream), stream, String::new());
    while requests.read_line(&mut line)? > 0 {
        let target = line.split(' ').nth(1).unwrap_or_default();
        let answer = answers.get(target.split('?').next().unwrap_or_default());
        skip_headers(&mut requests)?;
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        to.write_all(answer.map_or(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", Vec::as_slice))?;
        line.clear();
    }
    Ok(())
}

fn skip_headers(requests: &mut impl BufRead) -> io::Result<()> {
    let mut line = String::new();
    while requests.read_line(&mut line)? > 2 {
        line.clear();
    }
    Ok(())
}
