//! What DESIGN says about the source, checked by reading it: which way dependencies point, and that threads, SQLite,
//! Postgres, HTTP, printing and the end of a lease each have one home. Comments and `mod tests` are not code here.

use std::fmt::Write as _;
use std::path::Path;

/// A source file: its path below the project, and its lines of code with their numbers.
struct Source {
    path: String,
    text: String,
    code: Vec<(usize, String)>,
}

/// A rule: none of `words` outside of `homes`, which are files or, with a slash at the end, directories.
struct Rule {
    what: &'static str,
    words: &'static [&'static str],
    homes: &'static [&'static str],
}

const RULES: &[Rule] = &[
    Rule {
        what: "threads are made in one place",
        words: &["thread::spawn", "thread::Builder", "thread::scope", "ThreadPoolBuilder"],
        homes: &[
            "src/compact.rs",
            // Not the pipeline's: microshards for show, and their origin, whose threads end with it.
            "src/demo/generate.rs",
            "src/demo/origin.rs",
            // Not the pipeline's: reads published shards, after a run.
            "src/command/verify.rs",
            // Not the pipeline's: writes one buffer of a snapshot while the next one is filled.
            "queue/src/sorter.rs",
        ],
    },
    Rule {
        what: "channels are made in one place",
        words: &[" bounded(", "(bounded(", ":bounded(", " bounded::<", "mpsc::"],
        homes: &[
            "src/compact.rs",
            // A lane's own channel for the answers to what it asked, with room for all of them.
            "src/fetch.rs",
            // A lane's own channel for the queue's one answer.
            "queue/src/service.rs",
        ],
    },
    Rule { what: "no channel is unbounded", words: &["unbounded(", "unbounded::<"], homes: &[] },
    Rule { what: "SQLite is the queue's", words: &["rusqlite"], homes: &["queue/"] },
    Rule {
        what: "Postgres is the manifest's",
        words: &[" postgres::", "(postgres::", "tokio_postgres", "postgres_protocol"],
        homes: &["src/manifest/"],
    },
    Rule { what: "HTTP is the store's", words: &["ureq", "rusty_s3"], homes: &["src/store/"] },
    Rule {
        what: "printing is the monitor's and the commands'",
        words: &["println!", "print!(", "stdout()", "stderr()"],
        homes: &["src/monitor/", "src/command/", "src/main.rs"],
    },
    Rule {
        what: "a lease ends on one line",
        words: &[".finish(job.lease", ".finish(lease", "Client::finish"],
        homes: &["src/lane.rs"],
    },
    Rule {
        what: "the process ends in one place",
        words: &["process::exit", "process::abort"],
        homes: &[
            "src/main.rs",
            // Deaths that tests ask for, in no other build.
            "src/faults.rs",
            "queue/src/faults.rs",
        ],
    },
    Rule {
        what: "unsafe is the mapping of files that are ours",
        words: &[" unsafe ", "(unsafe ", "=unsafe "],
        homes: UNSAFE,
    },
    Rule { what: "no async runtime", words: &["tokio::", "async fn", ".await"], homes: &[] },
];

/// One place each: crash slots that survive a SIGKILL, a spooled shard, the results of a listing.
const UNSAFE: &[&str] = &["src/slots.rs", "src/store/s3/upload.rs", "src/command/sync_back.rs"];

/// What pure files must not use, and what they must not know of.
const PURE: &[&str] = &["src/format/", "src/plan.rs", "src/naming.rs"];
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::thread",
    "std::time",
    "std::env",
    "std::process",
    "File::",
    "Instant::",
    "SystemTime",
];
/// The queue knows nothing of these.
const ELSEWHERE: &[&str] = &["http", "s3", "postgres", "jsonl", "zstd", "ureq", "compact_local", "crate::store"];
/// All that is at the top.
const TOP: &[&str] = &[
    ".cargo",
    ".ci",
    ".config",
    ".git",
    ".gitignore",
    ".rustfmt.toml",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "benches",
    "queue",
    "src",
    "target",
    "tests",
];
const LINES_MAX: usize = 500;

