//! Downloads: fetchers serve the requests of all lanes; `fetch_all` brings one job's microshards together. Fetchers wait
//! for the network only, lanes for their own answers only. What must wait more than a moment is deferred, never slept
//! through (I9), and every bound ends in a sentence.

#![expect(clippy::indexing_slicing, reason = "indexes of a job's members, which come back as they were sent")]

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, select_biased};
use microshard_queue::{Failure, Job, Member, now_ms};

use crate::budget::Permit;
use crate::errand::{Awaited, Errand, Place};
use crate::error::{StoreError, Trouble};
use crate::faults::passed;
use crate::monitor::{Event, Monitor};
use crate::patience::Patience;
use crate::shown::shown_uri;
use crate::stop::Stop;
use crate::store::{Ask, GetOptions, Reader, Sources};

/// An object is asked for again only where a job waits for one in so many of what it asked for, or for its last.
const LAST: usize = 20;
/// How often it is looked whether the last objects are slow.
const LOOK: Duration = Duration::from_millis(100);

/// One object that a lane asks for.
#[derive(Debug)]
pub struct Request {
    index: usize,
    errand: Arc<Errand>,
    options: GetOptions,
    /// Held by requests alone: when the last of them is gone, no answer can come.
    reply: Arc<Sender<Reply>>,
}

/// Where lanes send their requests.
#[derive(Debug, Clone)]
pub struct ToFetchers {
    /// All but repeats.
    pub requests: Sender<Request>,
    /// Second requests for slow objects: a job waits for hardly anything else.
    pub repeats: Sender<Request>,
}

/// Where fetchers take them from.
#[derive(Debug, Clone)]
pub struct FromLanes {
    /// All but repeats.
    pub requests: Receiver<Request>,
    /// Taken first.
    pub repeats: Receiver<Request>,
}

impl FromLanes {
    /// The next request; `None` when all lanes are gone.
    fn next(&self) -> Option<Request> {
        let next = select_biased! {
            recv(self.repeats) -> request => request.ok(),
            recv(self.requests) -> request => request.ok(),
        };
        next.or_else(|| self.requests.recv().ok())
    }
}

/// A fetcher's answer.
#[derive(Debug)]
struct Reply {
    index: usize,
    again: bool,
    result: Result<Vec<u8>, StoreError>,
}

/// What a job has fetched, by the members' seq: members that fail meanwhile leave the others where they are. Holds the
/// memory for it.
#[derive(Debug)]
pub struct Bodies<'a> {
    by_seq: BTreeMap<i64, Vec<u8>>,
    bytes: u64,
    permit: Permit<'a>,
}

