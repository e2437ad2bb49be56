//! One writer owns the connection while a runner works: it commits the waiting requests of many lanes in one
//! transaction (group commit), renews leases, beats, and lets a claim wait here, not in a lane, until there is something
//! to claim. Requests come over a bounded channel that the caller made; the service ends when its senders are gone.

use std::collections::{HashMap, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::claim::{Claimer, Job, Lease, Pulse};
use crate::error::{Error, Named, Result};
use crate::file::{Queue, now_ms};
use crate::finish::{Finish, Finished};
use crate::status::Waiting;

/// Requests committed together.
const BATCH_MAX: usize = 64;
/// Time between two beats.
const BEAT: Duration = Duration::from_secs(2);
/// The longest the writer sleeps: how late it may notice that it shall stop, or that another process added shards.
const NAP_MAX: Duration = Duration::from_millis(250);
/// How long a claim holds without a sign of life of its lane.
pub const LEASE: Duration = Duration::from_secs(600);

/// What a claim brings.
#[derive(Debug)]
pub enum Claimed {
    /// A shard to build.
    Job(Box<Job>),
    /// Nothing is left that could ever be claimed.
    Drained,
    /// The runner has been told to stop.
    Stopped,
}

/// A request to the writer. Made by `Client`.
#[derive(Debug)]
pub struct Request {
    ask: Ask,
    reply: Sender<Result<Answer>>,
}

#[derive(Debug)]
enum Ask {
    Claim,
    Finish(Lease, Box<Finish>),
    UploadStarted { key: String, upload_id: String },
    UploadEnded { key: String, upload_id: String },
}

#[derive(Debug)]
enum Answer {
    Claimed(Claimed),
    Finished(Finished),
    Done,
}

/// A lane's way to the writer.
#[derive(Debug)]
pub struct Client {
    requests: Sender<Request>,
}

impl Client {
    /// A client over the channel that the writer serves.
    pub fn new(requests: Sender<Request>) -> Client {
        Client { requests }
    }

    /// Claims the next shard, waiting until there is one or none will ever be.
    pub fn claim(&self) -> Result<Claimed> {
        match self.ask(Ask::Claim)? {
            Answer::Claimed(claimed) => Ok(claimed),
            _ => Err(Error::Stopped),
        }
    }

    /// Ends a lease.
    pub fn finish(&self, lease: Lease, finish: Finish) -> Result<Finished> {
        match self.ask(Ask::Finish(lease, Box::new(finish)))? {
            Answer::Finished(finished) => Ok(finished),
            _ => Err(Error::Stopped),
        }
    }

    /// Keeps the record of an upload in parts; durable on return.
    pub fn upload_started(&self, key: &str, upload_id: &str) -> Result<()> {
        self.ask(Ask::UploadStarted { key: key.to_owned(), upload_id: upload_id.to_owned() }).map(|_| ())
    }

    /// The upload is completed or aborted.
    pub fn upload_ended(&self, key: &str, upload_id: &str) -> Result<()> {
        self.ask(Ask::UploadEnded { key: key.to_owned(), upload_id: upload_id.to_owned() }).map(|_| ())
    }

    fn ask(&self, ask: Ask) -> Result<Answer> {
        let (reply, answer) = bounded(1);
        self.requests.send(Request { ask, reply }).map_err(|_| Error::Stopped)?;
        answer.recv().map_err(|_| Error::Stopped)?
    }
}

/// A lease that the writer keeps alive while its lane makes headway.
struct Live {
    pulse: Pulse,
    seen: u64,
}

fn identity(queue: &Queue) -> Result<(u64, u64)> {
    let metadata = std::fs::metadata(&queue.path).named("look at", &queue.path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// The writer's state.
struct Writer<'a> {
    queue: Queue,
    owner: &'a str,
    only: Option<i64>,
    stop: &'a AtomicBool,
    tell: &'a dyn Fn(&Waiting),
    /// Until when everything waits, as it was told last.
    told_until_ms: Option<i64>,
    /// Claims that nothing could be claimed for yet, the oldest first.
    waiting: VecDeque<Sender<Result<Answer>>>,
    /// What runners before had begun, to be claimed from the end.
    begun: Vec<i64>,
    live: HashMap<(i64, i64), Live>,
    /// Device and inode of the file that is written to.
    file: (u64, u64),
    next_beat: Instant,
    next_renewal: Instant,
}

impl Queue {
    /// Serves requests until all clients are gone. `stop` makes every claim answer `Stopped`; it is set when the serving
    /// fails. `only` keeps claims to one run. `tell` hears when all that is left has come to wait for its time, and
    /// whenever that time is another.
    ///
    /// # Errors
    /// The first failure of SQLite. Every request has been answered, also those that came later.
    pub fn serve(
        self,
        owner: &str,
        only: Option<i64>,
        requests: &Receiver<Request>,
        stop: &AtomicBool,
        tell: &dyn Fn(&Waiting),
    ) -> Result<()> {
        let _refusing = Refusing(requests);
        let served = Writer::new(self, owner, only, stop, tell).and_then(|writer| writer.serve(requests));
        if served.is_err() {
            stop.store(true, Ordering::SeqCst);
        }
        served
    }
}

/// However the serving ends, also by a panic, nobody waits for an answer for ever: a channel whose receiver is gone keeps
/// what was sent. So requests are refused until there is nobody left to send one.
struct Refusing<'a>(&'a Receiver<Request>);

impl Drop for Refusing<'_> {
    fn drop(&mut self) {
        for request in self.0 {
            let _ = request.reply.send(Err(Error::Stopped)); // a lane that is gone needs no answer
        }
    }
}

