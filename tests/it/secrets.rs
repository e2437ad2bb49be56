//! Passwords, keys and signatures are nowhere but where they must be: not in what is printed, whatever fails, not in what
//! is written, not in a process's title. The queue file alone holds uris in full, and nobody else may read it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::microshards::{copy_manifest, generated};
use crate::origin::{Origin, Step, ok, redirect, status};
use crate::postgres::{Database, KEYHOLDER, database};
use crate::s3;
use crate::world::{Ran, World, files, until};

/// In the userinfo and in the query of every uri.
const OF_URIS: [&str; 3] = ["pw-of-uris", "cHctb2YtdXJpcw", "sig-of-uris"];
/// In the environment only.
const OF_ENVIRONMENT: [&str; 3] = ["open sesame", s3::SECRET_KEY, "t0ken-of-session"];

/// Asserts that a command that ends with `code` prints none of what must not be seen; what it printed.
#[track_caller]
fn quiet(world: &World, arguments: &str, code: i32) -> Ran {
    let ran = world.run(arguments).ends(code);
    for secret in OF_URIS.iter().chain(&OF_ENVIRONMENT).chain(&["open%20sesame", "X-Amz-Signature"]) {
        assert!(!ran.stdout.contains(secret) && !ran.stderr.contains(secret), "`{arguments}` says {secret}: {ran:?}");
    }
    ran
}

/// 30 microshards of an origin that wants a password and signatures, of which some fail, each in another way.
fn origin(directory: &Path) -> (Origin, String) {
    let manifest = generated(directory, 30, 0).manifest;
    let origin = Origin::start();
    let base = origin.url.replace("http://", "http://me:pw-of-uris@");
    let mut reader = csv::Reader::from_path(&manifest).unwrap();
    let header = reader.headers().unwrap().clone();
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(&header).unwrap();
    for (number, line) in reader.records().map(Result::unwrap).enumerate() {
        let key = line.get(header.iter().position(|name| name == "uri").unwrap()).unwrap();
        let good = ok(std::fs::read(directory.join(key)).unwrap());
        let signed = format!("/{key}?X-Amz-Signature=sig-of-uris");
        let steps = match number {
            3 => vec![status(404)],
            4 => vec![status(403)],
            5 => vec![redirect(&signed)],
            6 => vec![redirect("gopher://me:pw-of-uris@h/?sig-of-uris")],
            7 => vec![ok(format!("{signed} pw-of-uris"))],
            8 => vec![Step::Reset, good],
            9 => vec![status(503), good],
            _ => vec![good],
        };
        origin.on(&format!("/{key}"), steps);
        let uri = format!("{base}{signed}");
        let with_uri = |(name, value)| if name == "uri" { uri.clone() } else { String::from(value) };
        writer.write_record(header.iter().zip(&line).map(with_uri)).unwrap();
    }
    let text = String::from_utf8(writer.into_inner().unwrap()).unwrap();
    (origin, text)
}

/// A world with every secret that an environment may hold.
fn world(database: &Database, server: &s3::Server) -> World {
    let (user, password) = (KEYHOLDER.0, "open%20sesame");
    let url = format!("postgres://{user}:{password}@127.0.0.1:{}/{}?sslmode=disable", database.port, database.name);
    let mut environment = server.environment();
    environment.extend([("DATABASE_URL", url), ("AWS_SESSION_TOKEN", "t0ken-of-session".to_owned())]);
    World::with(environment)
}

/// Asserts that no file of `directory` holds one of `secrets`, but for those that `may` hold some.
fn holds_none(directory: &Path, secrets: &[&str], may: impl Fn(&str) -> bool) {
    for name in files(directory).iter().filter(|name| !may(name)) {
        let bytes = std::fs::read(directory.join(name)).unwrap();
        for secret in secrets {
            let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{name} holds {secret}");
        }
    }
}

