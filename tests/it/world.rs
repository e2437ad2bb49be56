//! A directory of its own to run the real binary in, so that a test reads like a session at a terminal:
//! `world.run("status --queue queue.db")`. Children inherit nothing but PATH, and never outlive their test.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_compact-local");

/// Where a test's queue files and outputs are.
pub(crate) struct World {
    pub(crate) dir: TempDir,
    environment: Vec<(&'static str, String)>,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ran {
    command: String,
    /// The exit code; minus the signal where a signal ended it.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A command that is at work; killed when dropped.
pub(crate) struct Running {
    command: String,
    child: Child,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(Vec::new())
    }

    /// With environment variables for every command.
    pub(crate) fn with(environment: Vec<(&'static str, String)>) -> World {
        World { dir: tempfile::tempdir().unwrap(), environment }
    }

    /// A path in the world's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `compact-local` with these arguments, separated by blanks, in the world's directory.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        self.set_up(Command::new(PROGRAM), arguments)
    }

    fn set_up(&self, mut command: Command, arguments: &str) -> Command {
        command.args(arguments.split_whitespace()).current_dir(self.dir.path()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", self.dir.path());
        command.env("RUST_BACKTRACE", "1").envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command to its end under a limit, in the words of the shell's `ulimit`: `-n 7`.
    pub(crate) fn run_limited(&self, limit: &str, arguments: &str) -> Ran {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit {limit} && exec {PROGRAM} \"$@\""), "sh"]);
        World::end(arguments, &mut self.set_up(shell, arguments))
    }

    /// Runs a command to its end, whatever that is.
    pub(crate) fn run(&self, arguments: &str) -> Ran {
        World::end(arguments, &mut self.command(arguments))
    }

    /// The same, with one more environment variable.
    pub(crate) fn run_with(&self, arguments: &str, variable: &str, value: &str) -> Ran {
        World::end(arguments, self.command(arguments).env(variable, value))
    }

    fn end(arguments: &str, command: &mut Command) -> Ran {
        let output = command.stdin(Stdio::null()).output().unwrap();
        Ran {
            command: arguments.to_owned(),
            code: code(output.status),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a command that must end with 0; what it printed.
    pub(crate) fn ok(&self, arguments: &str) -> String {
        self.run(arguments).ends(0).stdout
    }

    /// Runs a command that must end with 0 and print JSON.
    pub(crate) fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.ok(arguments)).unwrap()
    }

    /// Starts a command and does not wait for it.
    pub(crate) fn start(&self, arguments: &str) -> Running {
        let mut command = self.command(arguments);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running { command: arguments.to_owned(), child }
    }

    /// What is in an output: its digest, the same for the same data set.
    pub(crate) fn digest(&self, output: &str) -> BTreeMap<String, String> {
        digest(&self.path(output))
    }
}

impl Ran {
    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn ends(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "`{}` said:\n{}{}", self.command, self.stdout, self.stderr);
        assert!(!self.stderr.contains("panicked"), "`{}` said:\n{}", self.command, self.stderr);
        self
    }
}

impl Running {
    /// Waits until a runner has begun its work: it then says what there is to do. Whatever else it says is thrown away.
    pub(crate) fn at_work(&mut self) {
        let mut stderr = BufReader::new(self.child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert!(line.contains("microshards"), "`{}` said: {line}", self.command);
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn is_at_work(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Ran {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        // What a runner prints fits into a pipe.
        let status = self.child.wait().unwrap();
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        if let Some(mut pipe) = self.child.stderr.take() {
            pipe.read_to_string(&mut stderr).unwrap();
        }
        Ran { command: self.command.clone(), code: code(status), stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it has ended, mostly
        let _ = self.child.wait();
    }
}

fn code(status: std::process::ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or_default())
}

/// Waits for something that another process does. The deadline only tells a hang.
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    for _ in 0..12_000 {
        if happened() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("waited in vain until {what}");
}

/// The SHA-256 of every file below `output`. The index is digested without the queues' random names.
pub(crate) fn digest(output: &Path) -> BTreeMap<String, String> {
    files(output)
        .into_iter()
        .map(|name| {
            let mut bytes = std::fs::read(output.join(&name)).unwrap();
            if name == "index.json" {
                let mut index: Value = serde_json::from_slice(&bytes).unwrap();
                for shard in index["shards"].as_array_mut().unwrap() {
                    shard["queue"].take();
                }
                bytes = serde_json::to_vec(&index).unwrap();
            }
            (name, sha256(&bytes))
        })
        .collect()
}

/// Lower-case hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every file below `directory`, hidden ones too, relative to it, sorted.
pub(crate) fn files(directory: &Path) -> Vec<String> {
    let (mut found, mut left) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => left.push(entry.path()),
                false => found.push(entry.path().strip_prefix(directory).unwrap().to_str().unwrap().to_owned()),
            }
        }
    }
    found.sort();
    found
}

/// Runs a tool that is not ours, and gives what it writes to its standard output.
pub(crate) fn tool(command: &mut Command) -> Vec<u8> {
    // To a file: a pipe that nobody reads while the tool is fed would block it.
    let mut out: File = tempfile::tempfile().unwrap();
    let status = command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).status();
    let status = status.unwrap_or_else(|error| panic!("no {:?}: install it ({error})", command.get_program()));
    assert!(status.success(), "{command:?} ended with {status}");
    let mut bytes = Vec::new();
    std::io::Seek::rewind(&mut out).unwrap();
    out.read_to_end(&mut bytes).unwrap();
    bytes
}
