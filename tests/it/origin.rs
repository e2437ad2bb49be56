//! An HTTP origin that does what a test tells it, path by path: statuses, short bodies, resets, stalls, redirects. It
//! counts connections and keeps what was asked.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What is done with one request.
#[derive(Clone)]
pub(crate) enum Step {
    /// A status, headers and a body with its length.
    Answer(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// This object, as a server that knows ranges and conditions has it.
    Ranged(Object),
    /// The same, but the connection is closed after so many bytes of the body.
    Cut(usize, Object),
    /// 200, with a length that is longer than the body; then the connection is closed.
    Short { announced: usize, body: Vec<u8> },
    /// 200 without a length: the body ends with the connection.
    Unannounced(Vec<u8>),
    /// Exactly these bytes, then the connection is closed.
    Raw(Vec<u8>),
    /// These bytes, one every few milliseconds: a slow origin, which is never silent for long.
    Trickle(Vec<u8>),
    /// The connection is reset: it is closed with the request unread.
    Reset,
    /// 200 with this body, once the sender is gone.
    After(crossbeam_channel::Receiver<()>, Vec<u8>),
    /// 200 with a body shorter than announced, once the sender is gone.
    AfterShort(crossbeam_channel::Receiver<()>),
    /// No answer until the client hangs up.
    Stall,
    /// The beginning of a body, then nothing until the client hangs up.
    StallIn { announced: usize, body: Vec<u8> },
}

/// An object with its ETag, in quotes if it is a strong one.
#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) etag: &'static str,
    pub(crate) bytes: Vec<u8>,
}

impl Object {
    /// Status, headers and body.
    fn answer(&self, request: &Request) -> (u16, Vec<(&'static str, String)>, &[u8]) {
        let (tag, size) = (("etag", self.etag.to_owned()), self.bytes.len());
        if request.headers.get("if-match").is_some_and(|etag| etag != self.etag) {
            return (412, vec![tag], &[]);
        }
        let Some(range) = request.headers.get("range") else { return (200, vec![tag], &self.bytes) };
        let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let (start, end) = match (first.parse::<usize>().ok(), last.parse::<usize>().ok()) {
            (Some(first), last) => (first, last.map_or(size, |last| size.min(last + 1))),
            (None, last) => (size.saturating_sub(last.unwrap()), size),
        };
        if start >= end {
            return (416, vec![tag, ("content-range", format!("bytes */{size}"))], &[]);
        }
        let range = ("content-range", format!("bytes {start}-{}/{size}", end - 1));
        (206, vec![tag, range], &self.bytes[start..end])
    }
}

pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Step {
    Step::Answer(200, vec![], body.into())
}

pub(crate) fn status(status: u16) -> Step {
    Step::Answer(status, vec![], b"an explanation".to_vec())
}

pub(crate) fn redirect(to: &str) -> Step {
    Step::Answer(302, vec![("location", to.into())], vec![])
}

/// A request that came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path and query, as they were sent.
    pub(crate) target: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

#[derive(Default)]
struct State {
    steps: Mutex<HashMap<String, Vec<Step>>>,
    requests: Mutex<Vec<Request>>,
    connections: AtomicUsize,
}

pub(crate) struct Origin {
    pub(crate) url: String,
    state: Arc<State>,
}

impl Origin {
    pub(crate) fn start() -> Origin {
        Origin::at("127.0.0.1:0".parse().unwrap())
    }

    /// At an address that was refused before.
    pub(crate) fn at(address: SocketAddr) -> Origin {
        let listener = TcpListener::bind(address).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                state.connections.fetch_add(1, Ordering::SeqCst);
                // A client that hangs up ends its thread.
                let mut reader = BufReader::new(stream);
                std::thread::spawn(move || while let Ok(true) = serve(&state, &mut reader) {});
            }
        });
        Origin { url, state }
    }

    /// What `PATH` or `METHOD PATH` is answered, one step a request; the last is repeated. Unknown paths are 404.
    pub(crate) fn on(&self, route: &str, steps: impl IntoIterator<Item = Step>) -> &Origin {
        self.state.steps.lock().unwrap().insert(route.into(), steps.into_iter().collect());
        self
    }

    /// Connections made to it.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// What came, in order; `METHOD` and path of each.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.requests().iter().map(|r| format!("{} {}", r.method, r.target.split('?').next().unwrap())).collect()
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }
}