#[test]
fn no_command_prints_or_writes_a_secret_whatever_fails() {
    let (database, server) = (database(), s3::server());
    let world = world(&database, &server);
    let bucket = format!("s3://{}/out", server.bucket("shards"));
    let (_origin, manifest) = origin(&world.path("input"));
    std::fs::write(world.path("input/manifest.csv"), manifest).unwrap();
    quiet(&world, "init-manifest", 0);
    copy_manifest(&mut database.client(), &world.path("input/manifest.csv"));
    quiet(&world, &format!("plan --manifest {}", "input/manifest.csv"), 0);
    quiet(&world, "snapshot --queue q.db", 0);
    quiet(&world, "plan --queue q.db", 0);
    quiet(&world, "status --json --queue q.db", 0);
    let ran = quiet(&world, &format!("run --queue q.db --output {bucket}"), 3);
    assert!(ran.stderr.contains("failed"), "{ran:?}");
    let failures = quiet(&world, "failures --json --queue q.db", 0).stdout;
    assert_eq!(failures.matches("\"microshard_id\"").count(), 5, "{failures}");
    for (command, code) in [
        ("failures", 0),
        ("status", 0),
        ("status --json", 0),
        ("plan --json", 0),
        ("verify --source", 3),
        ("sync-back --json", 0),
        ("retry --json", 0),
        ("release --json", 0),
        ("snapshot", 0),
    ] {
        quiet(&world, &format!("{command} --queue q.db"), code);
    }
    let ours = |name: &str| name.starts_with("q.db") || name.starts_with("input/");
    holds_none(world.dir.path(), &[&OF_URIS[..], &OF_ENVIRONMENT].concat(), ours);
    holds_none(world.dir.path(), &OF_ENVIRONMENT, |_| false);
    holds_none(server.root.path(), &[&OF_URIS[..], &OF_ENVIRONMENT].concat(), |_| false);
    let sql = "SELECT string_agg(concat(error, claimed_by, shard_id), '') FROM final_export_microshards";
    let written: String = database.client().query_one(sql, &[]).unwrap().get(0);
    assert!(OF_URIS.iter().all(|secret| !written.contains(secret)), "{written}");
}

#[test]
fn what_a_listing_is_answered_with_holds_no_secret_of_its_uris() {
    let world = World::new();
    let (_origin, manifest) = origin(&world.path("input"));
    std::fs::write(world.path("input/manifest.csv"), manifest).unwrap();
    quiet(&world, "snapshot --manifest input/manifest.csv --queue q.db", 0);
    quiet(&world, "run --queue q.db --output out", 3);
    quiet(&world, "sync-back --queue q.db", 0);
    let written = files(&world.path("out"));
    assert!(written.iter().any(|name| name == "microshards.csv") && written.iter().any(|name| name == "index.json"));
    holds_none(&world.path("out"), &OF_URIS, |_| false);
}

#[test]
fn a_store_that_refuses_our_keys_is_told_without_them_by_every_command_that_meets_it() {
    let server = s3::server();
    server.bucket("shards");
    let mut environment = server.environment();
    environment.retain(|(name, _)| *name != "AWS_SECRET_ACCESS_KEY");
    environment.extend([
        ("AWS_SECRET_ACCESS_KEY", "pw-of-uris".to_owned()),
        ("AWS_SESSION_TOKEN", "t0ken-of-session".to_owned()),
    ]);
    let world = World::with(environment);
    generated(&world.path("input"), 30, 0);
    world.ok("snapshot --manifest input/manifest.csv --source s3://shards --queue q.db");
    for command in ["run --queue q.db --output s3://shards/out", "run --queue q.db --output out", "cat s3://shards/a"] {
        let told = quiet(&world, command, 1).stderr;
        assert!(told.contains("check the secret key"), "{told}");
    }
}

#[test]
fn a_proxys_password_is_shown_to_the_proxy_alone() {
    let proxy = Origin::start();
    proxy.on("CONNECT h.invalid:443", [status(407)]).on("CONNECT h.invalid:80", [status(407)]);
    let with_password = proxy.url.replace("http://", "http://me:pw-of-uris@");
    for variable in ["HTTPS_PROXY", "ALL_PROXY"] {
        let world = World::with(vec![(variable, with_password.clone())]);
        let mut command = world.command("cat https://h.invalid/a.jsonl");
        let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        // It tries again and again: what it says of the first try is enough.
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stderr.take().unwrap()), &mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(line.contains("proxy") && OF_URIS.iter().all(|secret| !line.contains(secret)), "{line}");
    }
    let shown = &proxy.requests()[0].headers;
    assert_eq!(shown["proxy-authorization"], "Basic bWU6cHctb2YtdXJpcw==");
    // And to no server that is reached without it.
    let origin = Origin::start();
    origin.on("/a.jsonl", [ok("{}\n")]);
    World::with(vec![("HTTPS_PROXY", with_password)]).ok(&format!("cat {}/a.jsonl", origin.url));
    assert!(origin.requests().iter().all(|request| !request.headers.contains_key("proxy-authorization")));
}

