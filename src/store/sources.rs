//! Where microshards are read: every origin of the manifest, with what all threads know of it (`Sources`), and what each
//! thread has of its own (`Reader`: connections). A `get` waits for the origin's throttle, asks once and keeps the tally.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::throttle::{Bounds, Load, NotNow, Throttle, Verdict};
use super::usual::Usual;
use super::{Ask, GetOptions, ObjectStore, ObjectUri, Origin, Result, StoreError, StoreSettings, Trouble, open_origin};
use crate::shown::shown_uri;

/// What an origin did so far: whether trouble is an object's or the origin's own.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Objects served whole.
    pub ok: u64,
    /// 401 and 403.
    pub denied: u64,
    /// 404 and the like, and what is too large to be one of ours.
    pub gone: u64,
    /// Pleas for less.
    pub throttled: u64,
    /// When the last of them came.
    pub throttled_at: Option<Instant>,
    /// Resets, timeouts, 5xx, short bodies.
    pub transient: u64,
    /// Since when it has served nothing although it was asked; nothing once it serves an object.
    pub silent_since: Option<Instant>,
    /// Vain requests since then.
    pub vain: u64,
    /// For how many different objects: one that is asked for again and again says nothing of the origin.
    pub vain_objects: u64,
    /// Since when it could not be reached; nothing once it answers, whatever.
    pub unreachable_since: Option<Instant>,
    /// Objects that were asked for a second time because they were slow.
    pub asked_again: u64,
    /// The last error that says that nothing will work as things are set up.
    pub misconfigured: Option<String>,
    /// What it is asked now; nothing before the first request.
    pub load: Option<Load>,
}

/// All origins, shared by all readers.
#[derive(Debug)]
pub struct Sources {
    settings: StoreSettings,
    bounds: Bounds,
    by_origin: Mutex<HashMap<Origin, Arc<Shared>>>,
    /// How many there are in `by_origin`.
    origins: AtomicUsize,
}

#[derive(Debug)]
struct Shared {
    throttle: Throttle,
    tally: Mutex<Tally>,
    usual: Mutex<Usual>,
    /// The keys of those that `Tally::vain_objects` counts. Locked after `tally`.
    vain: Mutex<HashSet<String>>,
}

/// A second request is made for no more than one object in so many, and one.
const SHARE: u64 = 50;
/// An origin that asked for less is asked for nothing twice for so long.
const CALM: Duration = Duration::from_secs(10);

impl Sources {
    /// Each origin is asked within `bounds`.
    pub fn new(settings: StoreSettings, bounds: Bounds) -> Arc<Sources> {
        Arc::new(Sources { settings, bounds, by_origin: Mutex::default(), origins: AtomicUsize::new(0) })
    }

    /// A reader for one thread.
    pub fn reader(self: &Arc<Self>) -> Reader {
        Reader { sources: Arc::clone(self), opened: HashMap::new() }
    }

    /// The tally of the origin of `uri`, which is absolute.
    pub fn tally(&self, uri: &str) -> Result<Tally> {
        Ok(self.shared(&ObjectUri::resolve(uri, None)?.origin).tally())
    }

    /// Whether the object of `uri`, on its way for `time`, is worth a second request: it takes much longer than what its
    /// origin usually does, the origin asks for no less, and there were few such requests. If so, it is counted.
    pub fn may_ask_again(&self, uri: &str, time: Duration) -> bool {
        ObjectUri::resolve(uri, None)
            .is_ok_and(|uri| self.shared(&uri.origin).may_ask_again(time, self.settings.patience.slow))
    }

    /// Every origin asked so far, by a name without secrets, in order.
    pub fn tallies(&self) -> Vec<(String, Tally)> {
        let by_origin = self.by_origin.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tallies: Vec<_> =
            by_origin.iter().map(|(origin, shared)| (origin.to_string(), shared.tally())).collect();
        tallies.sort_by(|(a, _), (b, _)| a.cmp(b));
        tallies
    }

    /// Connections made so far.
    pub fn connections(&self) -> u64 {
        self.settings.network.connections()
    }

    fn shared(&self, origin: &Origin) -> Arc<Shared> {
        let mut by_origin = self.by_origin.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = by_origin.entry(origin.clone()).or_insert_with(|| {
            self.origins.fetch_add(1, Ordering::Relaxed);
            let throttle = Throttle::new(self.bounds);
            Arc::new(Shared { throttle, tally: Mutex::default(), usual: Mutex::default(), vain: Mutex::default() })
        });
        Arc::clone(shared)
    }

    fn open(&self, origin: &Origin) -> Result<Box<dyn ObjectStore>> {
        // One connection is in use at a time, another may wait at the end of a redirect.
        const IDLE_MAX: usize = 2;
        open_origin(origin, &self.settings, IDLE_MAX)
    }
}

impl Shared {
    fn tally(&self) -> Tally {
        let load = Some(self.throttle.load());
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Tally { load, ..tally }
    }

    fn may_ask_again(&self, time: Duration, slow_min: Duration) -> bool {
        let slow = self.usual.lock().unwrap_or_else(PoisonError::into_inner).slow();
        if slow.is_none_or(|slow| time < slow.max(slow_min)) || !self.throttle.load().pause.is_zero() {
            return false;
        }
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let is_calm = tally.throttled_at.is_none_or(|at| at.elapsed() > CALM);
        let is_rare = tally.asked_again <= tally.ok / SHARE;
        tally.asked_again += u64::from(is_calm && is_rare);
        is_calm && is_rare
    }

