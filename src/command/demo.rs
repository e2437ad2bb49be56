//! `demo`: the main job on generated microshards, through the same commands that a real export goes through, served by
//! an HTTP origin inside this process.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use microshard_queue::{GroupStatus, Queue};

use super::table::Table;
use super::{Exit, run as run_command};
use crate::cli::{Cli, Demo};
use crate::demo::generate::{Generate, Generated, generate};
use crate::demo::origin::Origin;
use crate::monitor::human;

/// Faulty microshards, unless told otherwise: enough to show each kind of fault.
const FAULTY: u64 = 12;

pub(super) fn run(args: &Demo, out: &mut dyn Write) -> Result<Exit> {
    let faulty = args.faulty.unwrap_or(if args.generate_only { 0 } else { FAULTY.min(args.microshards / 4) });
    let plan = Generate { microshards: args.microshards, seed: args.seed, faulty, dir: args.dir.clone() };
    let generated = generate(&plan, &mut |_| {})?;
    writeln!(
        out,
        "generated {} microshards with {} rows and {}, {} of them faulty on purpose: {}",
        human::count(generated.microshards),
        human::count(generated.rows),
        human::bytes(generated.bytes),
        human::count(generated.faults.len() as u64),
        generated.manifest.display()
    )?;
    if args.generate_only {
        return Ok(Exit::Done);
    }
    let origin = Origin::start(&args.dir).context("failed to start the demo's origin")?;
    let job = Job { dir: &args.dir, origin: origin.url(), threads: args.threads };
    let elapsed = job.do_all(&generated, out)?;
    report(&args.dir.join("queue.db"), &generated, elapsed, out)?;
    suggest(&args.dir, out)?;
    Ok(Exit::Done)
}

/// The main job, as command lines.
struct Job<'a> {
    dir: &'a Path,
    origin: String,
    threads: u16,
}

impl Job<'_> {
    /// Runs the commands one after the other; returns how long `run` took.
    fn do_all(&self, generated: &Generated, out: &mut dyn Write) -> Result<Duration> {
        let queue = self.path("queue.db");
        let manifest = generated.manifest.display().to_string();
        let threads = self.threads.to_string();
        let output = self.path("shards");
        step(&["snapshot", "--manifest", &manifest, "--source", &self.origin, "--queue", &queue], Exit::Done, out)?;
        let started = Instant::now();
        let expected = if generated.faults.is_empty() { Exit::Done } else { Exit::Incomplete };
        step(&["run", "--threads", &threads, "--output", &output, "--queue", &queue], expected, out)?;
        let elapsed = started.elapsed();
        step(&["sync-back", "--queue", &queue], Exit::Done, out)?;
        step(&["verify", "--source", "--queue", &queue], expected, out)?;
        Ok(elapsed)
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }
}

/// Shows a command and carries it out.
fn step(args: &[&str], expected: Exit, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\n$ compact-local {}", args.join(" "))?;
    out.flush()?;
    let cli = Cli::try_parse_from(std::iter::once(&"compact-local").chain(args))?;
    let exit = run_command(&cli.command, out)?;
    if exit != expected {
        bail!("`{}` ended with code {}, expected {}", args.join(" "), exit.code(), expected.code());
    }
    Ok(())
}

/// What was done, what failed and why, and how fast.
fn report(queue: &Path, generated: &Generated, elapsed: Duration, out: &mut dyn Write) -> Result<()> {
    let queue = Queue::open(queue)?;
    let mut table = Table::new(&["language", "microshards", "failed", "shards", "rows", "in", "out"]);
    let groups = queue.status()?;
    let total = GroupStatus { language: "all".to_owned(), ..GroupStatus::total(&groups) };
    for group in groups.iter().chain([&total]) {
        let mut cells = vec![group.language.clone()];
        let numbers = [group.microshards.total(), group.microshards.failed, group.shards.published, group.rows];
        cells.extend(numbers.map(human::count));
        cells.extend([group.bytes_in, group.bytes_out].map(human::bytes));
        table.row(cells);
    }
    writeln!(out)?;
    table.print(out)?;
    let seconds = elapsed.as_secs_f64().max(0.001);
    writeln!(
        out,
        "\n`run` took {}: microshards {}, rows {}, downloaded {}",
        human::duration(elapsed),
        human::per_s(total.microshards.total() as f64 / seconds),
        human::per_s(total.rows as f64 / seconds),
        human::bytes_per_s(total.bytes_in as f64 / seconds)
    )?;
    if total.microshards.failed != generated.faults.len() as u64 {
        bail!("{} microshards failed, {} were faulty", total.microshards.failed, generated.faults.len());
    }
    if !generated.faults.is_empty() {
        writeln!(out, "\nfailed, as they were made to:")?;
    }
    queue.for_each_failure(&mut |failure| {
        let _ = writeln!(out, "  {} ({}): {}", failure.microshard_id, failure.language, failure.sentence);
        Ok(())
    })?;
    Ok(())
}

fn suggest(dir: &Path, out: &mut dyn Write) -> Result<()> {
    let dir = dir.display();
    writeln!(
        out,
        "\ntry next:\n  \
         compact-local status --queue {dir}/queue.db\n  \
         compact-local plan --queue {dir}/queue.db\n  \
         compact-local failures --json --queue {dir}/queue.db\n  \
         zstd -dc {dir}/shards/en/*.jsonl.zst | head -n 3\n  \
         head {dir}/shards/index.json {dir}/shards/microshards.csv\n\
         your own Postgres: compact-local init-manifest --print, then the tutorial in README.md"
    )?;
    Ok(())
}
