//! A server that a test run starts: on loopback, as an unprivileged user, in a directory of its own. It must never
//! outlive the run, however that ends: a shell holds the server and waits on a pipe from us; when the pipe closes, by
//! an exit or a SIGKILL, it stops the server and removes the directory.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Whom servers run as when the tests run as root: nobody.
const NOBODY: u32 = 65_534;

/// A running server; dropping it (or the end of the process) ends it.
pub(crate) struct Server {
    /// Holds the pipe.
    shell: Child,
    /// The port that `arguments` were given.
    pub(crate) port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// Starts a server and waits for the line that says it is `ready`. SIGQUIT ends Postgres at once, SIGTERM the others.
pub(crate) fn start(dir: &Path, ready: &str, arguments: impl Fn(u16) -> Vec<String>) -> Server {
    let mut said = String::new();
    // The port is free when we look; should another process take it before the server does, look again.
    for _ in 0..3 {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let script = r#"dir=$1; shift; "$@" 2>&1 & exec >&-; read -r word; kill -QUIT $!; kill -TERM $!; wait; [ "$word" = again ] || rm -rf "$dir""#;
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(dir).args(unprivileged()).args(arguments(port));
        let mut shell = command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(shell.stdout.take().unwrap());
        let mut line = String::new();
        while log.read_line(&mut line).unwrap() > 0 {
            if line.contains(ready) {
                // The log is read to its end, so that the server never waits for us.
                std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
                return Server { shell, port };
            }
            said.push_str(&line);
            line.clear();
        }
        shell.stdin.take().unwrap().write_all(b"again\n").unwrap();
        shell.wait().unwrap();
    }
    panic!("{} did not start:\n{said}", arguments(0)[0]);
}

/// The words before a command that make it run as nobody, when we are root.
fn unprivileged() -> Vec<String> {
    let words = match is_root() {
        true => format!("setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups"),
        false => String::new(),
    };
    words.split_whitespace().map(str::to_owned).collect()
}

/// Runs a command to its end, as nobody when we are root; its output is shown should it fail.
pub(crate) fn run(arguments: &[&str]) {
    let words: Vec<String> =
        unprivileged().into_iter().chain(arguments.iter().map(|word| (*word).to_owned())).collect();
    let output = Command::new(&words[0]).args(&words[1..]).current_dir("/").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&text));
}

/// A new directory under the system's temporary one, which nobody can reach and owns.
pub(crate) fn directory(name: &str) -> PathBuf {
    let dir = tempfile::Builder::new().prefix(name).tempdir().unwrap().keep();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    give(&dir);
    dir
}

/// Gives a file to nobody, when we are root.
pub(crate) fn give(path: &Path) {
    if is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
