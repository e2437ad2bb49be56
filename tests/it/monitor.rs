//! What a run tells: with a given clock, so every line is compared whole; and that no terminal can stop or kill a run.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use compact_local::monitor::{Amount, Bars, Event, LanguageTotals, Lines, Monitor};
use indicatif::{ProgressDrawTarget, TermLike};

/// A writer that a test can read, or that is closed.
#[derive(Debug, Clone, Default)]
struct Screen {
    text: Arc<Mutex<String>>,
    closed: bool,
    writes: Arc<Mutex<u32>>,
}

impl Screen {
    fn closed() -> Screen {
        Screen { closed: true, ..Screen::default() }
    }

    fn text(&self) -> String {
        self.text.lock().expect("not poisoned").clone()
    }

    fn put(&self, text: &str) -> io::Result<()> {
        *self.writes.lock().expect("not poisoned") += 1;
        if self.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.text.lock().expect("not poisoned").push_str(text);
        Ok(())
    }
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(std::str::from_utf8(bytes).expect("UTF-8"))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        160
    }
    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        self.put("")
    }
    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        self.put("")
    }
    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        self.put("")
    }
    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        self.put("")
    }
    fn write_line(&self, line: &str) -> io::Result<()> {
        self.put(&format!("{line}\n"))
    }
    fn write_str(&self, text: &str) -> io::Result<()> {
        self.put(text)
    }
    fn clear_line(&self) -> io::Result<()> {
        self.put("")
    }
    fn flush(&self) -> io::Result<()> {
        self.put("")
    }
}

fn amount(shards: u64, microshards: u64) -> Amount {
    Amount { shards, microshards, rows: microshards * 70 }
}

fn started(languages: &[(&str, u64, u64)]) -> Event {
    let languages = languages.iter().map(|(language, planned, done)| LanguageTotals {
        language: language.to_string(),
        planned: amount(planned / 250, *planned),
        done: amount(done / 250, *done),
    });
    Event::Started { languages: languages.collect() }
}

fn published(language: &str, shard: &str, microshards: u64, failed: u64) -> Event {
    Event::ShardPublished {
        language: language.into(),
        shard: shard.into(),
        microshards,
        failed,
        rows: microshards * 70,
        bytes_in: microshards * 10_000,
        bytes_out: microshards * 4_000,
    }
}

fn deferred(shard: &str) -> Event {
    let (delay, why) = (Duration::from_secs(20), "the server answered 503".into());
    Event::ShardDeferred { language: "en".into(), shard: shard.into(), delay, why }
}

fn failure(id: i64) -> Event {
    let uri = format!("https://me:pw@h.example/{id}.jsonl?X-Amz-Signature=s3cret");
    Event::MicroshardFailed { id, uri, sentence: "line 3: not a JSON object\u{1b}[2J".into() }
}

fn at(start: Instant, s: u64) -> Instant {
    start + Duration::from_secs(s)
}

#[test]
fn what_a_snapshot_adds_meanwhile_is_part_of_the_whole() {
    let (screen, start) = (Screen::default(), Instant::now());
    let lines = Lines::new(screen.clone());
    lines.event(&started(&[("en", 1000, 0)]));
    lines.tick(start);
    lines.event(&published("en", "s", 1000, 0));
    let Event::Started { languages } = started(&[("en", 1000, 0), ("fr", 3000, 0), ("en", 1000, 0)]) else { return };
    lines.event(&Event::Planned { languages });
    lines.tick(at(start, 10));
    assert!(screen.text().contains("20.0 %  1,000/5,000 microshards"), "{}", screen.text());
}

#[test]
fn a_status_line_comes_every_ten_seconds_and_says_where_things_stand() {
    let (screen, start) = (Screen::default(), Instant::now());
    let lines = Lines::new(screen.clone());
    lines.event(&started(&[("en", 2000, 0), ("bn", 500, 250)]));
    lines.tick(start);
    assert_eq!(
        screen.text(),
        "2,500 microshards, 2 languages, 10 shards; 1 shards with 250 microshards were done before\n"
    );
    for _ in 0..1000 {
        lines.event(&Event::Fetched { bytes: 10_000 });
    }
    lines.event(&published("en", "en-00000", 249, 1));
    lines.event(&published("en", "en-00001", 250, 0));
    lines.tick(at(start, 9));
    assert_eq!(screen.text().lines().count(), 1);
    lines.tick(at(start, 10));
    let second = "30.0 %  750/2,500 microshards  ETA 35 s  failed 1  100/s  in 1.00 MB/s  out 200 kB/s";
    assert_eq!(screen.text().lines().nth(1), Some(second));
    lines.tick(at(start, 11));
    lines.tick(at(start, 19));
    assert_eq!(screen.text().lines().count(), 2);
    lines.tick(at(start, 20));
    assert_eq!(screen.text().lines().count(), 3);
}

