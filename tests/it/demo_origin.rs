//! The demo's origin: what is below its folder is served byte for byte, nothing else ever is, and it ends when dropped.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use compact_local::demo::origin::Origin;

/// A folder `served` beside a secret that must stay where it is.
fn served() -> (tempfile::TempDir, Origin) {
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path().join("served");
    fs::create_dir_all(root.join("en/deep")).expect("folders");
    fs::write(root.join("en/deep/a b+ü.jsonl"), "{}\n").expect("a file");
    fs::write(root.join("large"), vec![7; 3_000_000]).expect("a file");
    fs::write(dir.path().join("secret"), "secret").expect("a file");
    std::os::unix::fs::symlink(dir.path(), root.join("out")).expect("a link");
    let origin = Origin::start(&root).expect("starts");
    (dir, origin)
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(origin: &Origin) -> Client {
        let url = origin.url();
        let address = url.strip_prefix("http://").expect("an http url");
        Client(BufReader::new(TcpStream::connect(address).expect("connects")))
    }

    fn send(&mut self, head: &str) -> (String, Vec<u8>) {
        write!(self.0.get_mut(), "{head}\r\nHost: x\r\n\r\n").expect("sends");
        let mut status = String::new();
        self.0.read_line(&mut status).expect("a status line");
        let mut bytes = 0;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a header");
            match line.trim_end().split_once(": ") {
                Some(("Content-Length", value)) => bytes = value.parse().expect("a length"),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; if head.starts_with("HEAD") { 0 } else { bytes }];
        self.0.read_exact(&mut body).expect("a body");
        (status[9..12].to_owned(), body)
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.0.fill_buf(), Ok([]) | Err(_))
    }
}

#[test]
fn files_are_served_byte_for_byte_over_one_connection() {
    let (_dir, origin) = served();
    let mut client = Client::connect(&origin);
    assert_eq!(client.send("GET /en/deep/a%20b%2B%C3%BC.jsonl HTTP/1.1"), ("200".into(), b"{}\n".to_vec()));
    assert_eq!(client.send("GET /large HTTP/1.1"), ("200".into(), vec![7; 3_000_000]));
    assert_eq!(client.send("HEAD /large HTTP/1.1"), ("200".into(), Vec::new()));
    assert_eq!(client.send("GET /absent HTTP/1.1").0, "404");
    assert_eq!(client.send("DELETE /large HTTP/1.1").0, "405");
    assert_eq!(client.send("GET /large?x=1 HTTP/1.1").0, "200");
    client.send("GET /absent HTTP/1.1\r\nConnection: close");
    assert!(client.is_closed());
}

#[test]
fn nothing_outside_the_folder_is_served() {
    let (dir, origin) = served();
    let mut client = Client::connect(&origin);
    let absolute = dir.path().join("secret");
    for target in [
        "/../secret",
        "/en/../../secret",
        "/%2e%2e/secret",
        "/en/%2E%2E/%2e./%2e%2e/secret",
        "/out/secret",
        &format!("/{}", absolute.display()),
        &format!("{}", absolute.display()),
        "/en",
        "/",
        "/large%00",
        "/%ff",
    ] {
        assert_eq!(client.send(&format!("GET {target} HTTP/1.1")).0, "404", "{target}");
    }
}

#[test]
fn a_request_that_is_none_ends_its_connection_only() {
    let (_dir, origin) = served();
    let mut garbage = Client::connect(&origin);
    garbage.0.get_mut().write_all(b"\xff\xfe\r\n\r\n").expect("sends");
    assert!(garbage.is_closed());
    let mut endless = Client::connect(&origin);
    endless.0.get_mut().write_all(&[b'x'; 16 * 1024]).expect("sends");
    assert!(endless.is_closed());
    assert_eq!(Client::connect(&origin).send("GET /large HTTP/1.1").0, "200");
}

#[test]
fn dropping_the_origin_ends_its_connections() {
    let (_dir, origin) = served();
    let mut client = Client::connect(&origin);
    assert_eq!(client.send("GET /large HTTP/1.1").0, "200");
    drop(origin);
    assert!(client.is_closed());
}
