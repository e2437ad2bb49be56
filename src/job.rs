//! One job, from its claim to its outcome, top to bottom: fetch, build, publish. What goes wrong with a microshard or a
//! shard is data, an outcome; what goes wrong with the run is an error, and fails nothing.

#![expect(clippy::indexing_slicing, reason = "indexes of the job's members, from its own builder")]

use std::path::Path;
use std::time::Duration;

use microshard_queue::{Client, Failure, Finish, Job, Outcome, Receipt, now_ms};

use crate::build::{Appended, Built, Pause, Readers, ShardBuilder};
use crate::config::Output;
use crate::error::{StoreError, Trouble};
use crate::faults::passed;
use crate::fetch::{Bodies, Fetch, Fetched};
use crate::format::EXTENSION;
use crate::hint;
use crate::isolate::Gate;
use crate::monitor::Event;
use crate::naming;
use crate::patience::Refusals;
use crate::slots::Slots;
use crate::store::{Digest, ObjectStore, Spool, UploadLog};

/// What every job works with.
pub struct Tools<'a> {
    /// Downloads.
    pub fetch: Fetch<'a>,
    /// Decoding and encoding.
    pub builders: &'a rayon::ThreadPool,
    /// The builders' buffers.
    pub readers: &'a Readers,
    /// Crash slots.
    pub slots: &'a Slots,
    /// Shut while suspects are tried alone.
    pub gate: &'a Gate,
    /// Where shards go.
    pub store: &'a dyn ObjectStore,
    /// Of the store.
    pub refusals: &'a Refusals,
    /// What shards are like.
    pub output: &'a Output,
    /// The record of uploads in parts.
    pub queue: &'a Client,
    /// The queue's file, for hints.
    pub queue_path: &'a Path,
}

/// Trouble of the run, not of the job.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An origin or the output cannot be used.
    #[error("{error}{}", .advice)]
    Store {
        /// What happened.
        error: StoreError,
        /// What to do.
        advice: Box<str>,
    },
    /// The queue refused.
    #[error(transparent)]
    Queue(#[from] microshard_queue::Error),
}

/// A job's failures so far, beside its bodies.
struct Work<'a, 'b> {
    job: &'a Job,
    bodies: &'a mut Bodies<'b>,
    failures: Vec<Failure>,
}

/// How the building of a shard went.
enum Build {
    Done(Built, Digest),
    /// A doubtful microshard could not be asked for anew just now.
    Later(Outcome),
}

/// Works one job. `bodies` may hold what an earlier attempt fetched, and keeps what this one did.
pub fn run(job: &Job, bodies: &mut Bodies<'_>, tools: &Tools<'_>) -> Result<Finish, RunError> {
    let mut work = Work { job, bodies, failures: Vec::new() };
    let slept = match tools
        .fetch
        .fetch_all(job, work.bodies, &mut work.failures)
        .map_err(|error| input_trouble(error, tools))?
    {
        Fetched::All { slept } => slept,
        Fetched::Stopped => return Ok(work.end(Outcome::Released)),
        Fetched::Later(later) => {
            let outcome = Outcome::Deferred { until_ms: later.until_ms, why: later.why, progress: later.progress };
            return Ok(Finish { outcome, failures: work.failures, troubles: later.troubles });
        }
    };
    if !tools.gate.wait(tools.fetch.patience.in_lane_max.saturating_sub(slept)) {
        return Ok(work.end(after_suspects(job, tools)));
    }
    let key = naming::shard_key(&job.language, &job.name, EXTENSION);
    let spool = tools.store.spool(&key).map_err(output_trouble)?;
    let (built, digest) = match work.build(&spool, &key, tools)? {
        Build::Done(built, digest) => (built, digest),
        Build::Later(outcome) => return Ok(work.end(outcome)),
    };
    tools.fetch.monitor.event(&Event::RowsBuilt { rows: built.rows });
    if let Some(outcome) = work.without_object(&built, tools.output.hold_on_failure) {
        return Ok(work.end(outcome));
    }
    if tools.fetch.stop.is_set() {
        return Ok(work.end(Outcome::Released));
    }
    passed("job: publish");
    let outcome = publish(&key, spool, &built, &digest, tools)?;
    passed("job: published");
    Ok(work.end(outcome))
}

