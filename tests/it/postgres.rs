//! A real Postgres for the tests: one server per test process, one fresh database per test. Needs the Debian packages
//! postgresql and openssl; without them the tests fail and say so. Role `keyholder` needs the password `open sesame`,
//! every other is trusted; the certificate is for `localhost` only, signed by `Database::root_cert`.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use compact_local::manifest::{Names, Postgres};
use postgres::{Client, NoTls};

use crate::supervisor::{self, Server};

/// The role that needs a password.
pub(crate) const KEYHOLDER: (&str, &str) = ("keyholder", "open sesame");

/// A fresh database.
pub(crate) struct Database {
    /// `postgres://postgres@127.0.0.1:port/name`.
    pub(crate) url: String,
    /// Its name.
    pub(crate) name: String,
    /// The server's port.
    pub(crate) port: u16,
    /// The certificate that signed the server's.
    pub(crate) root_cert: PathBuf,
}

/// Makes a fresh database, and the server before the first one.
pub(crate) fn database() -> Database {
    make("")
}

fn make(options: &str) -> Database {
    static SERVER: OnceLock<(Server, PathBuf)> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (server, dir) = SERVER.get_or_init(start);
    let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    connect(&url(server.port, "postgres")).batch_execute(&format!("CREATE DATABASE {name} {options}")).unwrap();
    Database { url: url(server.port, &name), name, port: server.port, root_cert: dir.join("ca.crt") }
}

impl Database {
    /// A connection of the test's own.
    pub(crate) fn client(&self) -> Client {
        connect(&self.url)
    }

    /// Another database with the same content. Nobody else may be connected to this one.
    pub(crate) fn copied(&self) -> Database {
        make(&format!("TEMPLATE {}", self.name))
    }

    /// The manifest under our own names; the tables may not exist yet.
    pub(crate) fn manifest(&self) -> Postgres {
        Postgres::connect(Some(&self.url), names()).unwrap()
    }

    /// The manifest with its tables, and microshards 1 to `count` of run `r`: odd ids are `en`, even ones `de`.
    pub(crate) fn filled(&self, count: i64) -> Postgres {
        let mut manifest = self.manifest();
        manifest.init().unwrap();
        fill(&mut self.client(), "r", 1..=count);
        manifest
    }
}

/// Our own names.
pub(crate) fn names() -> Names {
    Names::from_args("final_export_microshards", "final_export_shards", &[]).unwrap()
}

/// Inserts microshards under our own names.
pub(crate) fn fill(client: &mut Client, run_id: &str, ids: std::ops::RangeInclusive<i64>) {
    client
        .execute(
            "INSERT INTO final_export_microshards (microshard_id, run_id, video_id, language, uri, segment_count, \
             byte_size, sha256, created_at, updated_at) \
             SELECT i, $1, 'video' || i, CASE i % 2 WHEN 1 THEN 'en' ELSE 'de' END, 's3://bucket/' || i || '.jsonl.zst', \
             i % 100, 1000 + i, repeat(lpad(to_hex(i % 256), 2, '0'), 32), \
             'epoch'::timestamptz + i * interval '1 second', 'epoch'::timestamptz + i * interval '1 microsecond' \
             FROM generate_series($2::int8, $3::int8) i",
            &[&run_id, ids.start(), ids.end()],
        )
        .unwrap();
}

fn connect(url: &str) -> Client {
    Client::connect(url, NoTls).unwrap()
}

fn url(port: u16, database: &str) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/{database}?sslmode=disable")
}

fn start() -> (Server, PathBuf) {
    let bin = binaries();
    let dir = supervisor::directory("compact-local-postgres-");
    let data = dir.join("data");
    let data = data.to_str().unwrap();
    supervisor::run(&[
        &format!("{bin}/initdb"),
        "-D",
        data,
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-sync",
    ]);
    let (role, password) = KEYHOLDER;
    let hba = dir.join("data/pg_hba.conf");
    let trust = std::fs::read_to_string(&hba).unwrap();
    std::fs::write(
        &hba,
        format!("host all {role} 127.0.0.1/32 scram-sha-256\nhost all {role} ::1/128 scram-sha-256\n{trust}"),
    )
    .unwrap();
    certificates(&dir);
    let sockets = dir.to_str().unwrap().to_owned();
    let server = supervisor::start(&dir, "ready to accept connections", |port| {
        let mut arguments =
            vec![format!("{bin}/postgres"), "-D".to_owned(), data.to_owned(), "-p".to_owned(), port.to_string()];
        let (cert, key) = (format!("ssl_cert_file={sockets}/server.crt"), format!("ssl_key_file={sockets}/server.key"));
        let sockets = format!("unix_socket_directories={sockets}");
        for setting in
            ["listen_addresses=127.0.0.1", "fsync=off", "ssl=on", "max_connections=200", &cert, &key, &sockets]
        {
            arguments.extend(["-c".to_owned(), setting.to_owned()]);
        }
        arguments
    });
    let mut client = connect(&url(server.port, "postgres"));
    client.batch_execute(&format!("CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{password}'")).unwrap();
    (server, dir)
}

fn binaries() -> String {
    let versions: Vec<_> =
        std::fs::read_dir("/usr/lib/postgresql").map(|entries| entries.flatten().collect()).unwrap_or_default();
    let mut bins: Vec<PathBuf> = versions.iter().map(|version| version.path().join("bin")).collect();
    bins.retain(|bin| bin.join("initdb").is_file() && bin.join("postgres").is_file());
    bins.sort();
    let bin = bins.pop().expect("no Postgres server under /usr/lib/postgresql: install the Debian package postgresql");
    bin.to_str().unwrap().to_owned()
}

/// A root, and a server's certificate for `localhost`, not for 127.0.0.1.
pub(crate) fn certificates(dir: &Path) {
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    std::fs::write(at("names"), "subjectAltName=DNS:localhost\n").unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    openssl(&format!("req -x509 {key} -subj /CN=root -keyout {} -out {}", at("ca.key"), at("ca.crt")));
    openssl(&format!("req {key} -subj /CN=server -keyout {} -out {}", at("server.key"), at("server.csr")));
    openssl(&format!(
        "x509 -req -in {} -CA {} -CAkey {} -CAcreateserial -days 2 -extfile {} -out {}",
        at("server.csr"),
        at("ca.crt"),
        at("ca.key"),
        at("names"),
        at("server.crt")
    ));
    supervisor::give(&dir.join("server.key"));
}

pub(crate) fn openssl(arguments: &str) {
    let output = std::process::Command::new("openssl").args(arguments.split_whitespace()).output();
    let output = output.expect("no openssl: install the Debian package openssl");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
