//! A TCP proxy in front of Postgres that cuts a connection where a test says: before a COMMIT reaches the server, after the
//! server has carried it out and before its answer comes back, or in the middle of what the server sends.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Where the connection is cut, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Never,
    /// The server never hears of this COMMIT, the first being 1.
    BeforeCommit(u32),
    /// The server has committed, and nobody hears of it.
    AfterCommit(u32),
    /// After so many bytes from the server.
    AfterBytes(u64),
}

#[derive(Debug)]
struct State {
    cut: Cut,
    /// Connections that are closed at once after the cut, as by a server that is down.
    refusals: u32,
    commits: u32,
    bytes: u64,
    was_cut: bool,
}

pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    /// In front of the server on `server` of this machine.
    pub(crate) fn start(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = State { cut: Cut::Never, refusals: 0, commits: 0, bytes: 0, was_cut: false };
        let proxy = Proxy { port, state: Arc::new(Mutex::new(state)) };
        let state = Arc::clone(&proxy.state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if !refuses(&state) {
                    serve(client, TcpStream::connect(("127.0.0.1", server)).unwrap(), &state);
                }
            }
        });
        proxy
    }

    /// From now on: where to cut, and how many connections are refused after that.
    pub(crate) fn cut(&self, cut: Cut, refusals: u32) {
        *self.state.lock().unwrap() = State { cut, refusals, commits: 0, bytes: 0, was_cut: false };
    }

    /// COMMITs and bytes from the server since then, and whether there was a cut.
    pub(crate) fn seen(&self) -> (u32, u64, bool) {
        let state = self.state.lock().unwrap();
        (state.commits, state.bytes, state.was_cut)
    }
}

fn refuses(state: &Mutex<State>) -> bool {
    let mut state = state.lock().unwrap();
    let refuses = state.was_cut && state.refusals > 0;
    state.refusals -= u32::from(refuses);
    refuses
}

/// Two threads for a connection, which end with it.
fn serve(client: TcpStream, server: TcpStream, state: &Arc<Mutex<State>>) {
    let is_lost = Arc::new(AtomicBool::new(false));
    for is_asking in [true, false] {
        let (client, server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (state, is_lost) = (Arc::clone(state), Arc::clone(&is_lost));
        std::thread::spawn(move || {
            let _ended = match is_asking {
                true => ask(&client, &server, &state, &is_lost),
                false => answer(&client, &server, &state, &is_lost),
            };
            let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both)); // closed already, mostly
        });
    }
}

/// Passes the client's messages on, one at a time: a length, and but for the first a letter before it.
fn ask(mut client: &TcpStream, mut server: &TcpStream, state: &Mutex<State>, is_lost: &AtomicBool) -> io::Result<()> {
    let mut header = 4;
    loop {
        let mut message = vec![0; header];
        client.read_exact(&mut message)?;
        let length = u32::from_be_bytes(message[header - 4..].try_into().unwrap()) as usize - 4;
        message.resize(header + length, 0);
        client.read_exact(&mut message[header..])?;
        if message.starts_with(b"Q") && message.ends_with(b"COMMIT\0") {
            let mut state = state.lock().unwrap();
            state.commits += 1;
            if state.cut == Cut::BeforeCommit(state.commits) {
                state.was_cut = true;
                return Ok(());
            }
            is_lost.store(state.cut == Cut::AfterCommit(state.commits), Ordering::SeqCst);
        }
        server.write_all(&message)?;
        header = 5;
    }
}

/// Passes the server's bytes on.
fn answer(
    mut client: &TcpStream,
    mut server: &TcpStream,
    state: &Mutex<State>,
    is_lost: &AtomicBool,
) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let read = server.read(&mut bytes)?;
        {
            let mut state = state.lock().unwrap();
            state.bytes += read as u64;
            let is_enough = matches!(state.cut, Cut::AfterBytes(most) if state.bytes > most && !state.was_cut);
            // All earlier questions have been answered, so this is the answer to COMMIT: it is done.
            if is_lost.load(Ordering::SeqCst) || is_enough {
                state.was_cut = true;
                return Ok(());
            }
        }
        if read == 0 {
            return Ok(());
        }
        client.write_all(&bytes[..read])?;
    }
}
