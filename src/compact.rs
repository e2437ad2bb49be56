//! The spine of `run`: open, wire threads and channels, join. All threads and channels of a run are made here.
//!
//! Lanes wait for fetchers, builders, the network, the queue and the trying of suspects, which waits for fetchers; fetchers
//! for the network; builders for nothing; the queue's writer for requests. The graph has no cycle. Work ends when senders are dropped: lanes first, then the rest.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use crossbeam_channel::bounded;
use microshard_queue::{Acquired, Client, GroupStatus, Lock, LockKind, Queue, Waiting, now_ms, with_suffix};

use crate::budget::Budget;
use crate::build::Readers;
use crate::config::Config;
use crate::errand::Errands;
use crate::faults::passed;
use crate::fetch::{self, Fetch, FromLanes, ToFetchers};
use crate::format::Limits;
use crate::index;
use crate::insist::insist;
use crate::interrupt::Interrupt;
use crate::isolate::{self, Gate};
use crate::job::{RunError, Tools};
use crate::lane::{self, Lane};
use crate::leftovers;
use crate::manifest::Held;
use crate::memory::Memory;
use crate::monitor::{Amount, Event, LanguageTotals, Monitor};
use crate::origins;
use crate::park::Park;
use crate::patience::Refusals;
use crate::slots::Slots;
use crate::stop::{Stop, StopOnPanic};
use crate::store::{self, ObjectStore, Sources};
use crate::told;
use crate::waits;

/// A fetcher's stack: TLS and an HTTP client fit into half of it (CRATES: 256 KiB suffice).
const FETCHER_STACK: usize = 512 << 10;
/// Microshards of most jobs.
const JOB_USUAL: usize = 1_000;
/// How often the monitor and the interrupt are looked at.
const TICK: Duration = Duration::from_millis(100);
/// Ticks between two looks at the plan: a snapshot may add to it while the run works.
const PLAN_TICKS: u64 = 20;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Nothing is left to do.
    Done(GroupStatus),
    /// It was told to stop; what was not done is pending.
    Interrupted(GroupStatus),
    /// Another runner is at work; says which, since when and how far.
    Busy(String),
}

/// Builds and publishes what is pending in the queue, and writes the dataset index.
///
/// # Errors
/// Trouble of the run: the queue, an origin or the output cannot be used. What was committed stays.
pub fn run(config: &Config, monitor: &dyn Monitor, interrupt: &Interrupt) -> Result<Ended> {
    let queue = Queue::open(&config.queue)?;
    let lock = Lock::acquire(&config.queue, LockKind::Runner)?;
    let busy = match &lock {
        Acquired::Ours(_) => false,
        Acquired::Busy => true,
        Acquired::NoLocks => queue.may_be_at_work()?,
    };
    if busy {
        return Ok(Ended::Busy(who_is_at_work(&queue)?));
    }
    let started = Instant::now();
    for (run_id, weight) in &config.weights {
        queue.set_weight(run_id, *weight)?;
    }
    let only = config.only.as_deref();
    only.map(|run_id| queue.run_named(run_id)).transpose()?;
    let store = store::open(&config.output.location, &config.store, &queue.queue_id()?)?;
    refuse_output_in_listing(&queue, &config.output.location)?;
    config.output.bind(&queue)?;
    insist(&config.patience, interrupt, &mut || store.check_writable().map_err(Into::into))?;
    passed("run: bound");
    let slots = Slots::open(&with_suffix(queue.path(), ".slots"))?;
    insist(&config.patience, interrupt, &mut || leftovers::remove(&queue, store.as_ref()))?;
    let owner = start(&queue, &slots)?;
    let sources = Sources::new(config.store.clone(), config.bounds());
    let stop = Stop::default();
    let shared = Shared {
        config,
        queue: &queue,
        store: store.as_ref(),
        sources: &sources,
        slots: &slots,
        stop: &stop,
        monitor,
        interrupt,
    };
    passed("run: started");
    monitor.event(&Event::Started { languages: languages(&queue, only)? });
    let mut total = total(&queue, only)?;
    if config.lenient && total.shards.pending > 0 {
        index::expect_lenient(&queue)?;
    }
    // A snapshot may add shards in the very moment the last lane ends.
    while total.shards.pending > 0 && !interrupt.requested() {
        work(&shared, &owner)?;
        total = self::total(&queue, only)?;
    }
    if total.shards.pending == 0 {
        passed("run: index");
        // The head (I4): the index comes last, when every shard is confirmed.
        insist(&config.patience, interrupt, &mut || index::write(&queue, store.as_ref(), &config.output))?;
    }
    passed("run: finished");
    monitor.event(&Event::Finished { elapsed: started.elapsed() });
    Ok(if total.shards.pending == 0 { Ended::Done(total) } else { Ended::Interrupted(total) })
}

