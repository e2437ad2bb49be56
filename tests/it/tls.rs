//! TLS: whom HTTP origins, S3 and Postgres must be to be believed, what is said where they are not, and that no redirect
//! leads out of TLS. Every server here has the same key and another certificate, on a loopback address of its own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use compact_local::manifest::Postgres;

use crate::microshards::generated;
use crate::nginx::{self, Nginx};
use crate::origin::{Origin, ok, redirect};
use crate::postgres::{names, openssl};
use crate::supervisor;
use crate::world::World;

/// Whose certificate is right.
const GOOD: &str = "127.0.0.5";
/// Servers whose certificate is not, and what is said of it.
const BAD: [(&str, &str); 3] =
    [("127.0.0.2", "not valid for name"), ("127.0.0.3", "expired"), ("127.0.0.4", "UnknownIssuer")];

/// TLS servers of one directory, and the authority that signed for all but the last.
struct Secured {
    nginx: Nginx,
    port: u16,
    authority: PathBuf,
}

impl Secured {
    /// `locations` are those of all servers.
    fn start(locations: &str) -> Secured {
        let dir = supervisor::directory("compact-local-nginx-");
        certificates(&dir);
        let server = |address: &str| {
            format!(
                "server {{ listen {address}:{{port}} ssl; ssl_certificate {{dir}}/{address}.crt; \
                 ssl_certificate_key {{dir}}/server.key; root {{dir}}/root; {locations} }}\n"
            )
        };
        let addresses = BAD.iter().map(|(address, _)| *address).chain([GOOD]);
        let nginx = nginx::start_in(dir.clone(), &addresses.map(server).collect::<String>(), "");
        let port = nginx.url.rsplit(':').next().unwrap().parse().unwrap();
        Secured { nginx, port, authority: dir.join("ca.crt") }
    }

    fn url(&self, address: &str) -> String {
        format!("https://{address}:{}", self.port)
    }

    /// A world that trusts the authority, and nobody else.
    fn world(&self) -> World {
        World::with(vec![("SSL_CERT_FILE", self.authority.to_str().unwrap().to_owned())])
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.nginx.root.join(name), text).unwrap();
    }
}

/// An authority, another one that nobody trusts, and a certificate for each address.
fn certificates(dir: &Path) {
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for name in ["ca", "other"] {
        openssl(&format!("req -x509 {key} -days 2 -subj /CN={name} -keyout {} -out {}", at("ca.key"), at("ca.crt")));
        if name == "ca" {
            openssl(&format!("req {key} -subj /CN=server -keyout {} -out {}", at("server.key"), at("server.csr")));
        }
        let signed: &[(&str, &str, &str)] = match name {
            "ca" => &[
                (GOOD, "IP:127.0.0.5", "20990101000000Z"),
                ("127.0.0.2", "DNS:elsewhere.example", "20990101000000Z"),
                ("127.0.0.3", "IP:127.0.0.3,DNS:localhost", "20210101000000Z"),
            ],
            _ => &[("127.0.0.4", "IP:127.0.0.4", "20990101000000Z")],
        };
        for (address, names, until) in signed {
            sign(dir, address, names, until);
        }
        std::fs::rename(dir.join("ca.crt"), dir.join(format!("{name}.pem"))).unwrap();
    }
    std::fs::rename(dir.join("ca.pem"), dir.join("ca.crt")).unwrap();
    supervisor::give(&dir.join("server.key"));
}

