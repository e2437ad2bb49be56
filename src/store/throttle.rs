//! The gate in front of an origin: one line of threads that wait for its `Limit`, first come first served. A permit is never
//! lost: dropping it gives it back. Nothing waits here for long: who would have to is told until when instead.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::limit::Limit;

/// When to come back where too many wait.
const CROWDED: Duration = Duration::from_millis(200);

/// How an origin is asked, at most.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Requests in flight.
    pub in_flight: usize,
    /// Requests a second; `None` without bound.
    pub per_second: Option<f64>,
    /// The longest it is left alone because it asked to be.
    pub pause: Duration,
    /// The longest that a thread waits for its turn to send, which keeps it from asking another origin, for whatever
    /// reason: also where an origin is asked one thing at a time, and does not answer.
    pub wait: Duration,
}

/// What an answer said about the origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It answered, whatever it said of the object.
    Good,
    /// A reset, a 500.
    Trouble,
    /// Nothing came in time.
    TimedOut,
    /// It asked for less.
    Throttled {
        /// And to be left alone for so long.
        pause: Option<Duration>,
        /// What it answered.
        why: String,
    },
}

/// The gate in front of one origin, shared by all threads.
#[derive(Debug)]
pub struct Throttle {
    state: Mutex<State>,
    bounds: Bounds,
    started: Instant,
}

#[derive(Debug)]
struct State {
    limit: Limit,
    /// Requests that were sent and are not answered.
    in_flight: usize,
    /// Who waits to send. Only the first one looks at the limit, so that a change of it counts for all at once.
    line: VecDeque<Arc<Turn>>,
    /// What the origin answered when it last asked for less.
    why: String,
}

/// One waiting thread. A condition variable each: waking them all for one request would cost more than the requests.
type Turn = Condvar;

/// The origin is not to be asked now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotNow {
    /// Not before so long a time has passed.
    pub wait: Duration,
    /// What the origin answered, where that is why; `None` where it is the user's ceiling, or others are not answered yet.
    pub why: Option<String>,
}

/// What an origin is asked now.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Requests that may be in flight.
    pub in_flight: usize,
    /// Requests a second; `None` without bound.
    pub per_second: Option<f64>,
    /// Less than `--max-requests-per-second`, because the origin asked for less.
    pub is_asked_for: bool,
    /// How long it is still left alone.
    pub pause: Duration,
    /// What it answered when it last asked for less; empty if it never did.
    pub why: String,
}

impl State {
    /// Whether the next request may be sent.
    fn is_free(&self, now: Duration) -> bool {
        self.in_flight < self.limit.in_flight() && self.limit.due() <= now
    }

    fn is_first(&self, turn: &Arc<Turn>) -> bool {
        self.line.front().is_some_and(|first| Arc::ptr_eq(first, turn))
    }

    fn wake_first(&self) {
        if let Some(first) = self.line.front() {
            first.notify_one();
        }
    }

    fn not_now(&self, now: Duration, wait: Duration) -> NotNow {
        let is_asked_for = self.limit.is_asked_for() || self.limit.paused_until() > now;
        NotNow { wait, why: is_asked_for.then(|| self.why.clone()) }
    }
}

impl Throttle {
    /// A gate that is wide open, within `bounds`.
    pub fn new(bounds: Bounds) -> Throttle {
        let limit = Limit::new(bounds.in_flight, bounds.per_second);
        let state = State { limit, in_flight: 0, line: VecDeque::new(), why: String::new() };
        Throttle { state: Mutex::new(state), bounds, started: Instant::now() }
    }