/// A variable that cannot be read was ignored, and everything asked directly.
#[test]
fn a_proxy_that_cannot_be_read_is_refused_before_anything_is_asked_and_its_value_is_not_told() {
    let shard = "http://h.invalid/a.jsonl";
    let listing = format!("microshard_id,run_id,language,uri,segment_count\n1,r,en,{shard},1\n");
    for (variable, value) in [
        ("HTTP_PROXY", "http://me:pw-of-uris@[bad"),
        ("https_proxy", "bogus://me:pw-of-uris@h:1"),
        ("ALL_PROXY", "http://me:pw-of-uris@h:port"),
    ] {
        let keys = [("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", s3::SECRET_KEY)];
        let environment = keys.into_iter().chain([(variable, value)]);
        let world = World::with(environment.map(|(name, value)| (name, value.to_owned())).collect());
        std::fs::write(world.path("m.csv"), &listing).unwrap();
        world.ok("snapshot --manifest m.csv --queue q.db");
        for command in [
            &format!("cat {shard}"),
            "cat s3://b/a.jsonl",
            "run --queue q.db --output out",
            "run --queue q.db --output s3://b/out",
        ] {
            let told = quiet(&world, command, 1).stderr;
            assert!(told.contains(&format!("{variable} is not the url of a proxy")), "{told}");
        }
        // This machine is asked without it.
        let origin = Origin::start();
        origin.on("/a.jsonl", [ok("{}\n")]);
        world.ok(&format!("cat {}/a.jsonl", origin.url));
    }
}

/// The proxy would ask for us, and its own services are near it; ours too, if it is asked for this machine's address.
#[test]
fn no_redirect_leads_to_what_is_near_through_a_proxy_either_which_may_be_near_itself() {
    let proxy = Origin::start();
    // It opens every tunnel, and is at the other end itself.
    let near = ["169.254.169.254", "127.0.0.1", "LOCALHOST", "2130706433", "[::1]"];
    for host in near.iter().chain(&["data.example"]) {
        proxy.on(&format!("CONNECT {host}:80"), [ok("")]);
    }
    proxy.on("/secret", [ok("{}\n")]);
    let world = World::with(vec![("HTTP_PROXY", proxy.url.clone())]);
    for host in near {
        proxy.on("/a.jsonl", [redirect(&format!("http://{host}/secret"))]);
        let told = world.run("cat http://data.example/a.jsonl").ends(1).stderr;
        assert!(told.contains("link-local address, which is not followed"), "{host}: {told}");
    }
    assert_eq!(proxy.asked(), ["CONNECT data.example:80", "GET /a.jsonl"].repeat(near.len()));
}

/// Whoever a redirect leads to is somebody else.
#[test]
fn a_password_goes_to_its_own_host_and_not_along_with_a_redirect() {
    let (origin, other) = (Origin::start(), Origin::start());
    other.on("/a.jsonl", [ok("{}\n")]);
    origin.on("/a.jsonl", [redirect(&format!("{}/a.jsonl", other.url))]).on("/b.jsonl", [redirect("/c.jsonl")]);
    origin.on("/c.jsonl", [ok("{}\n")]);
    let base = origin.url.replace("http://", "http://me:pw-of-uris@");
    let world = World::new();
    for name in ["a", "b"] {
        assert_eq!(world.ok(&format!("cat {base}/{name}.jsonl?X-Amz-Signature=sig-of-uris")), "{}\n");
    }
    assert!(origin.requests()[0].headers.contains_key("authorization"));
    for request in other.requests() {
        let said = format!("{request:?}");
        assert!(!request.headers.contains_key("authorization") && !request.headers.contains_key("cookie"), "{said}");
        assert!(OF_URIS.iter().all(|secret| !said.contains(secret)), "{said}");
    }
}

/// A signed request, and a role's token, are followed nowhere: what answers elsewhere could keep them.
#[test]
fn a_store_or_a_credentials_endpoint_that_redirects_is_not_followed() {
    let (origin, other) = (Origin::start(), Origin::start());
    origin.on("/b/a.jsonl", [redirect(&format!("{}/a.jsonl", other.url))]);
    origin.on("/creds", [redirect(&format!("{}/creds", other.url))]);
    let keys = [("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", s3::SECRET_KEY)];
    let role = [("AWS_CONTAINER_AUTHORIZATION_TOKEN", "t0ken-of-session")];
    for variables in [&keys[..], &role[..]] {
        let mut environment: Vec<_> = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        environment.push(("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{}/creds", origin.url)));
        environment.push(("AWS_ENDPOINT_URL_S3", origin.url.clone()));
        quiet(&World::with(environment), "cat s3://b/a.jsonl", 1);
    }
    assert_eq!(origin.asked(), ["GET /b/a.jsonl", "GET /creds"]);
    assert_eq!(other.asked(), Vec::<String>::new());
}

