//! How long is waited for what: every wait and retry has a bound. One place, so that tests can make the times short.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::store::{Tally, Trouble};

/// Times and bounds of waiting.
#[derive(Debug, Clone)]
pub struct Patience {
    /// A lane waits no longer than this in all; then the job is deferred (I9).
    pub in_lane_max: Duration,
    /// The first wait in a lane.
    pub in_lane_first: Duration,
    /// The first deferral; every further one is half as long again.
    pub deferral_first: Duration,
    /// The longest deferral.
    pub deferral_max: Duration,
    /// The longest `Retry-After` that is honoured.
    pub retry_after_max: Duration,
    /// Tries of one object; then it fails, if it has been failing for `object_min` too. And refusals of the output;
    /// then the run stops, if it has taken nothing for `origin_max` too.
    pub tries_max: u32,
    /// Longer than `origin_max`, so that an origin that fails for everything stops the run before an object fails.
    pub object_min: Duration,
    /// How long one object may keep failing in all.
    pub object_max: Duration,
    /// How long an origin may serve nothing, or the output take nothing, at all; then the run stops, and nothing fails for
    /// it.
    pub origin_max: Duration,
    /// Refused or failing objects up to which it is these, and not everything: they may be the last of a run.
    pub few: u64,
    /// Vain requests in that time from which it is the origin that fails, if they are for more than a few objects.
    pub vain_max: u64,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            in_lane_max: Duration::from_secs(3),
            in_lane_first: Duration::from_millis(500),
            deferral_first: Duration::from_secs(5),
            deferral_max: Duration::from_secs(30),
            retry_after_max: Duration::from_secs(300),
            tries_max: 8,
            object_min: Duration::from_secs(180),
            object_max: Duration::from_secs(3 * 3600),
            origin_max: Duration::from_secs(120),
            few: 20,
            vain_max: 100,
        }
    }
}

impl Patience {
    /// A short wait in a lane, with jitter, but not shorter than what the origin asked for.
    pub fn quick(&self, asked: Duration) -> Duration {
        let first = self.in_lane_first;
        asked.max(first / 2 + first.mul_f64(fastrand::f64() / 2.0))
    }

    /// A deferral: 5 s x 1.5^n, at most 30 s, full jitter, so that what failed together does not come back together.
    pub fn deferral(&self, deferrals: u32) -> Duration {
        let ceiling = self.deferral_first.mul_f64(1.5_f64.powi(deferrals.min(16) as i32)).min(self.deferral_max);
        ceiling.mul_f64(fastrand::f64())
    }

    /// A deferral that is not shorter than what the origin asked for, as far as that is honoured.
    pub fn deferral_after(&self, deferrals: u32, trouble: Trouble) -> Duration {
        self.deferral(deferrals).max(trouble.asked().min(self.retry_after_max))
    }

    /// The wait before a vain request is repeated by whoever has nothing else to do: first a short one, then as long as
    /// deferrals are.
    pub fn repeat(&self, tries: u32, trouble: Trouble) -> Duration {
        let asked = trouble.asked().min(self.retry_after_max);
        if tries <= 1 { self.quick(asked) } else { self.deferral_after(tries - 2, trouble) }
    }

    /// Whether an origin is given up: it has served nothing for long, however many objects it was asked for.
    pub fn origin_is_lost(&self, tally: &Tally, trouble: Trouble) -> bool {
        let silent_for = tally.silent_since.map_or(Duration::ZERO, |since| since.elapsed());
        silent_for > self.origin_max
            && (trouble == Trouble::Unreachable || (tally.vain > self.vain_max && tally.vain_objects > self.few))
    }

    /// Whether the output is given up, after so many refusals in so long a time with nothing taken.
    pub fn output_is_lost(&self, refusals: u32, refused_for: Duration) -> bool {
        refusals > self.tries_max && refused_for > self.origin_max
    }

    /// Whether an object is given up, after so many tries in so long a time.
    pub fn object_is_lost(&self, tries: u32, tried_for: Duration) -> bool {
        (tries >= self.tries_max && tried_for >= self.object_min) || tried_for > self.object_max
    }
}

/// What the output has refused in a run since it last took something: how often, and since when.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<Option<(u32, Instant)>>);

impl Refusals {
    /// It has taken something.
    pub fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// It has refused something; how often it has done nothing else, and for how long.
    pub fn count(&self) -> (u32, Duration) {
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, since) = refused.get_or_insert_with(|| (0, Instant::now()));
        *count = count.saturating_add(1);
        (*count, since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shortest and the longest of many.
    fn extremes(wait: impl Fn() -> Duration) -> (Duration, Duration) {
        let waits: Vec<Duration> = (0..2_000).map(|_| wait()).collect();
        (*waits.iter().min().unwrap(), *waits.iter().max().unwrap())
    }

    #[test]
    fn a_deferral_is_anything_up_to_a_ceiling_that_grows_by_half_from_5_s_to_30_s() {
        let patience = Patience::default();
        for (deferrals, ceiling) in
            [(0, 5.0), (1, 7.5), (2, 11.25), (4, 25.3125), (5, 30.0), (359, 30.0), (u32::MAX, 30.0)]
        {
            let (shortest, longest) = extremes(|| patience.deferral(deferrals));
            let ceiling = Duration::from_secs_f64(ceiling);
            assert!(longest <= ceiling && longest > ceiling.mul_f64(0.9), "{deferrals}: {longest:?}");
            assert!(
                shortest < ceiling.mul_f64(0.1),
                "{deferrals}: {shortest:?}, so what failed together comes back together"
            );
        }
    }

    #[test]
    fn a_deferral_is_as_long_as_the_origin_asks_but_no_longer_than_is_honoured() {
        let patience = Patience::default();
        let asked = |seconds| patience.deferral_after(0, Trouble::Throttled(Some(Duration::from_secs(seconds))));
        assert_eq!(asked(40), Duration::from_secs(40));
        assert_eq!(asked(u64::MAX), patience.retry_after_max);
        assert!(asked(0) <= Duration::from_secs(5));
    }

    #[test]
    fn a_wait_in_a_lane_is_short_unless_the_origin_asks_for_more_and_3_s_at_most_are_waited_there() {
        let patience = Patience::default();
        let (shortest, longest) = extremes(|| patience.quick(Duration::ZERO));
        assert!(
            shortest >= Duration::from_millis(250) && longest <= Duration::from_millis(500),
            "{shortest:?} {longest:?}"
        );
        assert_eq!(patience.quick(Duration::from_secs(2)), Duration::from_secs(2));
        assert_eq!(patience.in_lane_max, Duration::from_secs(3));
    }
}
