//! Kills a process between every two statements of everything that writes to a queue, opens the file again, and finds it
//! as it was before or as it is after, never in between; of everything that makes a queue, and finds none or the whole.
//! A program of its own, as it starts itself again to be killed.

#![expect(clippy::print_stdout, reason = "it reports as a test does")]

use std::path::{Path, PathBuf};
use std::process::Command;

use microshard_queue::{
    Claimer, Cut, Failure, Finish, GroupTotals, Intake, Item, Job, NewSnapshot, Number, Outcome, Planner, Queue,
    Receipt, Result, RetrySelection, SizesPass, die_at_statement,
};

/// Something that is done to a queue.
type Step = (&'static str, fn(&Queue));

/// The step in which there is no queue yet.
const CREATION: usize = STEPS.len();

/// Each on the state that the ones before it leave.
const STEPS: [Step; 11] = [
    ("start", |queue| assert!(queue.start_runner("me", "host", &[1, 2]).is_ok())),
    ("claim", |queue| assert_eq!(claim(queue).lease.attempt, 1)),
    ("publish with a failure", |queue| finish(queue, published("a"))),
    ("claim and defer", |queue| {
        claim(queue);
        finish(queue, Outcome::Deferred { until_ms: 0, why: "later".into(), progress: true });
    }),
    ("claim and fail", |queue| {
        claim(queue);
        finish(queue, Outcome::Failed("bad".into()));
    }),
    ("claim once more", |queue| drop(claim(queue))),
    ("start after a death", |queue| assert_eq!(queue.start_runner("me", "host", &[10, 12]).expect("starts").shards, 1)),
    ("sync", |queue| queue.mark_synced(&[(1, None)], &[]).expect("marks")),
    ("retry", |queue| assert!(queue.retry(&RetrySelection::default(), &name).is_ok())),
    ("snapshot", |queue| snapshot(queue.path(), 100..107)),
    ("release", |queue| assert!(queue.release_unworked(1, &mut |_| {}).is_ok())),
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    if let (Some("die"), Some(path), Some(step), Some(at)) =
        (arguments.next().as_deref(), arguments.next(), arguments.next(), arguments.next())
    {
        return die(Path::new(&path), step.parse().expect("a step"), at.parse().expect("a statement"));
    }
    let mut deaths = 0;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("queue.db");
    snapshot(&path, FIRST);
    for (step, (what, work)) in STEPS.iter().enumerate() {
        let before = books(&path);
        let after = {
            let copy = copy_of(&path, &directory.path().join("after"));
            work(&Queue::open(&copy).expect("opens"));
            books(&copy)
        };
        let mut at = 1;
        while kill(&copy_of(&path, &directory.path().join("killed")), step, at, what, &before, &after) {
            (at, deaths) = (at + 1, deaths + 1);
        }
        assert!(at > 2, "{what} was killed at {} statements only: the hook does not work", at - 1);
        work(&Queue::open(&path).expect("opens"));
    }
    deaths += kill_creation(&directory.path().join("created"), &books_of_first_snapshot(directory.path()));
    println!("{deaths} deaths between statements, each left the queue as it was before or after");
    println!("{} passed, 0 failed", STEPS.len() + 1);
}

/// What the first snapshot brings.
const FIRST: std::ops::Range<i64> = 1..13;
/// What stays beside a queue.
const BESIDE: [&str; 2] = ["queue.db", "queue.db.intake-lock"];

fn books_of_first_snapshot(directory: &Path) -> String {
    let path = directory.join("first.db");
    snapshot(&path, FIRST);
    books(&path)
}

/// Kills the making of a queue between any two microshards that are added, and then at any statement; how often. None is
/// there, as it gets its name after the last statement, and the next snapshot makes it and leaves nothing else.
fn kill_creation(directory: &Path, whole: &str) -> u32 {
    let path = directory.join("queue.db");
    let mut deaths = 0;
    for at in (FIRST.start + 1 - FIRST.end).. {
        let _ = std::fs::remove_dir_all(directory);
        std::fs::create_dir(directory).expect("creates");
        let has_lived = lives(&path, CREATION, at);
        assert_eq!(path.exists(), has_lived, "killed at {at}");
        snapshot_again(&path, whole, at);
        if has_lived {
            break;
        }
        deaths += 1;
    }
    assert!(deaths > 40, "{deaths} deaths only: the hook does not work");
    // Between its getting its name and its losing the one it was made under there is no statement to die at.
    std::fs::hard_link(&path, directory.join("queue.db.loading")).expect("links");
    std::fs::write(directory.join("queue.db.staged"), "left").expect("writes");
    snapshot_again(&path, whole, i64::MAX);
    deaths
}

/// Whatever was there before, it comes to the same queue, and to nothing else beside it.
fn snapshot_again(path: &Path, whole: &str, at: i64) {
    snapshot(path, FIRST);
    assert_eq!(books(path), whole, "killed at {at}, then made again");
    let entries = std::fs::read_dir(path.parent().expect("a directory")).expect("lists");
    let mut left: Vec<_> =
        entries.map(|entry| entry.expect("lists").file_name().into_string().expect("UTF-8")).collect();
    left.sort();
    assert_eq!(left, BESIDE, "killed at {at}");
}

/// Whether a process that is to die at a statement of a step lived to its end.
fn lives(path: &Path, step: usize, at: i64) -> bool {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["die".as_ref(), path.as_os_str(), step.to_string().as_ref(), at.to_string().as_ref()])
        .stderr(std::process::Stdio::null())
        .status()
        .expect("starts")
        .success()
}