#[test]
fn a_process_at_work_shows_nothing_in_its_command_line_that_was_not_typed() {
    let (database, server) = (database(), s3::server());
    let world = world(&database, &server);
    generated(&world.path("input"), 30, 0);
    let (sender, moment) = crossbeam_channel::bounded(0);
    let origin = Origin::start();
    origin.on("/microshards", [Step::After(moment.clone(), vec![])]);
    let manifest = std::fs::read_to_string(world.path("input/manifest.csv")).unwrap();
    for line in manifest.lines().skip(1) {
        let key = line.split(',').find(|field| field.starts_with("microshards/")).unwrap();
        origin.on(&format!("/{key}"), [Step::After(moment.clone(), vec![])]);
    }
    world.ok(&format!("snapshot --manifest input/manifest.csv --source {} --queue q.db", origin.url));
    let running = world.start("run --queue q.db --output out");
    until("it has asked for something", || !origin.requests().is_empty());
    for file in ["cmdline", "comm", "task"] {
        let path = Path::new("/proc").join(running.pid().to_string()).join(file);
        let shown = match file {
            "task" => files_of_threads(&path),
            _ => std::fs::read_to_string(path).unwrap(),
        };
        let typed = shown.replace('\0', " ");
        assert!(OF_ENVIRONMENT.iter().chain(&["open%20sesame"]).all(|secret| !typed.contains(secret)), "{typed}");
    }
    drop(sender);
}

/// The names of a process's threads.
fn files_of_threads(tasks: &Path) -> String {
    let threads = std::fs::read_dir(tasks).unwrap().flatten();
    // A thread may end while it is looked at.
    threads.map(|thread| std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default()).collect()
}

/// Whatever the umask: with 0 everything is made readable that is not made otherwise.
#[test]
fn the_queue_and_all_files_beside_it_are_their_owners_alone() {
    for umask in ["0000", "0022", "0077"] {
        let (world, database) = (World::new(), database());
        let manifest = generated(&world.path("input"), 30, 0).manifest;
        database.manifest().init().unwrap();
        copy_manifest(&mut database.client(), &manifest);
        let shell = |arguments: &str| {
            let line = format!("umask {umask}; exec {} {arguments}", env!("CARGO_BIN_EXE_compact-local"));
            let mut command = std::process::Command::new("sh");
            command.args(["-c", &line]).current_dir(world.dir.path()).env("DATABASE_URL", &database.url);
            command
        };
        let modes = |what: &str| {
            let mut seen = 0;
            for name in files(world.dir.path()).iter().filter(|name| name.starts_with("q.db")) {
                // A log may go, with the process that made it, while it is looked at.
                let Ok(metadata) = std::fs::metadata(world.path(name)) else { continue };
                assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name}, umask {umask}, {what}");
                seen += 1;
            }
            seen
        };
        let snapshot = "snapshot --source input --queue q.db";
        // Dies as it takes a microshard: what is temporary is still there.
        assert!(!shell(snapshot).env("COMPACT_LOCAL_TEST_DIE_TAKING", "100030").output().unwrap().status.success());
        assert!(modes("killed") >= 2, "a lock, and who holds the claim");
        assert!(shell(snapshot).output().unwrap().status.success());
        let origin = Origin::start();
        let (sender, moment) = crossbeam_channel::bounded(0);
        origin.on("/a.jsonl", [Step::After(moment, b"{}\n".to_vec())]);
        let listing = format!("microshard_id,run_id,language,uri,segment_count\n1,r,en,{}/a.jsonl,1\n", origin.url);
        std::fs::write(world.path("late.csv"), listing).unwrap();
        assert!(shell("snapshot --manifest late.csv --queue q.db").output().unwrap().status.success());
        let mut run = shell("run --queue q.db --output out").spawn().unwrap();
        until("the last one is asked for", || !origin.requests().is_empty());
        // The file, its log and the log's index, the locks of runner and snapshot, the crash slots.
        assert!(modes("at work") >= 6);
        drop(sender);
        assert!(run.wait().unwrap().success());
    }
}