/// Unlike `openssl x509`, `openssl ca` can make a certificate that has expired.
fn sign(dir: &Path, address: &str, names: &str, until: &str) {
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    std::fs::write(dir.join("index.txt"), "").unwrap();
    std::fs::write(dir.join("names"), format!("subjectAltName={names}\n")).unwrap();
    let settings = format!(
        "[ca]\ndefault_ca=it\n[it]\ndatabase={}\nnew_certs_dir={}\ndefault_md=sha256\npolicy=any\nunique_subject=no\n\
         rand_serial=yes\n[any]\ncommonName=supplied\n",
        at("index.txt"),
        dir.display()
    );
    std::fs::write(dir.join("ca.conf"), settings).unwrap();
    openssl(&format!(
        "ca -batch -notext -config {} -cert {} -keyfile {} -in {} -startdate 20200101000000Z -enddate {until} -extfile {} \
         -out {}",
        at("ca.conf"),
        at("ca.crt"),
        at("ca.key"),
        at("server.csr"),
        at("names"),
        at(&format!("{address}.crt"))
    ));
}

#[test]
fn an_origin_with_a_certificate_of_another_host_an_expired_one_or_an_unknown_authoritys_is_refused() {
    let secured = Secured::start("");
    secured.put("a.jsonl", "{}\n");
    let world = secured.world();
    assert_eq!(world.ok(&format!("cat {}/a.jsonl", secured.url(GOOD))), "{}\n");
    for (address, why) in BAD {
        let ran = world.run(&format!("cat {}/a.jsonl", secured.url(address))).ends(1);
        assert!(ran.stdout.is_empty());
        for word in ["TLS", why, address, "SSL_CERT_FILE"] {
            assert!(ran.stderr.contains(word), "no `{word}` in: {}", ran.stderr);
        }
        assert_eq!(ran.stderr.lines().count(), 1, "it was tried again: {}", ran.stderr);
    }
    // The authority is trusted because it is named, and for nothing else.
    let stranger = World::new().run(&format!("cat {}/a.jsonl", secured.url(GOOD))).ends(1).stderr;
    assert!(stranger.contains("UnknownIssuer"), "{stranger}");
}

#[test]
fn a_bucket_behind_a_certificate_that_is_not_its_own_is_never_asked_with_credentials() {
    let secured = Secured::start("");
    std::fs::create_dir(secured.nginx.root.join("b")).unwrap();
    secured.put("b/a.jsonl", "{}\n");
    let world = secured.world();
    let cat =
        |address: &str| world.run(&format!("cat s3://b/a.jsonl --s3-unsigned --s3-endpoint {}", secured.url(address)));
    assert_eq!(cat(GOOD).ends(0).stdout, "{}\n");
    for (address, why) in BAD {
        let stderr = cat(address).ends(1).stderr;
        assert!(stderr.contains("s3://b/a.jsonl") && stderr.contains("TLS") && stderr.contains(why), "{stderr}");
    }
}

#[test]
fn a_run_stops_at_a_certificate_that_is_not_trusted_and_fails_no_microshard() {
    let secured = Secured::start("");
    let world = secured.world();
    generated(&secured.nginx.root, 30, 0);
    let manifest = secured.nginx.root.join("manifest.csv").display().to_string();
    for (address, code) in [(BAD[1].0, 1), (GOOD, 0)] {
        let source = secured.url(address);
        world.ok(&format!("snapshot --manifest {manifest} --source {source} --queue {code}.db"));
        let ran = world.run(&format!("run --queue {code}.db --output out-{code}")).ends(code);
        assert_eq!(ran.stderr.contains("TLS"), code == 1, "{}", ran.stderr);
        let microshards = world.json(&format!("status --json --queue {code}.db"))["microshards"].clone();
        assert_eq!((&microshards["failed"], microshards["pending"] == 30), (&0.into(), code == 1), "{microshards}");
    }
}