impl Work<'_, '_> {
    /// Encodes all members that are good. A bad one is fetched once more before it fails.
    fn build(&mut self, spool: &Spool, key: &str, tools: &Tools<'_>) -> Result<Build, RunError> {
        let spool_trouble = |error| output_trouble(spool.trouble(format!("{}/{key}", tools.store.base()), error));
        let mut shard = ShardBuilder::create(&self.job.members, tools.slots, tools.readers, tools.output, spool)
            .map_err(spool_trouble)?;
        let mut fetched_again = None;
        loop {
            match append_all(&mut shard, self.bodies, tools) {
                Ok(()) => break,
                Err(Pause::Spool(error)) => return Err(spool_trouble(error)),
                Err(Pause::Bad(index, _)) if fetched_again != Some(index) => {
                    fetched_again = Some(index);
                    if let Some(outcome) = self.fetch_again(index, tools)? {
                        return Ok(Build::Later(outcome));
                    }
                }
                Err(Pause::Bad(index, bad)) => {
                    self.fail(index, bad.sentence);
                    shard.skip();
                }
            }
            self.job.lease.pulse.beat();
        }
        let (built, digest) = tools.builders.install(|| shard.finish()).map_err(spool_trouble)?;
        Ok(Build::Done(built, digest))
    }

    /// A glitch of the network must not look like a bad object: what came is thrown away and asked for anew. Where that
    /// does not work now, the job is deferred.
    fn fetch_again(&mut self, index: usize, tools: &Tools<'_>) -> Result<Option<Outcome>, RunError> {
        let member = &self.job.members[index];
        match tools.fetch.fetch_again(self.job, index) {
            Ok(body) => self.bodies.set(member.seq, body),
            Err(_) if tools.fetch.stop.is_set() => return Ok(Some(Outcome::Released)),
            Err(error) if error.trouble.is_passing() => {
                self.bodies.remove(member.seq);
                return Ok(Some(deferred(self.job, &error, tools)));
            }
            Err(error) if error.trouble == Trouble::Misconfigured => return Err(input_trouble(error, tools)),
            // It is gone meanwhile: what was downloaded before is judged as it is.
            Err(_) => {}
        }
        Ok(None)
    }

    fn fail(&mut self, index: usize, sentence: String) {
        let member = &self.job.members[index];
        self.failures.push(Failure { seq: member.seq, sentence, tries: member.tries + 1 });
    }

    /// How the job ends where there is nothing to publish, or it must wait.
    fn without_object(&self, built: &Built, hold_on_failure: bool) -> Option<Outcome> {
        let failed = self.failures.len() as u64 + self.job.failed_before;
        if hold_on_failure && failed > 0 {
            return Some(Outcome::Held(format!("{failed} of its microshards failed: `retry` brings it back")));
        }
        if built.microshards == 0 {
            return Some(Outcome::Failed("all its microshards failed".to_owned()));
        }
        // Microshards without rows are consumed; a shard of zero rows is never published.
        (built.rows == 0).then(|| Outcome::Published(Receipt { bytes_in: built.bytes_in, ..Receipt::default() }))
    }

    fn end(self, outcome: Outcome) -> Finish {
        // A job that is given back begins anew: what failed now is found again.
        let failures = if outcome == Outcome::Released { Vec::new() } else { self.failures };
        Finish { outcome, failures, troubles: Vec::new() }
    }
}

/// Adds members on a builder, until one is bad. A large one waits for its turn here, so that no builder does.
fn append_all(shard: &mut ShardBuilder<'_>, bodies: &Bodies<'_>, tools: &Tools<'_>) -> Result<(), Pause> {
    while tools.builders.install(|| shard.append_all(bodies))? == Appended::UpToLarge {
        let _turn = tools.readers.large_turn();
        tools.builders.install(|| shard.append_large(bodies))?;
    }
    Ok(())
}