/// Lets a process die at a statement; false where it lived to its end. Checks what it left.
fn kill(path: &Path, step: usize, at: i64, what: &str, before: &str, after: &str) -> bool {
    let has_lived = lives(path, step, at);
    let left = books(path);
    let is_either = left == before || left == after;
    // What a claim and its finish leave between them is a state of its own: two transactions.
    let is_between = what.contains(" and ") && left != before;
    assert!(is_either || is_between, "{what}, killed at statement {at}:\n{before}\n{left}\n{after}");
    if has_lived {
        assert_eq!(left, after, "{what}, alive");
    }
    !has_lived
}

/// In the process that dies.
fn die(path: &Path, step: usize, at: i64) {
    if step == CREATION {
        if at > 0 {
            die_at_statement(at);
        }
        // Up to 0: before one of the microshards is added.
        let die_before = |id: &i64| {
            if *id - FIRST.end == at - 1 {
                std::process::abort()
            }
        };
        return snapshot(path, FIRST.inspect(die_before));
    }
    let queue = Queue::open(path).expect("opens");
    die_at_statement(at);
    STEPS[step].1(&queue);
}

/// Everything that counts, times left out.
fn books(path: &Path) -> String {
    let queue = Queue::open(path).expect("opens");
    assert_eq!(queue.check().expect("checks"), Vec::<String>::new(), "the books are sound");
    let mut books = format!("{:?}\n", queue.status().expect("reads"));
    let suspects: Vec<i64> = queue.suspects().expect("reads").iter().map(|member| member.seq).collect();
    let deaths = queue.runner().expect("reads").map(|runner| runner.deaths);
    books += &format!("suspects {suspects:?}, deaths in a row {deaths:?}\n");
    let mut add = |shard: microshard_queue::PlannedShard| -> Result<()> {
        books += &format!("{shard:?}\n");
        Ok(())
    };
    queue.for_each_shard(&mut add).expect("reads");
    queue
        .for_each_failure(&mut |failure| {
            books += &format!("{} {} {}\n", failure.seq, failure.sentence, failure.tries);
            Ok(())
        })
        .expect("reads");
    books
}

fn copy_of(path: &Path, to: &Path) -> PathBuf {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).expect("creates");
    let copy = to.join("queue.db");
    // No process has it open, so the log has been folded in.
    std::fs::copy(path, &copy).expect("copies");
    copy
}

struct ByThree;

impl Planner for ByThree {
    fn cut(&self, group: &GroupTotals, _: &mut SizesPass<'_>) -> Result<Vec<Cut>> {
        let cut = |microshards| Cut { microshards, held: false, closed_by: "microshards" };
        let mut cuts = vec![cut(3); (group.microshards / 3) as usize];
        cuts.extend((!group.microshards.is_multiple_of(3)).then(|| cut(group.microshards % 3)));
        Ok(cuts)
    }
}

fn name(run: &str, language: &str, snapshot: u32, shard: u32) -> String {
    format!("{run}-{language}-{snapshot:03}-{shard:05}")
}

fn snapshot(path: &Path, ids: impl Iterator<Item = i64>) {
    let mut intake = Intake::begin(path).expect("begins");
    for id in ids {
        let (language, uri) = (["de", "en"][id as usize % 2].to_owned(), format!("u{id}"));
        intake.add(&Item { microshard_id: Some(id), language, uri, ..Item::default() }).expect("adds");
    }
    let snapshot = NewSnapshot {
        run_id: "run".into(),
        number: Number::From(0),
        claim: String::new(),
        remainders_given_back: false,
    };
    intake.plan(&snapshot, &ByThree, &name).expect("plans");
}

fn claim(queue: &Queue) -> Job {
    let claimer = Claimer { owner: "me", now_ms: 0, lease_ms: 1000, only: None };
    queue.transaction(|| queue.claim(claimer)).expect("claims").expect("something is pending")
}

/// Ends the lease that is held, with the failure of its first member.
fn finish(queue: &Queue, outcome: Outcome) {
    let mut claimed = None;
    let mut find = |shard: microshard_queue::PlannedShard| -> Result<()> {
        if shard.state == 2 {
            claimed = Some((shard.shard, queue.members_of(&shard)?[0].seq));
        }
        Ok(())
    };
    queue.for_each_shard(&mut find).expect("reads");
    let (shard, seq) = claimed.expect("one is claimed");
    let attempt = queue.attempt_of(shard).expect("reads");
    let lease = microshard_queue::Lease { shard, attempt, pulse: microshard_queue::Pulse::default() };
    let failure = Failure { seq, sentence: "404".into(), tries: 1 };
    let finish = Finish { outcome, failures: vec![failure], troubles: vec![] };
    queue.transaction(|| queue.finish(&lease, &finish)).expect("finishes");
}

fn published(key: &str) -> Outcome {
    Outcome::Published(Receipt { key: key.to_owned(), rows: 10, bytes_in: 100, bytes_out: 50, sha256: [7; 32] })
}
