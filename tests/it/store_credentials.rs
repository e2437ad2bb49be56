//! Where credentials come from, and that they are fresh. What was used is seen in the signed url that arrives.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use compact_local::cli::StoreArgs;
use compact_local::store::s3::S3Store;
use compact_local::store::{Result, StoreSettings, Trouble};

use crate::origin::{Origin, Step, ok, status};
use crate::s3;
use crate::store_conformance::get;

/// An S3 that takes everything, and a process with a home and variables of its own.
struct Process {
    origin: Origin,
    home: tempfile::TempDir,
    variables: Vec<(&'static str, String)>,
}

fn process() -> Process {
    let (origin, home) = (Origin::start(), tempfile::tempdir().unwrap());
    origin.on("/b/a", [ok("rows")]);
    let variables = vec![("HOME", home.path().to_str().unwrap().into()), ("AWS_EC2_METADATA_DISABLED", "true".into())];
    Process { origin, home, variables }
}

impl Process {
    fn set(mut self, name: &'static str, value: &str) -> Process {
        self.variables.retain(|(other, _)| *other != name);
        self.variables.push((name, value.into()));
        self
    }

    fn file(self, name: &str, text: &str) -> Process {
        let path = self.home.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn settings(&self, args: &StoreArgs) -> StoreSettings {
        let find = |name: &str| self.variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone());
        StoreSettings::new(args, &find).unwrap()
    }

    fn store(&self) -> S3Store {
        S3Store::new("b", "", &self.settings(&s3::args(Some(&self.origin.url))), 1).unwrap()
    }

    fn get(&self) -> Result<Vec<u8>> {
        get(&self.store(), "a")
    }

    fn failure(&self) -> String {
        let error = self.get().unwrap_err();
        assert_eq!(error.trouble, Trouble::Misconfigured);
        error.to_string()
    }

    /// Access key ids of the requests that came, each once in a row.
    fn used(&self) -> Vec<String> {
        let mut used: Vec<String> = Vec::new();
        for request in self.origin.requests().iter().filter(|request| request.target.starts_with("/b/")) {
            let (_, id) = request.target.split_once("X-Amz-Credential=").unwrap();
            used.push(id.split("%2F").next().unwrap().into());
        }
        used.dedup();
        used
    }

    fn home(&self) -> &Path {
        self.home.path()
    }
}

/// `VERSION` counts how often it was called; keys are good for `seconds`.
fn script(home: &Path, seconds: u64) -> String {
    let expires = humantime::format_rfc3339_seconds(SystemTime::now() + Duration::from_secs(seconds));
    let calls = home.join("calls");
    let path = home.join("script.sh");
    let mut text = String::new();
    writeln!(text, "echo x >> {}", calls.display()).unwrap();
    writeln!(text, "n=$(wc -l < {} | tr -d ' ')", calls.display()).unwrap();
    writeln!(
        text,
        r#"echo "{{\"Version\":1,\"AccessKeyId\":\"AKID$n\",\"SecretAccessKey\":\"s3cr3t\",\"SessionToken\":\"t\",\"Expiration\":\"{expires}\"}}""#
    )
    .unwrap();
    fs::write(&path, text).unwrap();
    format!("[default]\ncredential_process = sh {}\n", path.display())
}

#[test]
fn variables_come_before_profiles() {
    let process = process()
        .set("AWS_ACCESS_KEY_ID", "AKIDENV")
        .set("AWS_SECRET_ACCESS_KEY", "s")
        .file(".aws/credentials", "[default]\naws_access_key_id = AKIDFILE\naws_secret_access_key = s\n");
    process.get().unwrap();
    assert_eq!(process.used(), ["AKIDENV"]);
}

#[test]
fn a_profile_is_read_from_both_files_and_the_credentials_file_wins() {
    let process = process()
        .file(".aws/credentials", "[default]\naws_access_key_id=AKIDFILE\naws_secret_access_key=s\n")
        .file(".aws/config", "[default]\nregion = eu-south-9\naws_access_key_id=AKIDCONFIG\n");
    process.get().unwrap();
    assert_eq!(process.used(), ["AKIDFILE"]);
    assert!(process.origin.requests()[0].target.contains("%2Feu-south-9%2F"));
}

#[test]
fn a_named_profile_is_taken_from_named_files() {
    let process = process().file("keys", "[lab]\naws_access_key_id = AKIDLAB\naws_secret_access_key = s\n");
    let keys = process.home().join("keys").to_str().unwrap().to_owned();
    let process = process.set("AWS_SHARED_CREDENTIALS_FILE", &keys).set("AWS_PROFILE", "lab");
    process.get().unwrap();
    assert_eq!(process.used(), ["AKIDLAB"]);
    let absent = process.set("AWS_PROFILE", "lob").failure();
    assert!(absent.contains("`lob`"), "{absent}");
}

#[test]
fn the_region_is_the_typed_one_first() {
    let region = |process: Process, typed: Option<&str>| {
        let args = StoreArgs { s3_region: typed.map(str::to_owned), ..s3::args(None) };
        process.settings(&args).region
    };
    let both = || process().set("AWS_REGION", "a").set("AWS_DEFAULT_REGION", "b");
    assert_eq!(region(both(), Some("typed")), "typed");
    assert_eq!(region(both(), None), "a");
    assert_eq!(region(process().set("AWS_DEFAULT_REGION", "b"), None), "b");
    assert_eq!(region(process(), None), "us-east-1");
}

#[test]
fn a_process_is_asked_once_while_its_keys_are_good() {
    let process = process();
    let config = script(process.home(), 3600);
    let process = process.file(".aws/config", &config);
    let store = process.store();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| get(&store, "a").unwrap());
        }
    });
    assert_eq!(process.used(), ["AKID1"]);
    assert!(process.origin.requests()[0].target.contains("X-Amz-Security-Token=t&"));
}