    /// Waits in line until the request may be sent. Where there are `others`, origins besides this one, no more than half of
    /// the threads wait here: they must not keep the rest from being asked.
    pub fn acquire(&self, others: bool) -> Result<Permit<'_>, NotNow> {
        let mut state = self.lock();
        let now = self.started.elapsed();
        if !(state.line.is_empty() && state.is_free(now)) {
            let wait = state.limit.wait(now, state.line.len());
            if wait > self.bounds.wait {
                return Err(state.not_now(now, wait));
            }
            if others && (state.line.len() + 1) * 2 > self.bounds.in_flight.max(2) {
                return Err(state.not_now(now, CROWDED));
            }
            state = self.wait_in_line(state, now + self.bounds.wait)?;
        }
        state.in_flight += 1;
        state.limit.sent(self.started.elapsed());
        // The next one may be allowed too.
        state.wake_first();
        Ok(Permit { throttle: self, lowered: state.limit.lowered() })
    }

    /// Until this thread is the first in line and may send; `Err` where that takes too long.
    fn wait_in_line<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        latest: Duration,
    ) -> Result<MutexGuard<'a, State>, NotNow> {
        let turn = Arc::new(Turn::new());
        state.line.push_back(Arc::clone(&turn));
        loop {
            let now = self.started.elapsed();
            let due = state.limit.due();
            let is_first = state.is_first(&turn);
            if is_first && state.is_free(now) {
                state.line.pop_front();
                return Ok(state);
            }
            if now >= latest || (is_first && due > latest) {
                state.line.retain(|other| !Arc::ptr_eq(other, &turn));
                state.wake_first();
                // Where others are not answered for as long, it is not worth while to come back at once.
                return Err(state.not_now(now, due.saturating_sub(now).max(self.bounds.wait + CROWDED)));
            }
            let is_due = is_first && state.in_flight < state.limit.in_flight();
            let until = if is_due { due.min(latest) } else { latest };
            let woken = turn.wait_timeout(state, until.saturating_sub(now));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What the origin is asked now.
    pub fn load(&self) -> Load {
        let state = self.lock();
        Load {
            in_flight: state.limit.in_flight(),
            per_second: state.limit.pace(),
            is_asked_for: state.limit.is_asked_for(),
            pause: state.limit.paused_until().saturating_sub(self.started.elapsed()),
            why: state.why.clone(),
        }
    }

    /// No code that can panic runs under the lock, so a poisoned one still holds a whole state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to one request.
#[derive(Debug)]
#[must_use]
pub struct Permit<'a> {
    throttle: &'a Throttle,
    /// How often the limit had been lowered when the request was sent.
    lowered: u64,
}

