//! An HTTP origin that does what a test tells it, path by path: statuses, short bodies, resets, stalls, redirects. It
//! counts connections and keeps what was asked.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What is done with one request.
#[derive(Clone)]
pub(crate) enum Step {
    /// A status, headers and a body with its length.
    Answer(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// 200, with a length that is longer than the body; then the connection is closed.
    Short { announced: usize, body: Vec<u8> },
    /// 200 without a length: the body ends with the connection.
    Unannounced(Vec<u8>),
    /// Exactly these bytes, then the connection is closed.
    Raw(Vec<u8>),
    /// The connection is reset: it is closed with the request unread.
    Reset,
    /// No answer until the client hangs up.
    Stall,
    /// The beginning of a body, then nothing until the client hangs up.
    StallIn { announced: usize, body: Vec<u8> },
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
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                state.connections.fetch_add(1, Ordering::SeqCst);
                // A client that hangs up ends its thread.
                std::thread::spawn(move || while let Ok(true) = serve(&state, &stream) {});
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
fn serve(state: &State, mut stream: &TcpStream) -> io::Result<bool> {
    let line = read_line(stream)?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut request = Request { method, target, ..Request::default() };
    let step = state.step(&request);
    if let Step::Reset = step {
        // The headers are left unread: the kernel answers with a reset.
        state.requests.lock().unwrap().push(request);
        return Ok(false);
    }
    loop {
        let line = read_line(stream)?;
        let Some((name, value)) = line.split_once(": ") else { break };
        request.headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = request.headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    stream.take(length).read_to_end(&mut request.body)?;
    let is_head = request.method == "HEAD";
    state.requests.lock().unwrap().push(request);
    match step {
        Step::Answer(status, headers, body) => {
            let mut head = format!("HTTP/1.1 {status} Said So\r\n");
            for (name, value) in headers {
                head += &format!("{name}: {value}\r\n");
            }
            if status != 204 {
                head += &format!("content-length: {}\r\n", body.len());
            }
            let body = if is_head { vec![] } else { body };
            stream.write_all(&[head.as_bytes(), b"\r\n", &body].concat())?;
            return Ok(true);
        }
        Step::Short { announced, body } => stream.write_all(&announcing(announced, &body))?,
        Step::Unannounced(body) => {
            stream.write_all(&[b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", &body[..]].concat())?
        }
        Step::Raw(bytes) => stream.write_all(&bytes)?,
        Step::StallIn { announced, body } => {
            stream.write_all(&announcing(announced, &body))?;
            stream.read_exact(&mut [0])?;
        }
        Step::Stall => stream.read_exact(&mut [0])?,
        Step::Reset => {}
    }
    stream.shutdown(std::net::Shutdown::Both)?;
    Ok(false)
}

fn announcing(announced: usize, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\ncontent-length: {announced}\r\n\r\n").as_bytes(), body].concat()
}

/// Byte by byte, so that what follows stays unread.
fn read_line(mut stream: &TcpStream) -> io::Result<String> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\r\n") {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    line.truncate(line.len() - 2);
    Ok(String::from_utf8_lossy(&line).into_owned())
}