impl<'a> Writer<'a> {
    fn new(
        queue: Queue,
        owner: &'a str,
        only: Option<i64>,
        stop: &'a AtomicBool,
        tell: &'a dyn Fn(&Waiting),
    ) -> Result<Writer<'a>> {
        let now = Instant::now();
        Ok(Writer {
            file: identity(&queue)?,
            begun: queue.begun(only)?,
            queue,
            owner,
            only,
            stop,
            tell,
            told_until_ms: None,
            waiting: VecDeque::new(),
            live: HashMap::new(),
            next_beat: now,
            next_renewal: now + LEASE / 4,
        })
    }

    /// Until all clients are gone.
    fn serve(mut self, requests: &Receiver<Request>) -> Result<()> {
        loop {
            match requests.recv_timeout(NAP_MAX) {
                Ok(first) => self.commit_batch(std::iter::once(first).chain(requests.try_iter()).take(BATCH_MAX))?,
                Err(RecvTimeoutError::Timeout) => self.commit_batch(std::iter::empty())?,
                Err(RecvTimeoutError::Disconnected) => {
                    self.check_file()?;
                    return self.queue.stop_runner(self.owner);
                }
            }
        }
    }

    /// One transaction for the batch, then the answers: nobody is told of what is not durable.
    fn commit_batch(&mut self, batch: impl Iterator<Item = Request>) -> Result<()> {
        let mut answers: Vec<(Sender<Result<Answer>>, Answer)> = Vec::new();
        let (claims, others): (Vec<Request>, Vec<Request>) =
            batch.partition(|request| matches!(request.ask, Ask::Claim));
        self.waiting.extend(claims.into_iter().map(|claim| claim.reply));
        let now = Instant::now();
        if others.is_empty() && self.waiting.is_empty() && now < self.next_beat {
            return Ok(());
        }
        let asked: Vec<Sender<Result<Answer>>> = others.iter().map(|other| other.reply.clone()).collect();
        let result = self.write(others, now, &mut answers);
        if let Err(error) = result {
            self.queue.roll_back()?;
            for reply in asked.into_iter().chain(self.waiting.drain(..)) {
                let _ = reply.send(Err(Error::Stopped)); // a lane that is gone needs no answer
            }
            return Err(error);
        }
        for (reply, answer) in answers {
            let _ = reply.send(Ok(answer));
        }
        Ok(())
    }

    fn write(
        &mut self,
        others: Vec<Request>,
        now: Instant,
        answers: &mut Vec<(Sender<Result<Answer>>, Answer)>,
    ) -> Result<()> {
        self.queue.begin()?;
        for request in others {
            let answer = self.carry_out(request.ask)?;
            answers.push((request.reply, answer));
        }
        self.keep_alive(now)?;
        self.claim_for_waiting(answers)?;
        self.queue.commit()
    }

    fn carry_out(&mut self, ask: Ask) -> Result<Answer> {
        match ask {
            Ask::Claim => Err(Error::Stopped),
            Ask::Finish(lease, finish) => {
                self.live.remove(&(lease.shard, lease.attempt));
                self.queue.finish(&lease, &finish).map(Answer::Finished)
            }
            Ask::UploadStarted { key, upload_id } => self.queue.upload_started(&key, &upload_id).map(|()| Answer::Done),
            Ask::UploadEnded { key, upload_id } => self.queue.upload_ended(&key, &upload_id).map(|()| Answer::Done),
        }
    }

    fn claim_for_waiting(&mut self, answers: &mut Vec<(Sender<Result<Answer>>, Answer)>) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            answers.extend(self.waiting.drain(..).map(|reply| (reply, Answer::Claimed(Claimed::Stopped))));
            return Ok(());
        }
        while let Some(reply) = self.waiting.pop_front() {
            let lease_ms = LEASE.as_millis() as i64;
            let claimer = Claimer { owner: self.owner, now_ms: now_ms(), lease_ms, only: self.only };
            let Some(job) = self.claim_next(claimer)? else {
                self.waiting.push_front(reply);
                break;
            };
            let lease = &job.lease;
            self.live.insert((lease.shard, lease.attempt), Live { pulse: lease.pulse.clone(), seen: 0 });
            answers.push((reply, Answer::Claimed(Claimed::Job(Box::new(job)))));
        }
        if !self.waiting.is_empty() && self.queue.next_claim_at(self.only)?.is_none() {
            answers.extend(self.waiting.drain(..).map(|reply| (reply, Answer::Claimed(Claimed::Drained))));
        }
        self.tell_if_all_wait()
    }

    /// What was begun comes first: a kill must not make a shard wait for its language's turn.
    fn claim_next(&mut self, claimer: Claimer<'_>) -> Result<Option<Job>> {
        while let Some(shard) = self.begun.pop() {
            let job = self.queue.claim_begun(shard, claimer)?;
            if job.is_some() {
                return Ok(job);
            }
        }
        self.queue.claim(claimer)
    }

    /// No lane holds a shard, and none could be claimed: what is left was deferred.
    fn tell_if_all_wait(&mut self) -> Result<()> {
        if self.waiting.is_empty() || !self.live.is_empty() {
            return Ok(());
        }
        let Some(waiting) = self.queue.next_deferred(self.only)? else { return Ok(()) };
        if self.told_until_ms.replace(waiting.until_ms) != Some(waiting.until_ms) {
            (self.tell)(&waiting);
        }
        Ok(())
    }

    /// A file that was removed while it is open takes commits, and keeps nothing.
    fn check_file(&self) -> Result<()> {
        if identity(&self.queue).ok() != Some(self.file) {
            return Err(Error::Input(format!(
                "the queue file {} was removed or replaced while the runner worked: its results are lost; remove its \
                 -wal and -shm too, snapshot again, then run with the same --output, where finished shards are found again",
                self.queue.path.display()
            )));
        }
        Ok(())
    }

    /// Beats, and renews the leases whose lanes made headway since the last time: also when one has run out, before a
    /// claim takes it over. After a host has slept they all have, though nothing is wrong with the lanes.
    fn keep_alive(&mut self, now: Instant) -> Result<()> {
        if now >= self.next_beat {
            self.next_beat = now + BEAT;
            self.check_file()?;
            if !self.queue.beat(self.owner)? {
                return Err(Error::Input("another runner has taken over this queue".to_owned()));
            }
        }
        if now >= self.next_renewal || self.queue.has_expired(now_ms())? {
            self.next_renewal = now + LEASE / 4;
            let expires = now_ms() + LEASE.as_millis() as i64;
            for ((shard, attempt), live) in &mut self.live {
                if live.pulse.count() > live.seen {
                    live.seen = live.pulse.count();
                    self.queue.renew(*shard, *attempt, expires)?;
                }
            }
        }
        Ok(())
    }
}

impl Queue {
    fn has_expired(&self, now_ms: i64) -> Result<bool> {
        self.conn
            .prepare_cached(
                "SELECT EXISTS(SELECT 1 FROM shards INDEXED BY shards_claimed WHERE state = 2 AND lease_expires_at <= ?1)",
            )
            .and_then(|mut select| select.query_row([now_ms], |row| row.get(0)))
            .named("read", &self.path)
    }

    fn renew(&self, shard: i64, attempt: i64, expires_ms: i64) -> Result<()> {
        // A lease that was lost meanwhile is not touched: its lane is refused when it finishes.
        self.execute(
            "UPDATE shards SET lease_expires_at = ?3 WHERE shard = ?1 AND attempt = ?2 AND state = 2",
            rusqlite::params![shard, attempt, expires_ms],
        )?;
        Ok(())
    }
}