impl State {
    fn step(&self, request: &Request) -> Step {
        let path = request.target.split('?').next().unwrap();
        let mut steps = self.steps.lock().unwrap();
        for route in [format!("{} {path}", request.method), path.to_owned()] {
            match steps.get_mut(&route) {
                Some(steps) if steps.len() > 1 => return steps.remove(0),
                Some(steps) => return steps[0].clone(),
                None => {}
            }
        }
        Step::Answer(404, vec![], vec![])
    }
}

/// Serves one request; whether the connection stays open.
fn serve(state: &State, reader: &mut BufReader<TcpStream>) -> io::Result<bool> {
    let line = peek_line(reader.get_ref())?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut request = Request { method, target, ..Request::default() };
    let mut step = state.step(&request);
    if let Step::Reset = step {
        // The headers are left unread: the kernel answers with a reset.
        state.requests.lock().unwrap().push(request);
        return Ok(false);
    }
    read_line(reader)?;
    loop {
        let line = read_line(reader)?;
        let Some((name, value)) = line.split_once(": ") else { break };
        request.headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = request.headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    reader.take(length).read_to_end(&mut request.body)?;
    let mut stream = reader.get_ref();
    let is_head = request.method == "HEAD";
    state.requests.lock().unwrap().push(request.clone());
    if let Step::After(moment, body) = step {
        let _ = moment.recv(); // nothing is ever sent
        step = ok(body);
    } else if let Step::AfterShort(moment) = step {
        let _ = moment.recv();
        step = Step::Short { announced: 100, body: vec![] };
    }
    if let Step::Ranged(object) = &step {
        let (status, headers, body) = object.answer(&request);
        step = Step::Answer(status, headers, body.to_vec());
    }
    match step {
        Step::Answer(status, headers, body) => {
            let head = head(status, headers, body.len());
            let body = if is_head { vec![] } else { body };
            stream.write_all(&[head.as_bytes(), &body].concat())?;
            return Ok(true);
        }
        Step::Cut(after, object) => {
            let (status, headers, body) = object.answer(&request);
            let head = head(status, headers, body.len());
            stream.write_all(&[head.as_bytes(), &body[..after.min(body.len())]].concat())?
        }
        Step::Short { announced, body } => stream.write_all(&announcing(announced, &body))?,
        Step::Unannounced(body) => {
            stream.write_all(&[b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", &body[..]].concat())?
        }
        Step::Raw(bytes) => stream.write_all(&bytes)?,
        Step::Trickle(bytes) => {
            for byte in bytes {
                stream.write_all(&[byte])?;
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        Step::StallIn { announced, body } => {
            stream.write_all(&announcing(announced, &body))?;
            stream.read_exact(&mut [0])?;
        }
        Step::Stall => stream.read_exact(&mut [0])?,
        Step::Reset | Step::After(..) | Step::AfterShort(_) | Step::Ranged(_) => {}
    }
    stream.shutdown(std::net::Shutdown::Both)?;
    Ok(false)
}

fn head(status: u16, headers: Vec<(&'static str, String)>, length: usize) -> String {
    let mut head = format!("HTTP/1.1 {status} Said So\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    if status != 204 {
        head += &format!("content-length: {length}\r\n");
    }
    head + "\r\n"
}

pub(crate) fn announcing(announced: usize, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\ncontent-length: {announced}\r\n\r\n").as_bytes(), body].concat()
}

/// The request line, left unread in the socket. Clients wait for an answer before they ask again, and send the line in one;
/// but for a proxy they send it word by word.
fn peek_line(stream: &TcpStream) -> io::Result<String> {
    let mut bytes = [0; 8192];
    loop {
        let length = stream.peek(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes[..length]);
        match text.split_once("\r\n") {
            None if length > 0 && b"CONNECT ".starts_with(&bytes[..length.min(8)]) => std::thread::yield_now(),
            line => {
                let line = line.map_or(&*text, |(line, _)| line);
                return if line.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(line.into()) };
            }
        }
    }
}

fn read_line(reader: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    Ok(line.trim_end_matches("\r\n").to_owned())
}