/// Shards in a directory that is a listing would be taken for microshards by the next snapshot.
fn refuse_output_in_listing(queue: &Queue, output: &str) -> Result<()> {
    for snapshot in queue.snapshots()? {
        if let Ok(Held::Listing { listing }) = Held::parse(&snapshot.claim)
            && Path::new(&listing).is_dir()
            && Path::new(output).starts_with(&listing)
        {
            bail!("--output {output} is inside the manifest {listing}: its shards would be listed as microshards");
        }
    }
    Ok(())
}

/// What everything in a run shares.
struct Shared<'a> {
    config: &'a Config,
    /// For reading; the writer has a connection of its own.
    queue: &'a Queue,
    store: &'a dyn ObjectStore,
    sources: &'a Arc<Sources>,
    slots: &'a Slots,
    stop: &'a Stop,
    monitor: &'a dyn Monitor,
    interrupt: &'a Interrupt,
}

impl<'a> Shared<'a> {
    fn fetch(&self, to_fetchers: ToFetchers, has_served: bool) -> Fetch<'a> {
        let Shared { config, sources, stop, monitor, .. } = *self;
        let (patience, bytes_max) = (&config.patience, config.output.max_microshard_bytes);
        Fetch { to_fetchers, sources, patience, bytes_max, has_served, monitor, stop }
    }
}

/// Takes over what a dead runner left in the queue: claims, suspects.
fn start(queue: &Queue, slots: &Slots) -> Result<String> {
    let owner = format!("{:016x}", fastrand::u64(..));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let started = queue.start_runner(&owner, &host, &slots.suspects());
    if !matches!(started, Err(microshard_queue::Error::Database { .. })) {
        // The suspects are on record, also where the runner is not to start.
        slots.clear();
    }
    started?;
    Ok(owner)
}

/// What is planned and done, by run and language; of all runs or of one.
fn languages(queue: &Queue, only: Option<&str>) -> Result<Vec<LanguageTotals>> {
    let groups = queue.status()?;
    Ok(groups.iter().filter(|group| only.is_none_or(|only| group.run_id == only)).map(language_totals).collect())
}

fn language_totals(group: &GroupStatus) -> LanguageTotals {
    let (shards, microshards) = (&group.shards, &group.microshards);
    let amount = |shards, microshards| Amount { shards, microshards, rows: 0 };
    LanguageTotals {
        language: group.language.clone(),
        planned: amount(shards.total() - shards.held, microshards.total() - microshards.held),
        done: amount(shards.published + shards.failed, microshards.consumed + microshards.failed),
    }
}

/// Makes every thread and channel, and joins them. The first error of a lane wins, unless the queue itself failed.
fn work(shared: &Shared<'_>, owner: &str) -> Result<()> {
    let Shared { config, store, sources, slots, stop, monitor, .. } = *shared;
    let queue = Queue::open(&config.queue)?;
    let needs = config.needs(&queue)?;
    let memory = Memory::divide(&needs)?;
    let only = config.only.as_deref().map(|run_id| queue.run_named(run_id)).transpose()?;
    let has_served = total(&queue, None)?.rows > 0;
    let lanes = memory.lanes;
    let budget = Budget::new(memory.bodies);
    let (park, refusals) = (Park::default(), Refusals::default());
    let limits = config.limits();
    let readers = Readers::new(config.builders, limits, Limits { bytes_max: memory.decoded_beside, ..limits });
    let gate = &Gate::default();
    let suspecting = Queue::open(&config.queue)?;
    let builders = rayon::ThreadPoolBuilder::new()
        .num_threads(config.builders)
        .thread_name(|index| format!("builder-{index}"))
        .build()
        .context("failed to start the builders: lower --builders or raise the limit (ulimit -u)")?;
    // One request in hand for each lane: a lane waits for its answer before it asks again.
    let (to_queue, queue_requests) = bounded(lanes);
    // A lane asks for a whole job at once, as long as it is no larger than usual: jobs are fetched one after another, and the
    // first is built while the next comes.
    let (to_fetchers, requests) = bounded(lanes * JOB_USUAL);
    // One for each fetcher that could take it: where more are slow, what is left is not asked for again.
    let (to_free_fetchers, repeats) = bounded(config.threads);
    let to_fetchers = ToFetchers { requests: to_fetchers, repeats: to_free_fetchers };
    let from_lanes = FromLanes { requests, repeats };
    let errands = Errands::new(config.threads);

    thread::scope(|scope| {
        let writer = thread::Builder::new().name("queue".into()).spawn_scoped(scope, || {
            let _stop = StopOnPanic(stop);
            queue.serve(owner, only, &queue_requests, stop.flag(), &|waiting| monitor.event(&all_wait(waiting)))
        });
        let writer = writer.context("failed to start the queue's thread: raise the limit (ulimit -u)")?;
        for (index, place) in errands.places().enumerate() {
            let (requests, reader) = (from_lanes.clone(), sources.reader());
            thread::Builder::new()
                .name(format!("fetcher-{index}"))
                .stack_size(FETCHER_STACK)
                .spawn_scoped(scope, move || fetch::serve(&requests, reader, place, stop))
                .context("failed to start the download threads: lower --threads or raise the limit (ulimit -u)")?;
        }
        drop(from_lanes);
        let fetch = shared.fetch(to_fetchers.clone(), has_served);
        let isolation = thread::Builder::new().name("isolation".into()).spawn_scoped(scope, move || {
            let _stop = StopOnPanic(stop);
            isolate::try_suspects(&suspecting, &fetch, slots, &config.output, gate).inspect_err(|_| stop.set())
        });
        let mut working =
            vec![isolation.context("failed to start the trying of suspects: raise the limit (ulimit -u)")?];
        for index in 0..lanes {
            let client = Client::new(to_queue.clone());
            let fetch = shared.fetch(to_fetchers.clone(), has_served);
            let (builders, readers, budget, park, refusals) = (&builders, &readers, &budget, &park, &refusals);
            let lane = thread::Builder::new().name(format!("lane-{index}")).spawn_scoped(scope, move || {
                let _stop = StopOnPanic(stop);
                let output = &config.output;
                let queue_path = &config.queue;
                let queue = &client;
                let tools = Tools { fetch, builders, readers, slots, gate, store, refusals, output, queue, queue_path };
                lane::run(&Lane { tools, budget, job_bytes: needs.job, park, monitor }).inspect_err(|_| stop.set())
            });
            working.push(lane.context("failed to start the lanes: lower --threads or raise the limit (ulimit -u)")?);
        }
        drop((to_queue, to_fetchers));
        let watched = watch(&working, shared, &errands).inspect_err(|_| stop.set());
        let worked = working.into_iter().map(join).fold(Ok(()), Result::and);
        join(writer)?;
        worked.map_err(Into::into).and(watched)
    })
}

