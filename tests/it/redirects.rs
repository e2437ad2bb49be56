//! Redirects of an origin that proves who it is: another such one may be the target, but nothing that anybody on the way
//! could play, and nothing on this machine.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::faults::ROW;
use crate::origin::{Origin, ok, redirect};
use crate::postgres::certificates;
use crate::world::World;

/// The url of a server of `https://localhost`, which redirects `/down` to `elsewhere`, `/disk` to a file and `/aside` to
/// itself; all else is a microshard.
fn tls_origin(certificates: &Path, elsewhere: &str) -> String {
    let chain = CertificateDer::pem_file_iter(certificates.join("server.crt")).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(certificates.join("server.key")).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = Arc::new(builder.with_single_cert(chain, key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let to = [("/down", format!("{elsewhere}/a")), ("/disk", "file:///etc/passwd".into()), ("/aside", "/a".into())];
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let stream = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream);
            let to = to.clone();
            std::thread::spawn(move || serve(stream, &to));
        }
    });
    url
}

/// One request, then the connection is closed.
fn serve(stream: StreamOwned<ServerConnection, TcpStream>, to: &[(&str, String)]) {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    while lines.last().is_none_or(|line| line != "\r\n") {
        let mut line = String::new();
        if reader.read_line(&mut line).is_ok_and(|read| read == 0) {
            return;
        }
        lines.push(line);
    }
    let target = lines[0].split(' ').nth(1).unwrap();
    let answer = match to.iter().find(|(path, _)| *path == target) {
        Some((_, to)) => format!("302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n"),
        None if target.contains("etc") => "404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
        None => format!("200 OK\r\ncontent-length: {}\r\n\r\n{ROW}", ROW.len()),
    };
    let mut stream = reader.into_inner();
    write!(stream, "HTTP/1.1 {answer}").unwrap();
    stream.conn.send_close_notify();
    let _ = stream.flush(); // the client may have hung up
}

#[test]
fn no_redirect_leads_from_https_to_http_or_to_a_file() {
    let (plain, secrets) = (Origin::start(), tempfile::tempdir().unwrap());
    certificates(secrets.path());
    let tls = tls_origin(secrets.path(), &plain.url);
    plain.on("/a", [ok(ROW)]).on("/up", [redirect(&format!("{tls}/a"))]);
    let root = secrets.path().join("ca.crt").display().to_string();
    let world = World::with(vec![("SSL_CERT_FILE", root)]);
    let mut listing = "microshard_id,language,uri,segment_count\n".to_owned();
    let uris = [format!("{tls}/a"), format!("{tls}/aside"), format!("{plain}/up", plain = plain.url)];
    for (id, uri) in uris.iter().chain(&[format!("{tls}/down"), format!("{tls}/disk")]).enumerate() {
        writeln!(listing, "{id},en,{uri},1").unwrap();
    }
    std::fs::write(world.path("listing.csv"), listing).unwrap();
    world.ok("snapshot --manifest listing.csv --run-id r --queue q.db");
    world.run("run --queue q.db --output out").ends(3);
    let failures = world.json("failures --json --queue q.db");
    let sentences: Vec<_> = failures.as_array().unwrap().iter().map(|f| f["sentence"].as_str().unwrap()).collect();
    assert!(sentences.len() == 2 && sentences[0].contains("from https to http"), "{sentences:?}");
    // Without a host it is a path at the origin, where there is no such thing.
    assert!(sentences[1].contains("404"), "{sentences:?}");
    assert_eq!(world.json("status --json --queue q.db")["rows"], uris.len());
    assert_eq!(plain.asked(), ["GET /up"], "what is elsewhere was not asked for");
}