    /// An answer came, or was not waited for any longer.
    fn took(&self, time: Duration) {
        self.usual.lock().unwrap_or_else(PoisonError::into_inner).took(time);
    }

    /// An origin that has served nothing since it asked for less was asked for this in vain too.
    fn turned_away(&self, key: &str) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        if tally.silent_since.is_some() {
            tally.vain += 1;
            tally.vain_objects = self.in_vain(key);
        }
    }

    /// How many objects have been asked for in vain, with this one.
    fn in_vain(&self, key: &str) -> u64 {
        let mut vain = self.vain.lock().unwrap_or_else(PoisonError::into_inner);
        if !vain.contains(key) {
            vain.insert(key.to_owned());
        }
        vain.len() as u64
    }

    fn record(&self, key: &str, got: &Result<()>) -> Verdict {
        let trouble = match got {
            Ok(()) => None,
            Err(error) => Some(error.trouble),
        };
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        if trouble != Some(Trouble::Unreachable) && trouble != Some(Trouble::Misconfigured) {
            tally.unreachable_since = None;
        }
        if matches!(
            trouble,
            Some(Trouble::Throttled(_) | Trouble::Transient | Trouble::TimedOut | Trouble::Unreachable)
        ) {
            tally.silent_since.get_or_insert_with(Instant::now);
            tally.vain += 1;
            tally.vain_objects = self.in_vain(key);
        } else if tally.silent_since.take().is_some() {
            (tally.vain, tally.vain_objects) = (0, 0);
            self.vain.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        match trouble {
            None => {
                tally.ok += 1;
                Verdict::Good
            }
            Some(Trouble::Conflict | Trouble::Local) => Verdict::Good,
            Some(Trouble::Gone | Trouble::TooLarge) => {
                tally.gone += 1;
                Verdict::Good
            }
            Some(Trouble::Denied) => {
                tally.denied += 1;
                Verdict::Good
            }
            Some(Trouble::Throttled(pause)) => {
                tally.throttled += 1;
                tally.throttled_at = Some(Instant::now());
                let why = got.as_ref().err().map(|error| error.cause.clone()).unwrap_or_default();
                Verdict::Throttled { pause, why }
            }
            Some(Trouble::TimedOut) => {
                tally.transient += 1;
                Verdict::TimedOut
            }
            Some(Trouble::Transient | Trouble::Paused(_)) => {
                tally.transient += 1;
                Verdict::Trouble
            }
            Some(Trouble::Unreachable) => {
                tally.unreachable_since.get_or_insert_with(Instant::now);
                Verdict::Trouble
            }
            Some(Trouble::Misconfigured) => {
                tally.misconfigured = got.as_ref().err().map(ToString::to_string);
                Verdict::Trouble
            }
        }
    }
}

/// One thread's way to all origins: opened when first needed, each with connections of its own.
pub struct Reader {
    sources: Arc<Sources>,
    opened: HashMap<Origin, Opened>,
}

#[derive(Clone)]
struct Opened {
    store: Arc<dyn ObjectStore>,
    shared: Arc<Shared>,
}

impl Reader {
    /// Reads the object named by `uri`, which is absolute, into `body`; waits for the origin's throttle, never retries.
    pub fn get(&mut self, uri: &str, body: &mut Vec<u8>, options: GetOptions) -> Result<()> {
        self.answer(&Ask::default(), uri, body, options)
    }

    /// The same for an `ask` that others may give up meanwhile. What is given up says nothing of the origin but that it was
    /// slow.
    pub fn answer(&mut self, ask: &Ask, uri: &str, body: &mut Vec<u8>, options: GetOptions) -> Result<()> {
        let ObjectUri { origin, key } = ObjectUri::resolve(uri, None)?;
        let Opened { store, shared } = self.open(&origin)?;
        let others = self.sources.origins.load(Ordering::Relaxed) > 1;
        let permit = shared.throttle.acquire(others).map_err(|not_now| {
            shared.turned_away(&key);
            paused(uri, not_now)
        })?;
        let sent = Instant::now();
        if !ask.send(&store) {
            return Err(given_up(uri));
        }
        let got = store.get(&key, body, options);
        let is_wanted = ask.end();
        if got.is_ok() || !is_wanted {
            shared.took(sent.elapsed());
        }
        if !is_wanted {
            self.opened.remove(&origin);
            return Err(given_up(uri));
        }
        permit.finish(shared.record(&key, &got));
        got
    }

    fn open(&mut self, origin: &Origin) -> Result<Opened> {
        if let Some(opened) = self.opened.get(origin) {
            return Ok(opened.clone());
        }
        let opened = Opened { store: self.sources.open(origin)?.into(), shared: self.sources.shared(origin) };
        self.opened.insert(origin.clone(), opened.clone());
        Ok(opened)
    }
}

/// For nobody to read: what was asked for has come otherwise.
fn given_up(uri: &str) -> StoreError {
    StoreError::new("get", shown_uri(uri), Trouble::Transient, "it was given up")
}

/// Nothing was asked.
fn paused(uri: &str, NotNow { wait, why }: NotNow) -> StoreError {
    let seconds = wait.as_secs_f64().ceil();
    let cause = match why {
        Some(why) => format!("{why}; its origin is asked again in {seconds} s"),
        None => format!("its origin is asked no more at once and no faster: its turn is in {seconds} s"),
    };
    StoreError::new("get", shown_uri(uri), Trouble::Paused(wait), cause)
}