#[test]
fn deferred_shards_limits_and_pauses_are_in_the_line_while_they_last() {
    let (screen, start) = (Screen::default(), Instant::now());
    let lines = Lines::new(screen.clone());
    let last_line = || screen.text().lines().last().unwrap_or_default().to_owned();
    lines.tick(start);
    lines.event(&started(&[("en", 500, 0)]));
    lines.event(&deferred("en-00000"));
    lines.event(&deferred("en-00001"));
    lines.event(&deferred("en-00001"));
    lines.event(&Event::OriginLimit { origin: "https://h.example".into(), limit: 8, per_second: Some(20) });
    lines.tick(at(start, 10));
    let first = "0.0 %  0/500 microshards  ETA unknown  0/s  in 0 B/s  out 0 B/s  8 at once, 20 a second from https://h.example  \
                 waiting 2 shards: the server answered 503";
    assert_eq!(last_line(), first);
    lines.event(&published("en", "en-00000", 250, 0));
    lines.event(&Event::Waiting { until: at(start, 65), why: "connection refused".into() });
    lines.tick(at(start, 20));
    assert!(last_line().contains("  pausing 45 s: connection refused  "), "{}", last_line());
    assert!(last_line().contains("waiting 1 shards"), "{}", last_line());
    lines.event(&published("en", "en-00001", 250, 0));
    lines.tick(at(start, 65));
    let last = last_line();
    assert!(
        last.starts_with("100 %") && !["pausing", "waiting", "ETA"].iter().any(|word| last.contains(word)),
        "{last}"
    );
}

#[test]
fn the_speed_is_the_last_minutes_not_the_whole_runs() {
    let (screen, start) = (Screen::default(), Instant::now());
    let lines = Lines::new(screen.clone());
    lines.event(&started(&[("en", 100_000, 0)]));
    for s in 0..=120 {
        lines.tick(at(start, s));
        for _ in 0..if s < 30 { 1000 } else { 10 } {
            lines.event(&Event::Fetched { bytes: 1 });
        }
    }
    let text = screen.text();
    assert!(text.lines().nth(1).is_some_and(|line| line.contains("  1,000/s  ")), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.contains("  10.0/s  ")), "{text}");
}

#[test]
fn a_microshard_told_failed_twice_is_counted_once_when_its_shard_ends() {
    let (screen, start) = (Screen::default(), Instant::now());
    let lines = Lines::new(screen.clone());
    lines.event(&started(&[("en", 500, 0)]));
    lines.event(&failure(7));
    lines.event(&deferred("en-00000"));
    lines.event(&failure(7));
    lines.event(&published("en", "en-00000", 249, 1));
    let (language, shard, sentence) = ("en".into(), "en-00001".into(), "every microshard of it failed".into());
    lines.event(&Event::ShardFailed { language, shard, microshards: 250, sentence });
    lines.tick(start);
    lines.event(&Event::Finished { elapsed: Duration::from_secs(100) });
    let last = "249 microshards into 1 shards in 1 min 40 s (5.00/s): 17,430 rows, in 0 B, out 996 kB, failed 251";
    assert_eq!(screen.text().lines().last(), Some(last));
    assert!(screen.text().contains("shard en-00001 failed: every microshard of it failed\n"));
}

#[test]
fn microshards_that_are_held_are_told_apart_from_those_that_failed() {
    let (screen, start) = (Screen::default(), Instant::now());
    let lines = Lines::new(screen.clone());
    lines.event(&started(&[("en", 750, 0)]));
    lines.event(&published("en", "en-00000", 250, 0));
    lines.event(&held("en-00001", 249));
    lines.tick(start);
    lines.tick(at(start, 10));
    assert!(screen.text().contains("251/501 microshards"), "what is held is planned no more:\n{}", screen.text());
    lines.event(&Event::Finished { elapsed: Duration::from_secs(100) });
    assert!(screen.text().ends_with("failed 1, held 249\n"), "{}", screen.text());
    assert!(screen.text().contains("shard en-00001 is held: 1 failed\n"));
}

