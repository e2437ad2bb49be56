//! Reaching Postgres, and what is said when it can't be reached. A password is never said.

use compact_local::manifest::{ClaimMode, Postgres, Selection, is_postgres};

use crate::postgres::{Database, KEYHOLDER, database, names};

fn error(url: &str) -> String {
    let Err(error) = Postgres::connect(Some(url), names()) else { panic!("connected") };
    format!("{error:#} {error:?}")
}

fn as_keyholder(database: &Database, host: &str, password: &str, rest: &str) -> String {
    format!("postgresql://{}:{password}@{host}:{}/{}{rest}", KEYHOLDER.0, database.port, database.name)
}

#[test]
fn a_wrong_password_is_not_repeated_and_the_sentence_says_where_it_may_come_from() {
    let database = database();
    let (port, name) = (database.port, &database.name);
    for url in [
        as_keyholder(&database, "127.0.0.1", "hunter2", ""),
        format!("host=127.0.0.1 port={port} user=keyholder dbname={name} password=hunter2"),
    ] {
        let error = error(&url);
        assert!(!error.contains("hunter2"), "{error}");
        for part in [&format!("postgres://keyholder@127.0.0.1:{port}/{name}"), "28P01", "PGPASSWORD", ".pgpass"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    let none = error(&format!("postgres://keyholder@127.0.0.1:{port}/{name}"));
    assert!(none.contains("no password is set") && none.contains("PGPASSWORD"), "{none}");
    let right = as_keyholder(&database, "127.0.0.1", "open%20sesame", "");
    let manifest = Postgres::connect(Some(&right), names()).unwrap();
    assert_eq!(manifest.redacted(), format!("postgres://keyholder@127.0.0.1:{port}/{name}"));
}

#[test]
fn a_password_file_is_used_unless_others_may_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let database = database();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pgpass");
    std::fs::write(&file, format!("127.0.0.1:{}:*:keyholder:open sesame\n", database.port)).unwrap();
    let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    let url = format!(
        "postgres://keyholder@127.0.0.1:{}/{}?passfile={}",
        database.port,
        database.name,
        file.to_str().unwrap()
    );
    mode(0o600);
    Postgres::connect(Some(&url), names()).unwrap();
    mode(0o644);
    let error = error(&url);
    assert!(error.contains("was ignored: others may read it (mode 0644)"), "{error}");
}

#[test]
fn nobody_there_an_unknown_host_and_an_unknown_database_are_told_apart() {
    let database = database();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let refused = error(&format!("postgres://u:hunter2@127.0.0.1:{closed}/d"));
    assert!(refused.contains(&format!("nothing usable answers at 127.0.0.1:{closed}")), "{refused}");
    assert!(
        refused.contains(&format!("postgres://u@127.0.0.1:{closed}/d")) && !refused.contains("hunter2"),
        "{refused}"
    );
    let unknown = error("postgres://u@no-such-host.invalid/d");
    assert!(unknown.contains("no-such-host.invalid:5432") && unknown.contains("check host and port"), "{unknown}");
    let absent = error(&format!("postgres://postgres@127.0.0.1:{}/nowhere", database.port));
    assert!(absent.contains("\"nowhere\" does not exist") && absent.contains("check the database's name"), "{absent}");
}

#[test]
fn a_server_that_takes_connections_and_says_nothing_is_not_waited_for_without_end() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    // The kernel takes the connection; nobody answers on it.
    let error = error(&format!("postgres://u:hunter2@127.0.0.1:{port}/d?connect_timeout=1"));
    assert!(error.contains("has said nothing for 1 s") && error.contains(&format!("127.0.0.1:{port}")), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn a_table_that_may_not_be_read_says_what_to_grant() {
    let database = database();
    database.filled(1);
    database.client().batch_execute(&format!("CREATE ROLE guest_{} LOGIN", database.name)).unwrap();
    let url = database.url.replace("postgres@", &format!("guest_{}@", database.name));
    let mut manifest = Postgres::connect(Some(&url), names()).unwrap();
    let lease = std::time::Duration::from_secs(1);
    let error = manifest.claim(&Selection::default(), ClaimMode::None, None, lease).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("permission denied") && error.contains("grant it to user `guest_"), "{error}");
}

#[test]
fn tls_trusts_as_much_as_sslmode_says_and_no_more() {
    let database = database();
    let root = database.root_cert.to_str().unwrap();
    let connect = |host: &str, mode: &str| {
        let url = as_keyholder(&database, host, "open%20sesame", &format!("?sslmode={mode}"));
        Postgres::connect(Some(&url), names()).map(drop).map_err(|error| format!("{error:#}"))
    };
    connect("localhost", &format!("verify-full&sslrootcert={root}")).unwrap();
    // The certificate is localhost's.
    let name = connect("127.0.0.1", &format!("verify-full&sslrootcert={root}")).unwrap_err();
    assert!(name.contains("certificate"), "{name}");
    connect("127.0.0.1", &format!("verify-ca&sslrootcert={root}")).unwrap();
    connect("127.0.0.1", &format!("require&sslrootcert={root}")).unwrap();
    let other = tempfile::tempdir().unwrap();
    let other = other_root(other.path());
    for mode in ["verify-full", "verify-ca", "require"] {
        let unknown = connect("localhost", &format!("{mode}&sslrootcert={other}")).unwrap_err();
        assert!(unknown.contains("certificate"), "{mode}: {unknown}");
    }
    connect("127.0.0.1", "require").unwrap();
    connect("127.0.0.1", "prefer").unwrap();
    connect("127.0.0.1", "disable").unwrap();
    let missing = connect("localhost", "verify-full&sslrootcert=/nonexistent/ca.crt").unwrap_err();
    assert!(missing.contains("/nonexistent/ca.crt"), "{missing}");
    assert!(
        connect("localhost", "maybe").unwrap_err().contains("use disable, prefer, require, verify-ca or verify-full")
    );
}

/// A root that signed nothing of the server's.
fn other_root(dir: &std::path::Path) -> String {
    let (key, cert) = (dir.join("other.key"), dir.join("other.crt"));
    let arguments = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=other -keyout";
    let mut openssl = std::process::Command::new("openssl");
    let output = openssl.args(arguments.split(' ')).arg(key).arg("-out").arg(&cert).output().unwrap();
    assert!(output.status.success());
    cert.to_str().unwrap().to_owned()
}

#[test]
fn a_path_is_no_postgres_and_a_connection_string_is() {
    for postgres in ["postgres://h/d", "postgresql://", "host=db dbname=x", "service=prod"] {
        assert!(is_postgres(&Some(postgres.to_owned())), "{postgres}");
    }
    assert!(is_postgres(&None));
    for other in ["manifest.csv", "/data/x=1/manifest.jsonl", "s3://bucket/list.csv", "run=7", "./dir", ""] {
        assert!(!is_postgres(&Some(other.to_owned())), "{other}");
    }
}