#[test]
fn every_thing_has_one_home() {
    let sources = sources(&["src", "queue/src"]);
    let mut faults = String::new();
    for rule in RULES {
        for home in rule.homes {
            let used = sources.iter().any(|source| source.path.starts_with(home) && source.uses(rule.words).is_some());
            assert!(used, "{home} is no home of what is looked for any more: {}", rule.what);
        }
        for source in sources.iter().filter(|source| !rule.homes.iter().any(|home| source.path.starts_with(home))) {
            if let Some(place) = source.uses(rule.words) {
                writeln!(faults, "{}: {place}", rule.what).unwrap();
            }
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

#[test]
fn a_lease_ends_on_one_line() {
    let sources = sources(&["src"]);
    let ends = |source: &Source| source.code.iter().filter(|(_, line)| line.contains(".finish(job.lease")).count();
    assert_eq!(sources.iter().map(ends).sum::<usize>(), 1);
}

/// Clippy sees to it that each says why it is sound; here it is seen to that no further ones come unnoticed.
#[test]
fn unsafe_code_is_three_blocks_and_nothing_else() {
    let sources = sources(&["src", "queue/src"]);
    let unsafe_lines = |source: &Source| source.code.iter().filter(|(_, line)| line.contains("unsafe")).count();
    for source in sources {
        let expected = usize::from(UNSAFE.contains(&source.path.as_str()));
        assert_eq!(unsafe_lines(&source), expected, "{}", source.path);
    }
}

#[test]
fn formats_plan_and_names_import_no_files_network_threads_or_clock() {
    let sources = sources(&["src"]);
    for pure in PURE {
        let mut files = sources.iter().filter(|source| source.path.starts_with(pure)).peekable();
        assert!(files.peek().is_some(), "there is no {pure}");
        files.for_each(|source| assert_eq!(source.uses(IMPURE), None));
    }
}

#[test]
fn the_queue_knows_nothing_of_networks_formats_and_postgres() {
    let manifest = std::fs::read_to_string(root().join("queue/Cargo.toml")).unwrap();
    for source in sources(&["queue/src"]) {
        let lower =
            Source { code: source.code.into_iter().map(|(n, line)| (n, line.to_lowercase())).collect(), ..source };
        assert_eq!(lower.uses(ELSEWHERE), None);
    }
    for word in ELSEWHERE {
        assert!(!manifest.contains(word), "queue/Cargo.toml names {word}");
    }
}

#[test]
fn every_file_says_what_it_is_and_is_short() {
    for source in sources(&["src", "queue/src", "tests", "queue/tests", "benches"]) {
        assert!(source.text.starts_with("//! "), "{} does not open with `//!`", source.path);
        let lines = source.text.lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", source.path);
    }
}

#[test]
fn the_top_level_holds_what_belongs_there() {
    for entry in std::fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(TOP.contains(&name.as_str()), "{name} has no place at the top level");
    }
}

impl Source {
    /// The first line that uses one of `words`.
    fn uses(&self, words: &[&str]) -> Option<String> {
        let found = self.code.iter().find(|(_, line)| words.iter().any(|word| line.contains(word)));
        found.map(|(number, line)| format!("{}:{number}: {}", self.path, line.trim()))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files below these directories.
fn sources(directories: &[&str]) -> Vec<Source> {
    let mut sources = Vec::new();
    for directory in directories.iter().map(|name| root().join(name)).filter(|directory| directory.exists()) {
        for name in crate::world::files(&directory) {
            if name.ends_with(".rs") {
                let file = directory.join(name);
                let text = std::fs::read_to_string(&file).unwrap();
                let path = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                sources.push(Source { path, code: code(&text), text });
            }
        }
    }
    assert!(!sources.is_empty());
    sources
}

/// Lines with a space before them, so that a word's beginning can be looked for; no comments, nothing behind `mod tests`.
fn code(text: &str) -> Vec<(usize, String)> {
    let lines = text.lines().enumerate().take_while(|(_, line)| *line != "mod tests {");
    lines
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(index, line)| (index + 1, format!(" {line}")))
        .collect()
}