fn held(shard: &str, microshards: u64) -> Event {
    Event::ShardHeld { language: "en".into(), shard: shard.into(), microshards, failed: 1, why: "1 failed".into() }
}

#[test]
fn a_run_that_published_nothing_tells_no_speed() {
    let last = |events: &[Event]| {
        let screen = Screen::default();
        let lines = Lines::new(screen.clone());
        events.iter().for_each(|event| lines.event(event));
        lines.event(&Event::Finished { elapsed: Duration::from_secs(2) });
        screen.text().lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(last(&[started(&[])]), "nothing to do");
    assert_eq!(last(&[started(&[("en", 500, 0)])]), "no shard was published in 2 s: failed 0");
    let failed = [started(&[("en", 500, 0)]), held("en-00001", 249)];
    assert_eq!(last(&failed), "no shard was published in 2 s: failed 1, held 249");
}

#[test]
fn only_the_first_failures_are_told_and_never_a_secret_or_an_escape() {
    let screen = Screen::default();
    let lines = Lines::new(screen.clone());
    (0..10_000).for_each(|id| lines.event(&failure(id)));
    lines.tick(Instant::now());
    let text = screen.text();
    let all: Vec<&str> = text.lines().collect();
    assert_eq!(all.len(), 21);
    let first = r"microshard 0 (https://h.example/0.jsonl) failed: line 3: not a JSON object\u{1b}[2J";
    assert_eq!((all[0], all[20]), (first, "more failures: `failures` lists them all"));
}

/// A monitor must survive this: every kind of event, ticks, and the end.
fn play(monitor: &dyn Monitor) {
    let start = Instant::now();
    monitor.event(&started(&[("en", 500, 0), ("বাংলা", 250, 0)]));
    for s in 0..30 {
        monitor.event(&failure(s as i64));
        monitor.event(&Event::Fetched { bytes: 1 });
        monitor.tick(at(start, s));
    }
    monitor.event(&published("en", "en-00000", 249, 1));
    monitor.tick(at(start, 31));
    monitor.event(&published("unannounced", "x-00000", 1, 0));
    monitor.event(&Event::Finished { elapsed: Duration::from_secs(31) });
}

#[test]
fn a_closed_pipe_ends_the_lines_and_not_the_run() {
    let screen = Screen::closed();
    play(&Lines::new(screen.clone()));
    assert_eq!(*screen.writes.lock().expect("not poisoned"), 1);
}

#[test]
fn bars_show_every_language_failures_and_the_end() {
    let screen = Screen::default();
    play(&Bars::new(ProgressDrawTarget::term_like(Box::new(screen.clone()))));
    let text = screen.text();
    for part in [
        "all  ",
        "en  ",
        "বাংলা",
        "250/500",
        "microshard 0 (https://h.example/0.jsonl) failed",
        "250 microshards into 2 shards in 31 s",
    ] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    assert!(!text.contains("s3cret"));
}

#[test]
fn bars_on_a_terminal_that_is_gone_do_not_panic() {
    let screen = Screen::closed();
    play(&Bars::new(ProgressDrawTarget::term_like(Box::new(screen.clone()))));
    assert!(*screen.writes.lock().expect("not poisoned") > 0);
}

/// A pipe whose reader has stopped: a write says that it began, and ends when the reader is gone.
struct Stuck {
    began: Sender<()>,
    gone: Receiver<()>,
}

impl Write for Stuck {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        self.began.send(()).expect("the test listens");
        let _ = self.gone.recv(); // nothing is ever sent: it ends with its sender
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_has_stopped_keeps_no_lane_waiting() {
    let (began, has_begun) = channel();
    let (reader, gone) = channel();
    let lines = Lines::new(Stuck { began, gone });
    std::thread::scope(|scope| {
        lines.event(&started(&[("en", 500, 0)]));
        scope.spawn(|| lines.tick(Instant::now()));
        has_begun.recv().expect("the tick writes");
        // The ticking thread hangs in its write now. If an event waited for it, this test would never end.
        (0..1000).for_each(|id| lines.event(&failure(id)));
        drop(reader);
    });
}