impl<'a> Bodies<'a> {
    /// Nothing yet, but the memory for it.
    pub fn new(permit: Permit<'a>) -> Bodies<'a> {
        Bodies { by_seq: BTreeMap::new(), bytes: 0, permit }
    }

    /// The same bodies, with memory for those that are missing.
    pub fn with(self, permit: Permit<'a>) -> Bodies<'a> {
        let mut bodies = Bodies { permit, ..self };
        bodies.grow();
        bodies
    }

    /// The body of a member.
    pub fn get(&self, seq: i64) -> Option<&[u8]> {
        self.by_seq.get(&seq).map(Vec::as_slice)
    }

    /// Keeps the body of a member, replacing the one before. What is more than was expected is accounted for at once.
    pub fn set(&mut self, seq: i64, body: Vec<u8>) {
        self.bytes += body.len() as u64;
        self.bytes -= self.by_seq.insert(seq, body).map_or(0, |before| before.len() as u64);
        self.grow();
    }

    /// Throws a member's body away.
    pub fn remove(&mut self, seq: i64) {
        self.bytes -= self.by_seq.remove(&seq).map_or(0, |body| body.len() as u64);
    }

    /// Gives back the memory that is not needed while nothing more is fetched.
    pub fn settle(&mut self) {
        self.permit.resize(self.bytes);
    }

    fn grow(&mut self) {
        if self.bytes > self.permit.bytes() {
            self.permit.resize(self.bytes);
        }
    }

    /// How many bodies there are.
    fn count(&self) -> usize {
        self.by_seq.len()
    }
}

/// How the fetching of a job went.
#[derive(Debug)]
pub enum Fetched {
    /// Every member is there, or has failed.
    All {
        /// How much of the time that a lane may sleep was slept.
        slept: Duration,
    },
    /// Some are worth waiting for, longer than a lane may.
    Later(Later),
    /// The run was told to stop.
    Stopped,
}

/// Why and until when a job is deferred.
#[derive(Debug)]
pub struct Later {
    /// Not before this time, Unix milliseconds.
    pub until_ms: i64,
    /// Why.
    pub why: String,
    /// Something new was fetched this time.
    pub progress: bool,
    /// The microshards that were tried in vain.
    pub troubles: Vec<Failure>,
}

/// A lane's side of the downloads.
pub struct Fetch<'a> {
    /// To whoever downloads.
    pub to_fetchers: ToFetchers,
    /// What is known of the origins.
    pub sources: &'a Sources,
    /// How long to wait for what.
    pub patience: &'a Patience,
    /// Bytes an object may have.
    pub bytes_max: u64,
    /// Shards were built from these origins before this process began.
    pub has_served: bool,
    /// Who is told.
    pub monitor: &'a dyn Monitor,
    /// Ends the run early.
    pub stop: &'a Stop,
}

/// A fetcher thread: answers requests until all lanes are gone. When told to stop it answers none that still waits.
pub fn serve(requests: &FromLanes, mut reader: Reader, place: &Place, stop: &Stop) {
    let at = |errand| *place.lock().unwrap_or_else(PoisonError::into_inner) = errand;
    while let Some(Request { index, errand, options, reply }) = requests.next() {
        if stop.is_set() {
            continue;
        }
        at(Some(Arc::clone(&errand)));
        let mut body = Vec::new();
        passed("fetch: ask");
        let result = reader.answer(&errand.ask, &errand.uri, &mut body, options).map(|()| body);
        passed("fetch: answered");
        at(None);
        // A lane that stopped meanwhile, or has its object otherwise, needs no answer.
        let _ = reply.send(Reply { index, again: errand.again, result });
    }
}

impl Fetch<'_> {
    /// Fetches what `bodies` lacks of the job's members. Members that cannot be had are added to `failures`.
    ///
    /// # Errors
    /// Trouble of the origin rather than of objects; no microshard is failed for it.
    pub fn fetch_all(
        &self,
        job: &Job,
        bodies: &mut Bodies<'_>,
        failures: &mut Vec<Failure>,
    ) -> Result<Fetched, StoreError> {
        let before = bodies.count();
        let mut missing: Vec<usize> =
            (0..job.members.len()).filter(|index| bodies.get(job.members[*index].seq).is_none()).collect();
        let mut fresh = false;
        let mut slept = Duration::ZERO;
        loop {
            let Some(troubled) = self.fetch_once(job, &missing, fresh, bodies)? else { return Ok(Fetched::Stopped) };
            let mut again = Vec::new();
            for (index, error) in troubled {
                match self.judge(&job.members[index], &error)? {
                    Verdict::Failed(failure) => failures.push(failure),
                    Verdict::Again(wait) => again.push((index, wait, error)),
                }
            }
            let Some(wait) = again.iter().map(|(_, wait, _)| *wait).max() else { return Ok(Fetched::All { slept }) };
            let quick = self.patience.quick(wait);
            if slept + quick > self.patience.in_lane_max || wait > self.patience.in_lane_max {
                return Ok(Fetched::Later(self.later(job, &again, bodies.count() > before)));
            }
            slept += quick;
            if self.stop.wait(quick) {
                return Ok(Fetched::Stopped);
            }
            missing = again.into_iter().map(|(index, _, _)| index).collect();
            fresh = true;
        }
    }

