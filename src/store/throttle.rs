//! How many requests an origin is asked at a time: grown while it answers well, halved when it asks for less (AIMD with
//! slow start). The decision (`Limit`) is pure and knows no clock; `Throttle` makes threads wait for it, first come
//! first served. A permit is never lost: dropping it gives it back.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Where slow start begins.
const START: usize = 16;

/// Answers to requests that were on their way when the limit fell say nothing about the new limit.
const LOWERED_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How many requests may be in flight, and why it changes.
#[derive(Debug, Clone)]
pub struct Limit {
    now: usize,
    max: usize,
    good_answers: usize,
    slow_start: bool,
    lowered_at: Option<Duration>,
    lowered: u64,
}

impl Limit {
    /// A limit that never exceeds `max` (at least 1) requests.
    pub fn new(max: usize) -> Limit {
        let max = max.max(1);
        Limit { now: START.min(max), max, good_answers: 0, slow_start: true, lowered_at: None, lowered: 0 }
    }

    /// Requests that may be in flight.
    pub fn now(&self) -> usize {
        self.now
    }

    /// How often it was lowered.
    pub fn lowered(&self) -> u64 {
        self.lowered
    }

    /// A good answer: a limit's worth of them doubles the limit in slow start, later adds one.
    pub fn good(&mut self) {
        self.good_answers += 1;
        if self.good_answers >= self.now {
            self.good_answers = 0;
            self.now = if self.slow_start { self.now * 2 } else { self.now + 1 }.min(self.max);
        }
    }

    /// Trouble that is not a plea for less, a reset or a timeout: growth goes on with care.
    pub fn trouble(&mut self) {
        self.slow_start = false;
    }

    /// The origin asked for less, at `at` (since any fixed moment).
    pub fn throttled(&mut self, at: Duration) {
        self.slow_start = false;
        self.good_answers = 0;
        if self.lowered_at.is_none_or(|last| at >= last + LOWERED_AGAIN_AFTER) {
            self.now = (self.now / 2).max(1);
            self.lowered_at = Some(at);
            self.lowered += 1;
        }
    }
}

/// What an answer said about the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It answered, whatever it said of the object.
    Good,
    /// A reset, a timeout, a 500.
    Trouble,
    /// It asked for less.
    Throttled,
}

/// The gate in front of one origin, shared by all threads.
#[derive(Debug)]
pub struct Throttle {
    state: Mutex<State>,
    started: Instant,
}

#[derive(Debug)]
struct State {
    limit: Limit,
    in_flight: usize,
    waiting: VecDeque<Arc<Turn>>,
}

/// One waiting thread. A condition variable each: waking them all for one permit would cost more than the requests.
#[derive(Debug, Default)]
struct Turn {
    woken: Condvar,
    granted: std::sync::atomic::AtomicBool,
}

impl Throttle {
    /// A gate for at most `max` requests at a time.
    pub fn new(max: usize) -> Throttle {
        let state = State { limit: Limit::new(max), in_flight: 0, waiting: VecDeque::new() };
        Throttle { state: Mutex::new(state), started: Instant::now() }
    }

    /// Waits for a permit; whoever came first gets the next one.
    pub fn acquire(&self) -> Permit<'_> {
        let mut state = self.lock();
        if state.waiting.is_empty() && state.in_flight < state.limit.now() {
            state.in_flight += 1;
        } else {
            let turn = Arc::new(Turn::default());
            state.waiting.push_back(Arc::clone(&turn));
            let is_waiting = |_: &mut State| !turn.granted.load(std::sync::atomic::Ordering::Relaxed);
            drop(turn.woken.wait_while(state, is_waiting).unwrap_or_else(PoisonError::into_inner));
        }
        Permit { throttle: self }
    }

    /// The limit as it is now.
    pub fn limit(&self) -> Limit {
        self.lock().limit.clone()
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
}

impl Permit<'_> {
    /// Gives the permit back and says how it went.
    pub fn finish(self, verdict: Verdict) {
        let at = self.throttle.started.elapsed();
        let mut state = self.throttle.lock();
        match verdict {
            Verdict::Good => state.limit.good(),
            Verdict::Trouble => state.limit.trouble(),
            Verdict::Throttled => state.limit.throttled(at),
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.throttle.lock();
        state.in_flight -= 1;
        while state.in_flight < state.limit.now()
            && let Some(turn) = state.waiting.pop_front()
        {
            state.in_flight += 1;
            turn.granted.store(true, std::sync::atomic::Ordering::Relaxed);
            turn.woken.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 100;

    fn answer_well(limit: &mut Limit, times: usize) {
        for _ in 0..times {
            limit.good();
        }
    }

    #[test]
    fn good_answers_double_the_limit_up_to_its_maximum() {
        let mut limit = Limit::new(MAX);
        let mut seen = vec![limit.now()];
        for _ in 0..4 {
            let now = limit.now();
            answer_well(&mut limit, now);
            seen.push(limit.now());
        }
        assert_eq!(seen, [16, 32, 64, 100, 100]);
    }

    #[test]
    fn a_plea_for_less_halves_once_however_many_were_in_flight() {
        let mut limit = Limit::new(16);
        for millis in [0, 10, 999] {
            limit.throttled(Duration::from_millis(millis));
        }
        assert_eq!((limit.now(), limit.lowered()), (8, 1));
        limit.throttled(Duration::from_millis(1000));
        assert_eq!((limit.now(), limit.lowered()), (4, 2));
    }

    #[test]
    fn the_limit_never_falls_under_one() {
        let mut limit = Limit::new(4);
        for second in 0..9 {
            limit.throttled(Duration::from_secs(second));
        }
        assert_eq!(limit.now(), 1);
        limit.good();
        assert_eq!(limit.now(), 2);
    }

    #[test]
    fn after_trouble_the_limit_grows_by_one_for_a_limits_worth_of_good_answers() {
        let mut limit = Limit::new(MAX);
        limit.throttled(Duration::ZERO);
        answer_well(&mut limit, 7);
        assert_eq!(limit.now(), 8);
        answer_well(&mut limit, 1);
        assert_eq!(limit.now(), 9);
        answer_well(&mut limit, 9);
        assert_eq!(limit.now(), 10);
    }

    #[test]
    fn a_reset_ends_slow_start_and_lowers_nothing() {
        let mut limit = Limit::new(MAX);
        limit.trouble();
        assert_eq!(limit.now(), 16);
        answer_well(&mut limit, 16);
        assert_eq!(limit.now(), 17);
    }

    #[test]
    fn waiting_threads_are_served_in_the_order_they_came() {
        let throttle = Throttle::new(1);
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let first = throttle.acquire();
            for number in 0..4 {
                let (throttle, order) = (&throttle, &order);
                scope.spawn(move || {
                    let permit = throttle.acquire();
                    order.lock().unwrap().push(number);
                    permit.finish(Verdict::Good);
                });
                while throttle.lock().waiting.len() <= number {
                    std::thread::yield_now();
                }
            }
            first.finish(Verdict::Good);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn no_more_than_the_limit_are_ever_in_flight() {
        let throttle = Throttle::new(3);
        let in_flight = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let permit = throttle.acquire();
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
