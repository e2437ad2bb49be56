//! How many requests a second an origin is asked: any number until it first asks for less, then what it was seen to serve.
//! The edge is looked for by halving the interval between what was served for a while and what was refused, and past it
//! carefully now and then, as an origin may come to serve more. A limit on requests in flight cannot do this: where answers
//! come in less than a millisecond, one in flight is a thousand a second.
//! Pure: it knows no clock, times are since any fixed moment.

use std::collections::VecDeque;
use std::time::Duration;

/// Answers are counted over so many tenths of a second.
const WINDOW: u64 = 5;
/// A pace that was kept so long without a plea is taken to be served: while none was refused, and afterwards.
const KEPT_AT_FIRST: Duration = Duration::from_millis(250);
const KEPT: Duration = Duration::from_secs(2);
/// A pace so near under one that was refused is good enough for so long; then a little more is tried.
const NEAR: f64 = 1.1;
const GOOD_ENOUGH_FOR: Duration = Duration::from_secs(20);
const A_LITTLE: f64 = 1.02;
/// What is asked after a pace was refused that had been served for a while.
const LOWERED_TO: f64 = 0.95;
/// And after a pace was refused at once that had seemed to be served.
const LOWERED_AGAIN_TO: f64 = 0.8;
/// A pace grows only where it was used: where so much of it was served.
const USED: f64 = 0.8;
/// Where the search begins at least: the first plea says little of what is served.
const FIRST: f64 = 16.0;
/// A pace never falls under this: an origin that wants less says when to ask again.
const LEAST: f64 = 0.5;
/// Requests that were not sent in their time, as threads wake late, follow at once: those of so long a time.
const CATCH_UP: Duration = Duration::from_millis(20);

/// Requests a second, and when the next one is due.
#[derive(Debug, Clone)]
pub struct Pace {
    ceiling: Option<f64>,
    search: Option<Search>,
    /// How many good answers came in each tenth of the last half second.
    served: VecDeque<(u64, u32)>,
    /// When the next request is due, if all before were sent in time.
    due: Duration,
}

/// The search for what an origin serves, since it first asked for less.
#[derive(Debug, Clone, Copy)]
struct Search {
    /// Requests a second.
    pace: f64,
    /// Since when.
    since: Duration,
    /// Good answers since then.
    answered: u32,
    /// A pace that was served for a while.
    low: f64,
    /// A pace that was refused.
    high: Option<f64>,
    /// How much more than what is good enough is tried next.
    beyond: f64,
}

impl Pace {
    /// No more than `ceiling` requests a second, if there is one.
    pub fn new(ceiling: Option<f64>) -> Pace {
        Pace { ceiling, search: None, served: VecDeque::new(), due: Duration::ZERO }
    }

    /// Requests a second; `None` without bound.
    pub fn now(&self) -> Option<f64> {
        let pace = self.search.map(|search| search.pace);
        match (pace, self.ceiling) {
            (Some(pace), Some(ceiling)) => Some(pace.min(ceiling)),
            (pace, ceiling) => pace.or(ceiling),
        }
    }

    /// Whether it is the origin's pleas that hold the pace down, and not the ceiling.
    pub fn is_asked_for(&self) -> bool {
        self.search.is_some_and(|search| self.ceiling.is_none_or(|ceiling| search.pace < ceiling))
    }

    /// When the next request may be sent; it may be past.
    pub fn due(&self) -> Duration {
        if self.now().is_some() { self.due } else { Duration::ZERO }
    }

    /// A request is sent at `now`.
    pub fn sent(&mut self, now: Duration) {
        if let Some(pace) = self.now() {
            self.due = self.due.max(now.saturating_sub(CATCH_UP)) + Duration::from_secs_f64(1.0 / pace);
        }
    }

    /// A good answer at `now`.
    pub fn good(&mut self, now: Duration) {
        let tenth = now.as_millis() as u64 / 100;
        match self.served.back_mut() {
            Some((last, count)) if *last == tenth => *count += 1,
            _ => self.served.push_back((tenth, 1)),
        }
        while self.served.front().is_some_and(|(first, _)| first + WINDOW <= tenth) {
            self.served.pop_front();
        }
        if let Some(search) = &mut self.search {
            search.answered += 1;
            search.raise(now);
        }
    }

    /// The origin asked for less at `now`, and to be left alone until `again`.
    pub fn lower(&mut self, now: Duration, again: Duration) {
        let served = self.served(now);
        let search = match self.search {
            None => {
                Search { pace: served.max(FIRST), since: again, answered: 0, low: 0.0, high: None, beyond: A_LITTLE }
            }
            // Nothing was served since: that says nothing of how much will be.
            Some(search) if search.answered == 0 => Search { since: again, ..search },
            Some(search) => search.lowered(served, now, again),
        };
        self.search = Some(search);
        self.due = again;
        self.served.clear();
    }

    /// Good answers a second, lately.
    fn served(&self, now: Duration) -> f64 {
        let tenth = now.as_millis() as u64 / 100;
        let served: u32 = self.served.iter().filter(|(at, _)| at + WINDOW > tenth).map(|(_, count)| count).sum();
        f64::from(served) * 10.0 / WINDOW as f64
    }
}

impl Search {
    fn raise(&mut self, now: Duration) {
        let kept = now.saturating_sub(self.since);
        if f64::from(self.answered) < self.pace * kept.as_secs_f64() * USED {
            return;
        }
        let (pace, high) = match self.high {
            None if kept >= KEPT_AT_FIRST => (self.pace * 2.0, None),
            // Past what was refused once: on ever faster, as it came to serve more.
            Some(high) if kept >= KEPT && self.pace >= high => {
                self.beyond = (1.0 + (self.beyond - 1.0) * 2.0).min(4.0);
                (self.pace * self.beyond, Some(self.pace * self.beyond))
            }
            Some(high) if kept >= KEPT && high > self.pace * NEAR => ((self.pace + high) / 2.0, Some(high)),
            Some(_) if kept >= GOOD_ENOUGH_FOR => (self.pace * A_LITTLE, Some(self.pace * A_LITTLE)),
            _ => return,
        };
        self.high = high;
        (self.low, self.pace, self.since, self.answered) = (self.pace, pace, now, 0);
    }

    /// After a plea; `served` a second is what came just before it.
    fn lowered(self, served: f64, now: Duration, again: Duration) -> Search {
        let refused = self.pace;
        let (low, pace) = if now.saturating_sub(self.since) > KEPT {
            // What was served for a while is not any more.
            (0.0, refused * LOWERED_TO)
        } else if refused < self.low * NEAR {
            (0.0, refused * LOWERED_AGAIN_TO)
        } else {
            let high = refused.min(served.max(self.low));
            (self.low, (self.low + high) / 2.0)
        };
        Search { pace: pace.max(LEAST), since: again, answered: 0, low, high: Some(refused), beyond: A_LITTLE }
    }
}