fn all_wait(waiting: &Waiting) -> Event {
    let left_ms = (waiting.until_ms - now_ms()).max(0) as u64;
    Event::Waiting { until: Instant::now() + Duration::from_millis(left_ms), why: waiting.why.clone() }
}

/// Keeps the monitor going and passes an interrupt on, until all lanes have ended.
fn watch(lanes: &[ScopedJoinHandle<'_, Result<(), RunError>>], shared: &Shared<'_>, errands: &Errands) -> Result<()> {
    let Shared { config, queue, sources, stop, monitor, interrupt, .. } = *shared;
    let mut limits = HashMap::new();
    let (mut origins, mut waits) = (Vec::new(), Vec::new());
    told::forget(queue, origins::KEY)?;
    told::forget(queue, waits::KEY)?;
    let mut planned = languages(queue, config.only.as_deref())?;
    for tick in 1_u64.. {
        if lanes.iter().all(ScopedJoinHandle::is_finished) {
            break;
        }
        if interrupt.requested() {
            stop.set();
        }
        if stop.is_set() {
            errands.give_up();
        }
        for (origin, tally) in sources.tallies() {
            let Some(load) = tally.load else { continue };
            let limit = (load.in_flight as u32, load.per_second.map(|rate| rate.round() as u32));
            if limits.insert(origin.clone(), limit) != Some(limit) {
                monitor.event(&Event::OriginLimit { origin, limit: limit.0, per_second: limit.1 });
            }
        }
        if tick.is_multiple_of(PLAN_TICKS) {
            let now = languages(queue, config.only.as_deref())?;
            if !now.iter().map(|language| language.planned).eq(planned.iter().map(|language| language.planned)) {
                monitor.event(&Event::Planned { languages: now.clone() });
            }
            planned = now;
            told::keep(queue, origins::KEY, &mut origins, origins::now(sources))?;
            told::keep(queue, waits::KEY, &mut waits, waits::now(errands))?;
        }
        monitor.tick(Instant::now());
        thread::sleep(TICK);
    }
    Ok(())
}

/// A thread's result; its panic goes on here.
fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The counters over all languages, of all runs or of one.
fn total(queue: &Queue, only: Option<&str>) -> Result<GroupStatus> {
    let groups = queue.status()?;
    Ok(GroupStatus::total(groups.iter().filter(|group| only.is_none_or(|only| group.run_id == only))))
}

fn who_is_at_work(queue: &Queue) -> Result<String> {
    let total = total(queue, None)?;
    let Some(runner) = queue.runner()? else { return Ok("another runner has just started on this queue".to_owned()) };
    let since = Duration::from_millis((now_ms() - runner.started_at_ms).max(0) as u64);
    Ok(format!(
        "another runner is at work on this queue: process {} on {}, for {}, {} of {} shards published",
        runner.pid,
        runner.host,
        humantime::format_duration(Duration::from_secs(since.as_secs())),
        total.shards.published,
        total.shards.total()
    ))
}
