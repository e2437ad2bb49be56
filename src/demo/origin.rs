//! The demo's own origin: serves the files below one folder over HTTP/1.1 on 127.0.0.1, keep-alive, a thread a connection.
//! It must never serve a file outside its folder, whatever the path or a symbolic link says. Its threads are not the
//! pipeline's: they end when the origin is dropped.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use percent_encoding::percent_decode_str;

/// Connections served at the same time. At the bound every answer closes its connection, so that those who wait in the
/// kernel's queue get their turn.
const CONNECTIONS_MAX: usize = 1024;
/// How long to wait for a connection to end when the system has no descriptor left for another.
const PAUSE: Duration = Duration::from_millis(50);
/// No thread here keeps more than a few paths on its stack.
const STACK_BYTES: usize = 128 * 1024;
/// A request's line and headers together.
const HEAD_BYTES_MAX: u64 = 16 * 1024;
/// Most microshards and their headers leave in one write.
const WRITE_BUFFER_BYTES: usize = 32 * 1024;

/// A running origin; stops when dropped.
#[derive(Debug)]
pub struct Origin {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Without symbolic links, so that a file's true path can be compared with it.
    root: PathBuf,
    connections: Mutex<Connections>,
    /// A connection ended, or the origin stops.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Connections {
    next: u64,
    open: HashMap<u64, Arc<TcpStream>>,
    stopping: bool,
}

impl Origin {
    /// Serves the files below `root` on a free port of 127.0.0.1.
    pub fn start(root: &Path) -> io::Result<Origin> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let root = root.canonicalize()?;
        let shared = Arc::new(Shared { root, connections: Mutex::default(), changed: Condvar::new() });
        let acceptor = thread::Builder::new().name("origin".into()).stack_size(STACK_BYTES).spawn({
            let shared = Arc::clone(&shared);
            move || accept_all(&listener, &shared)
        })?;
        Ok(Origin { address, shared, acceptor: Some(acceptor) })
    }

    /// `http://127.0.0.1:PORT`, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        let mut connections = self.shared.lock();
        connections.stopping = true;
        for stream in connections.open.values() {
            let _ = stream.shutdown(Shutdown::Both); // the client may have closed it already
        }
        drop(connections);
        self.shared.changed.notify_all();
        let _ = TcpStream::connect(self.address); // wakes the acceptor; where it fails there is none to wake
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join(); // its panic was reported by the panic hook
        }
        let connections = self.shared.lock();
        drop(self.shared.changed.wait_while(connections, |connections| !connections.open.is_empty()));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room, then takes the connection in; `None` when the origin stops.
    fn admit(&self, stream: Arc<TcpStream>) -> Option<u64> {
        let full = |connections: &mut Connections| connections.open.len() >= CONNECTIONS_MAX && !connections.stopping;
        let mut connections = self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        if connections.stopping {
            return None;
        }
        let id = connections.next;
        connections.next += 1;
        connections.open.insert(id, stream);
        Some(id)
    }

    fn is_full(&self) -> bool {
        self.lock().open.len() >= CONNECTIONS_MAX
    }

    fn leave(&self, id: u64) {
        self.lock().open.remove(&id);
        self.changed.notify_all();
    }

    /// The file that `target` (a request's path, percent-encoded) names, if it is one below the root.
    fn open(&self, target: &str) -> Option<(File, u64)> {
        let encoded = target.split(['?', '#']).next()?.strip_prefix('/')?;
        let relative = percent_decode_str(encoded).decode_utf8().ok()?;
        // Whatever `..`, an absolute path or a symbolic link make of it, the true path decides.
        let path = self.root.join(&*relative).canonicalize().ok()?;
        if !path.starts_with(&self.root) {
            return None;
        }
        let file = File::open(path).ok()?;
        let metadata = file.metadata().ok()?;
        metadata.is_file().then_some((file, metadata.len()))
    }
}

fn accept_all(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream.map(Arc::new) else {
            drop(shared.changed.wait_timeout(shared.lock(), PAUSE));
            continue;
        };
        let Some(id) = shared.admit(Arc::clone(&stream)) else { return };
        let serving = Arc::clone(shared);
        let spawned = thread::Builder::new().name("origin".into()).stack_size(STACK_BYTES).spawn(move || {
            let _ = serve(&stream, &serving); // the client sees the closed connection; there is nobody else to tell
            serving.leave(id);
        });
        if spawned.is_err() {
            shared.leave(id); // closes the connection
        }
    }
}

/// Answers requests until the client is done or one cannot be answered.
fn serve(stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut requests = BufReader::new(stream);
    let mut answers = BufWriter::with_capacity(WRITE_BUFFER_BYTES, stream);
    let mut head = Vec::new();
    while let Some(mut request) = read_request(&mut requests, &mut head)? {
        request.last |= shared.is_full();
        answer(&request, shared, &mut answers)?;
        answers.flush()?;
        if request.last {
            break;
        }
    }
    Ok(())
}

struct Request<'a> {
    method: &'a str,
    target: &'a str,
    /// The client wants the connection closed, or sends a body that nobody here reads.
    last: bool,
}

/// Reads one request's line and headers; `None` at the end of the connection.
fn read_request<'a>(requests: &mut impl BufRead, head: &'a mut Vec<u8>) -> io::Result<Option<Request<'a>>> {
    head.clear();
    let mut limited = requests.take(HEAD_BYTES_MAX);
    let mut line_start = 0;
    while limited.read_until(b'\n', head)? > 0 {
        if matches!(head.get(line_start..), Some(b"\r\n" | b"\n")) && line_start > 0 {
            return parse(head).map(Some);
        }
        line_start = head.len();
    }
    if head.is_empty() { Ok(None) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn parse(head: &[u8]) -> io::Result<Request<'_>> {
    let text = std::str::from_utf8(head).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut lines = text.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let last = version != "HTTP/1.1" || lines.filter_map(|line| line.split_once(':')).any(ends_connection);
    Ok(Request { method, target, last })
}

fn ends_connection((name, value): (&str, &str)) -> bool {
    let (name, value) = (name.trim(), value.trim());
    name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close")
        || name.eq_ignore_ascii_case("content-length") && value != "0"
        || name.eq_ignore_ascii_case("transfer-encoding")
}

fn answer(request: &Request<'_>, shared: &Shared, to: &mut impl Write) -> io::Result<()> {
    let close = if request.last { "Connection: close\r\n" } else { "" };
    if !matches!(request.method, "GET" | "HEAD") {
        return write!(to, "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\n{close}Content-Length: 0\r\n\r\n");
    }
    let Some((mut file, bytes)) = shared.open(request.target) else {
        return write!(to, "HTTP/1.1 404 Not Found\r\n{close}Content-Length: 0\r\n\r\n");
    };
    let kind = "Content-Type: application/octet-stream";
    write!(to, "HTTP/1.1 200 OK\r\n{kind}\r\n{close}Content-Length: {bytes}\r\n\r\n")?;
    if request.method == "GET" && io::copy(&mut Read::by_ref(&mut file).take(bytes), to)? < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into()); // the file shrank: the client must see a short body
    }
    Ok(())
}