impl Permit<'_> {
    /// Gives the permit back and says how it went.
    pub fn finish(self, verdict: Verdict) {
        let now = self.throttle.started.elapsed();
        let mut state = self.throttle.lock();
        match verdict {
            Verdict::Good => state.limit.good(now),
            Verdict::Trouble => state.limit.trouble(),
            Verdict::TimedOut => state.limit.timed_out(self.lowered),
            Verdict::Throttled { pause, why } => {
                let pause = pause.unwrap_or_default().min(self.throttle.bounds.pause);
                state.limit.throttled(self.lowered, now, pause);
                state.why = why;
            }
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.throttle.lock();
        state.in_flight -= 1;
        state.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throttle(in_flight: usize, per_second: Option<f64>) -> Throttle {
        let (pause, wait) = (Duration::from_secs(300), Duration::from_secs(3));
        Throttle::new(Bounds { in_flight, per_second, pause, wait })
    }

    fn plea(pause: Duration) -> Verdict {
        Verdict::Throttled { pause: Some(pause), why: "the server answered 503".into() }
    }

    #[test]
    fn an_origin_that_asks_to_be_left_alone_for_long_makes_nobody_wait() {
        let throttle = throttle(4, None);
        let on_its_way = throttle.acquire(false).unwrap();
        throttle.acquire(false).unwrap().finish(plea(Duration::from_secs(60)));
        let refused = throttle.acquire(false).unwrap_err();
        assert_eq!(refused.why.as_deref(), Some("the server answered 503"));
        assert!(refused.wait > Duration::from_secs(50) && refused.wait <= Duration::from_secs(60), "{refused:?}");
        // Longer than anybody is to wait: cut to the longest pause.
        on_its_way.finish(plea(Duration::from_secs(100_000)));
        let refused = throttle.acquire(false).unwrap_err();
        assert!(refused.wait > Duration::from_secs(290) && refused.wait <= Duration::from_secs(300), "{refused:?}");
        assert_eq!(throttle.lock().in_flight, 0, "the permits are given back");
    }

    #[test]
    fn a_short_pause_is_waited_for_by_everybody() {
        let throttle = throttle(4, None);
        let pause = Duration::from_millis(200);
        let started = Instant::now();
        throttle.acquire(false).unwrap().finish(plea(pause));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let permit = throttle.acquire(false).unwrap();
                    assert!(started.elapsed() >= pause);
                    permit.finish(Verdict::Good);
                });
            }
        });
    }

    #[test]
    fn where_there_are_other_origins_half_of_the_threads_at_most_wait_at_one() {
        let throttle = throttle(4, None);
        throttle.acquire(true).unwrap().finish(plea(Duration::from_secs(2)));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| throttle.acquire(true).unwrap().finish(Verdict::Good));
            }
            let waiting = || throttle.lock().line.len();
            while waiting() < 2 {
                std::thread::yield_now();
            }
            assert_eq!(throttle.acquire(true).unwrap_err().wait, CROWDED);
        });
        throttle.acquire(true).unwrap().finish(Verdict::Good);
    }

    #[test]
    fn a_ceiling_spaces_requests_and_one_that_is_due_too_late_is_not_waited_for() {
        let slow = throttle(100, Some(0.25));
        slow.acquire(false).unwrap().finish(Verdict::Good);
        let refused = slow.acquire(false).unwrap_err();
        assert!(refused.why.is_none() && refused.wait > Duration::from_secs(3), "{refused:?}");
        let started = Instant::now();
        let fast = throttle(100, Some(1000.0));
        (0..300).for_each(|_| fast.acquire(false).unwrap().finish(Verdict::Good));
        // The first 50 ms are caught up on.
        assert!(started.elapsed() >= Duration::from_millis(240), "{:?}", started.elapsed());
    }

    #[test]
    fn whoever_is_told_to_come_later_because_the_origin_asked_for_less_hears_what_it_answered() {
        let wait = Duration::ZERO;
        let throttle = Throttle::new(Bounds { in_flight: 4, per_second: None, pause: Duration::MAX, wait });
        throttle.acquire(false).unwrap().finish(plea(Duration::ZERO));
        let why = || throttle.acquire(false).err().map(|not_now| not_now.why.expect("a reason"));
        assert_eq!(why().as_deref(), Some("the server answered 503"), "left alone");
        while why().is_some() {
            std::thread::yield_now();
        }
        assert_eq!(throttle.load().pause, Duration::ZERO);
        assert_eq!(why().as_deref(), Some("the server answered 503"), "asked no faster");
    }

    #[test]
    fn nobody_waits_for_long_behind_requests_that_are_not_answered() {
        let (pause, wait) = (Duration::MAX, Duration::from_millis(20));
        let throttle = Throttle::new(Bounds { in_flight: 1, per_second: None, pause, wait });
        let unanswered = throttle.acquire(false).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let refused = throttle.acquire(false).unwrap_err();
                    assert!(refused.why.is_none() && refused.wait > wait, "{refused:?}");
                });
            }
        });
        assert!(throttle.lock().line.is_empty());
        unanswered.finish(Verdict::TimedOut);
        throttle.acquire(false).unwrap().finish(Verdict::Good);
    }

    #[test]
    fn waiting_threads_are_served_in_the_order_they_came() {
        let throttle = throttle(1, None);
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let first = throttle.acquire(false).unwrap();
            for number in 0..4 {
                let (throttle, order) = (&throttle, &order);
                scope.spawn(move || {
                    let permit = throttle.acquire(false).unwrap();
                    order.lock().unwrap().push(number);
                    permit.finish(Verdict::Good);
                });
                while throttle.lock().line.len() <= number {
                    std::thread::yield_now();
                }
            }
            first.finish(Verdict::Good);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn no_more_than_the_limit_are_ever_in_flight() {
        let throttle = throttle(3, None);
        let in_flight = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let permit = throttle.acquire(false).unwrap();
                        let now = in_flight.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        assert!(now < 3, "{now} others in flight");
                        in_flight.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        permit.finish(Verdict::Good);
                    }
                });
            }
        });
        assert_eq!(throttle.lock().in_flight, 0);
    }
}