/// A proxy in the middle, or an origin that was taken over, could hand out what it likes otherwise.
#[test]
fn no_redirect_leads_from_tls_to_what_nobody_has_signed() {
    let plain = Origin::start();
    let secured = Secured::start(&format!(
        "location = /down {{ return 302 {plain}/a.jsonl; }} location = /file {{ return 302 file:///etc/hostname; }} \
         location = /around {{ return 302 https://127.0.0.3:$server_port/a.jsonl; }} \
         location = /same {{ return 302 /a.jsonl; }}",
        plain = plain.url
    ));
    secured.put("a.jsonl", "{}\n");
    plain.on("/a.jsonl", [ok("{}\n")]).on("/up", [redirect(&format!("{}/a.jsonl", secured.url(GOOD)))]);
    let world = secured.world();
    for (path, why) in [("down", "from https to http"), ("file", "failed to get"), ("around", "expired")] {
        let ran = world.run(&format!("cat {}/{path}", secured.url(GOOD))).ends(1);
        assert!(ran.stderr.contains(why) && ran.stdout.is_empty(), "{ran:?}");
    }
    let good = secured.url(GOOD);
    let uris = [format!("{good}/same"), format!("{}/up", plain.url), format!("{good}/down"), format!("{good}/file")];
    let lines = uris.iter().enumerate().map(|(id, uri)| format!("{id},en,{uri},1\n"));
    let listing = format!("microshard_id,language,uri,segment_count\n{}", lines.collect::<String>());
    std::fs::write(world.path("listing.csv"), listing).unwrap();
    world.ok("snapshot --manifest listing.csv --run-id r --queue q.db");
    world.run("run --queue q.db --output out").ends(3);
    let failures = world.json("failures --json --queue q.db");
    let failed = |index: usize| failures[index]["sentence"].as_str().unwrap().to_owned();
    // Without a host the file is a path at the origin, where there is no such thing.
    assert!(failed(0).contains("from https to http") && failed(1).contains("404"), "{failures}");
    assert_eq!(world.json("status --json --queue q.db")["rows"], 2);
    assert_eq!(plain.asked(), ["GET /up"], "what is elsewhere was asked for without TLS");
}

/// What Postgres says before TLS begins: it takes any request for TLS, and passes all that follows on to `to`.
fn postgres_before(to: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&to).unwrap());
            client.read_exact(&mut [0; 8]).unwrap();
            client.write_all(b"S").unwrap();
            let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
            let _ = std::io::copy(&mut client, &mut server); // ends when either hangs up
        }
    });
    port
}

/// Other faults of a certificate, with a Postgres that is real: `tls_trusts_as_much_as_sslmode_says_and_no_more`.
#[test]
fn a_postgres_whose_certificate_has_expired_is_refused_by_every_mode_that_looks_at_it() {
    let secured = Secured::start("");
    let port = postgres_before(format!("127.0.0.3:{}", secured.port));
    let root = secured.authority.display();
    for mode in ["verify-full", "verify-ca", "require"] {
        let url = format!("postgres://u:hunter2@localhost:{port}/d?sslmode={mode}&sslrootcert={root}");
        let Err(error) = Postgres::connect(Some(&url), names()) else { panic!("connected") };
        let error = format!("{error:#}");
        assert!(error.contains("expired") && !error.contains("hunter2"), "{mode}: {error}");
    }
}

/// A server without TLS, or a man in the middle, answers `N`: whoever asked for TLS gets it, or nothing.
#[test]
fn a_postgres_that_refuses_tls_is_not_spoken_to_without_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (to_test, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut request) = (client.unwrap(), [0; 8]);
            client.read_exact(&mut request).unwrap();
            client.write_all(b"N").unwrap();
            // What is said now would be in the clear; a reset is as good an end as any.
            let said = client.read(&mut [0; 64]).unwrap_or_default();
            to_test.send((request, said)).unwrap();
        }
    });
    for mode in ["verify-full", "verify-ca", "require"] {
        let url = format!("postgres://u:hunter2@127.0.0.1:{port}/d?sslmode={mode}");
        let Err(error) = Postgres::connect(Some(&url), names()) else { panic!("connected") };
        assert!(format!("{error:#}").to_lowercase().contains("tls"), "{error:#}");
        // A sign of life, then the connection: both ask for TLS, by its number, and say not a byte in the clear.
        let request = [0, 0, 0, 8, 4, 210, 22, 47];
        for _ in 0..2 {
            assert_eq!(told.recv().unwrap(), (request, 0), "{mode}");
        }
    }
}