#[test]
fn keys_are_refreshed_before_they_expire() {
    let process = process();
    let config = script(process.home(), 60);
    let process = process.file(".aws/config", &config);
    let store = process.store();
    get(&store, "a").unwrap();
    get(&store, "a").unwrap();
    assert_eq!(process.used(), ["AKID1", "AKID2"]);
}

#[test]
fn expired_keys_are_replaced_once_and_the_request_is_made_again() {
    let process = process();
    let config = script(process.home(), 3600);
    let process = process.file(".aws/config", &config);
    let expired = Step::Answer(400, vec![], b"<Error><Code>ExpiredToken</Code></Error>".to_vec());
    process.origin.on("/b/a", [expired.clone(), ok("rows")]);
    process.get().unwrap();
    assert_eq!(process.used(), ["AKID1", "AKID2"]);
    process.origin.on("/b/a", [expired]);
    let before = process.origin.requests().len();
    let failure = process.failure();
    assert!(failure.contains("expired"), "{failure}");
    assert_eq!(process.origin.requests().len() - before, 2);
}

#[test]
fn a_process_that_fails_is_told_without_what_it_said() {
    for (command, says) in [("echo s3cr3t; exit 3", "exit status: 3"), ("echo '{\"AccessKeyId\": \"s3cr3t\"}'", "JSON")]
    {
        let process = process().file(".aws/config", &format!("[default]\ncredential_process = {command}\n"));
        let failure = process.failure();
        assert!(failure.contains(says) && !failure.contains("s3cr3t"), "{failure}");
    }
}

#[test]
fn what_is_not_supported_is_refused_with_the_way_around_it() {
    let process = process().file(".aws/config", "[default]\nsso_session = corp\nregion = eu-west-1\n");
    let failure = process.failure();
    assert!(failure.contains("sso_session") && failure.contains("export-credentials"), "{failure}");
}

#[test]
fn without_credentials_nothing_is_sent_and_the_ways_to_give_them_are_named() {
    let process = process();
    let failure = process.failure();
    assert!(failure.contains("AWS_ACCESS_KEY_ID") && failure.contains("--s3-unsigned"), "{failure}");
    assert_eq!(process.origin.requests().len(), 0);
}

fn role(id: &str) -> Step {
    let document = r#"{"Code":"Success","AccessKeyId":"ID","SecretAccessKey":"s","Token":"t","Expiration":"2999-01-01T00:00:00Z"}"#;
    ok(document.replace("ID", id))
}

#[test]
fn a_machines_role_is_asked_of_its_metadata_service_with_a_token() {
    let metadata = Origin::start();
    metadata.on("PUT /latest/api/token", [ok("t0ken")]);
    metadata.on("/latest/meta-data/iam/security-credentials/", [ok("the-role")]);
    metadata.on("/latest/meta-data/iam/security-credentials/the-role", [role("AKIDROLE")]);
    let process =
        process().set("AWS_EC2_METADATA_DISABLED", "").set("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata.url);
    process.get().unwrap();
    assert_eq!(process.used(), ["AKIDROLE"]);
    assert_eq!(metadata.requests()[2].headers["x-aws-ec2-metadata-token"], "t0ken");
}

#[test]
fn a_machine_without_a_role_has_no_credentials() {
    let metadata = Origin::start();
    metadata.on("PUT /latest/api/token", [ok("t0ken")]);
    let process =
        process().set("AWS_EC2_METADATA_DISABLED", "").set("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata.url);
    let failure = process.failure();
    assert!(failure.contains("there are no S3 credentials"), "{failure}");
}

#[test]
fn a_containers_role_is_asked_with_its_token() {
    let endpoint = Origin::start();
    endpoint.on("/creds", [role("AKIDPOD")]);
    let process = process().file("token", "t0ken\n");
    let token = process.home().join("token").to_str().unwrap().to_owned();
    let process = process
        .set("AWS_CONTAINER_CREDENTIALS_FULL_URI", &format!("{}/creds", endpoint.url))
        .set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &token);
    process.get().unwrap();
    assert_eq!(process.used(), ["AKIDPOD"]);
    assert_eq!(endpoint.requests()[0].headers["authorization"], "t0ken");
    endpoint.on("/creds", [status(500)]);
    let failure = process.failure();
    assert!(failure.contains("500"), "{failure}");
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_tried() {
    let refused = |args: StoreArgs| StoreSettings::new(&args, &|_| None).unwrap_err().to_string();
    let small = refused(StoreArgs { s3_part_size: 1 << 20, ..s3::args(None) });
    assert!(small.contains("--s3-part-size"), "{small}");
    let bare = refused(s3::args(Some("127.0.0.1:9000")));
    assert!(bare.contains("http://"), "{bare}");
}