    /// Fetches one member again, on a new connection, because what came was doubtful.
    pub fn fetch_again(&self, job: &Job, index: usize) -> Result<Vec<u8>, StoreError> {
        let member = &job.members[index];
        let (reply, answer) = bounded(1);
        let gone = || StoreError::new("get", shown_uri(&member.uri), Trouble::Transient, "the fetchers have stopped");
        let request = self.request(index, &job.name, member, true, Arc::new(reply));
        self.to_fetchers.requests.send(request).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?.result
    }

    /// Asks for all of them at once, and gives the bodies as they come. What cannot be had, or is no more asked for when the
    /// run is told to stop, is left out.
    pub fn fetch_each<'m>(&self, members: &'m [Member]) -> impl Iterator<Item = (&'m Member, Vec<u8>)> {
        let (reply, answers) = bounded(members.len());
        let reply = Arc::new(reply);
        for (index, member) in members.iter().enumerate() {
            let request = self.request(index, "a trial", member, false, Arc::clone(&reply));
            if self.stop.is_set() || self.to_fetchers.requests.send(request).is_err() {
                break;
            }
        }
        drop(reply);
        answers.into_iter().filter_map(|answer| Some((members.get(answer.index)?, answer.result.ok()?)))
    }

    /// Asks for `missing` and waits for all answers; `None` when told to stop.
    fn fetch_once(
        &self,
        job: &Job,
        missing: &[usize],
        fresh: bool,
        bodies: &mut Bodies<'_>,
    ) -> Result<Option<Vec<(usize, StoreError)>>, StoreError> {
        // Room for two answers each: a fetcher never waits for a lane.
        let (reply, answers) = bounded(2 * missing.len());
        let reply = Arc::new(reply);
        let mut awaited = Awaited::default();
        for &index in missing {
            let request = self.request(index, &job.name, &job.members[index], fresh, Arc::clone(&reply));
            awaited.asked(index, Arc::clone(&request.errand));
            if self.stop.is_set() || self.to_fetchers.requests.send(request).is_err() {
                return Ok(None);
            }
        }
        let reply = Arc::downgrade(&{ reply });
        let mut troubled = Vec::new();
        while awaited.count() > 0 {
            let answer = match next(&answers, awaited.count() <= last_of(missing.len())) {
                Ok(answer) => answer,
                Err(RecvTimeoutError::Timeout) => {
                    self.ask_again(job, &mut awaited, &reply);
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            };
            job.lease.pulse.beat();
            match awaited.answered(answer.index, answer.again, answer.result) {
                Some(Ok(body)) => {
                    self.monitor.event(&Event::Fetched { bytes: body.len() as u64 });
                    bodies.set(job.members[answer.index].seq, body);
                }
                Some(Err(error)) => troubled.push((answer.index, error)),
                None => {}
            }
        }
        if self.stop.is_set() {
            // What is on its way is given up then: that is no trouble of an object's.
            return Ok(None);
        }
        troubled.sort_by_key(|(index, _)| *index);
        Ok(Some(troubled))
    }

    /// Asks a second time for what is slow; the first good answer is taken.
    fn ask_again(&self, job: &Job, awaited: &mut Awaited, reply: &Weak<Sender<Reply>>) {
        for (index, errand) in awaited.asked_once() {
            let Some(time) = errand.ask.sent_for() else { continue };
            let (false, Some(reply)) = (self.stop.is_set(), reply.upgrade()) else { return };
            if !self.sources.may_ask_again(&errand.uri, time) {
                continue;
            }
            let mut request = self.request(index, &job.name, &job.members[index], true, reply);
            request.errand = Arc::new(Errand { again: true, ..errand_for(&job.name, &errand.uri) });
            let again = Arc::clone(&request.errand);
            if self.to_fetchers.repeats.try_send(request).is_ok() {
                awaited.asked(index, again);
            }
        }
    }

    fn request(&self, index: usize, shard: &str, member: &Member, fresh: bool, reply: Arc<Sender<Reply>>) -> Request {
        let bytes_max = self.bytes_max.max(member.bytes.unwrap_or(0));
        let errand = Arc::new(errand_for(shard, &member.uri));
        Request { index, errand, options: GetOptions { bytes_max, fresh }, reply }
    }

    /// What becomes of a member that could not be fetched (DESIGN's table of what may happen to an input).
    fn judge(&self, member: &Member, error: &StoreError) -> Result<Verdict, StoreError> {
        let tries = member.tries + 1;
        let failed = |sentence: String| Ok(Verdict::Failed(Failure { seq: member.seq, sentence, tries }));
        let tally = self.sources.tally(&member.uri)?;
        match error.trouble {
            // A wrong --source, or a directory that is not mounted, must not fail a whole export.
            Trouble::Gone | Trouble::TooLarge
                if !self.has_served && tally.ok == 0 && tally.gone > self.patience.few =>
            {
                Err(restated(error))
            }
            Trouble::Gone | Trouble::TooLarge | Trouble::Local | Trouble::Conflict => failed(error.cause.clone()),
            Trouble::Denied if tally.ok > tally.denied => failed(error.cause.clone()),
            Trouble::Denied if self.has_served && tally.denied <= self.patience.few => failed(error.cause.clone()),
            Trouble::Denied | Trouble::Misconfigured => Err(restated(error)),
            trouble if self.patience.origin_is_lost(&tally, trouble) => Err(restated(error)),
            Trouble::Unreachable => Ok(Verdict::Again(Duration::ZERO)),
            Trouble::Paused(wait) => Ok(Verdict::Again(wait)),
            _ if self.patience.object_is_lost(tries, tried_for(member)) => {
                failed(format!("{} ({tries} tries)", error.cause))
            }
            Trouble::Throttled(Some(asked)) => Ok(Verdict::Again(asked.min(self.patience.retry_after_max))),
            Trouble::Transient | Trouble::TimedOut | Trouble::Throttled(None) => Ok(Verdict::Again(Duration::ZERO)),
        }
    }

    fn later(&self, job: &Job, again: &[(usize, Duration, StoreError)], progress: bool) -> Later {
        let asked = again.iter().map(|(_, wait, _)| *wait).max().unwrap_or_default();
        let wait = self.patience.deferral(job.deferrals).max(asked);
        // What was not asked for was not tried.
        let tried = again.iter().filter(|(_, _, error)| !matches!(error.trouble, Trouble::Paused(_)));
        let troubles = tried.map(|(index, _, error)| {
            let member = &job.members[*index];
            Failure { seq: member.seq, sentence: error.cause.clone(), tries: member.tries + 1 }
        });
        let why = again.first().map(|(_, _, error)| error.to_string()).unwrap_or_default();
        Later { until_ms: now_ms() + wait.as_millis() as i64, why, progress, troubles: troubles.collect() }
    }
}

fn errand_for(shard: &str, uri: &str) -> Errand {
    Errand { shard: shard.to_owned(), uri: uri.to_owned(), again: false, ask: Ask::default() }
}

/// How many of what was asked for are the last few.
fn last_of(asked: usize) -> usize {
    (asked / LAST).max(1)
}

/// The next answer, which where only the last are awaited is not waited for long.
fn next(answers: &Receiver<Reply>, last: bool) -> Result<Reply, RecvTimeoutError> {
    if last { answers.recv_timeout(LOOK) } else { answers.recv().map_err(Into::into) }
}

/// How long a member has been tried in vain.
fn tried_for(member: &Member) -> Duration {
    if member.tries == 0 {
        Duration::ZERO
    } else {
        Duration::from_millis((now_ms() - member.tried_since_ms).max(0) as u64)
    }
}

/// What becomes of one member.
enum Verdict {
    Failed(Failure),
    /// Tried again, not before this time has passed.
    Again(Duration),
}

/// The same error, for the run to end with.
fn restated(error: &StoreError) -> StoreError {
    StoreError::new(error.operation, error.object.clone(), error.trouble, error.cause.clone())
}