/// Data, then reference (I4): the object is confirmed before the queue hears of it.
fn publish(key: &str, spool: Spool, built: &Built, digest: &Digest, tools: &Tools<'_>) -> Result<Outcome, RunError> {
    let receipt = Receipt {
        key: key.to_owned(),
        rows: built.rows,
        bytes_in: built.bytes_in,
        bytes_out: digest.bytes,
        sha256: digest.sha256,
    };
    match tools.store.put(key, spool, digest, &Uploads(tools.queue)) {
        Ok(()) => {
            tools.refusals.end();
            Ok(Outcome::Published(receipt))
        }
        Err(error) if error.trouble.is_passing() => {
            let (patience, (count, refused_for)) = (tools.fetch.patience, tools.refusals.count());
            if patience.output_is_lost(count, refused_for) {
                return Err(output_trouble(error));
            }
            // All is fetched, which is progress: an output that refuses for long stops the run, and fails no shard.
            let wait = patience.deferral_after(count - 1, error.trouble);
            Ok(Outcome::Deferred { until_ms: after(wait), why: error.to_string(), progress: true })
        }
        Err(error) => Err(output_trouble(error)),
    }
}

/// The job is taken up again later because of a single object.
fn deferred(job: &Job, error: &StoreError, tools: &Tools<'_>) -> Outcome {
    let wait = tools.fetch.patience.deferral_after(job.deferrals, error.trouble);
    Outcome::Deferred { until_ms: after(wait), why: error.to_string(), progress: false }
}

/// Unix milliseconds.
fn after(wait: Duration) -> i64 {
    now_ms() + wait.as_millis() as i64
}

/// Everything is fetched, but a suspect is still on its way to be tried: the lane is given back (I9).
fn after_suspects(job: &Job, tools: &Tools<'_>) -> Outcome {
    let wait = tools.fetch.patience.deferral(job.deferrals);
    let why = "a microshard that the process died on is tried alone before anything else is decoded".to_owned();
    Outcome::Deferred { until_ms: after(wait), why, progress: true }
}

/// The queue keeps the record of uploads in parts.
struct Uploads<'a>(&'a Client);

impl UploadLog for Uploads<'_> {
    fn started(&self, key: &str, upload_id: &str) -> Result<(), StoreError> {
        self.0.upload_started(key, upload_id).map_err(|error| unlogged(key, error))
    }

    fn ended(&self, key: &str, upload_id: &str) -> Result<(), StoreError> {
        self.0.upload_ended(key, upload_id).map_err(|error| unlogged(key, error))
    }
}

fn unlogged(key: &str, error: microshard_queue::Error) -> StoreError {
    let cause = error.to_string();
    StoreError {
        operation: "record the upload of",
        object: key.to_owned(),
        trouble: Trouble::Local,
        cause,
        source: Some(Box::new(error)),
    }
}

fn input_trouble(error: StoreError, tools: &Tools<'_>) -> RunError {
    let advice = match error.trouble {
        Trouble::Gone => {
            let release = hint::command("release", tools.queue_path);
            return RunError::Store {
                error,
                advice: format!(
                    ": no object has been served so far and many are missing; is --source right? If not, run `{release}`, \
                     then snapshot again with the right one; no microshard was failed for it"
                )
                .into(),
            };
        }
        Trouble::TooLarge => {
            ": no object has been served so far and many are too large; is --source right, and --max-microshard-bytes enough? \
             No microshard was failed for it"
        }
        Trouble::Denied => ": it serves hardly any object to us; check credentials and permissions, then run again",
        Trouble::Misconfigured => ": set this right, then run again; no microshard was failed for it",
        _ => ": its origin has not answered for a while; run again when it does; no microshard was failed for it",
    };
    RunError::Store { error, advice: advice.into() }
}

/// The output cannot be used: what to do about it.
pub fn output_trouble(error: StoreError) -> RunError {
    let advice = match error.trouble {
        Trouble::Conflict => {
            ": repeat the options it was written with (with --lenient, or without), choose another --output, or move the object away; \
             then run again"
        }
        Trouble::Local => ": check free space and permissions, then run again; nothing committed is lost",
        trouble if trouble.is_passing() => {
            ": it has taken nothing for a while; run again when it does; nothing committed is lost"
        }
        _ => ": set this right, then run again; nothing committed is lost",
    };
    RunError::Store { error, advice: advice.into() }
}
