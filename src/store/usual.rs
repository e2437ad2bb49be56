//! How long an origin's answers take, so that one can be called slow. Pure: it knows no clock.

use std::time::Duration;

/// Answers that must have come before any can be called slow.
const ENOUGH: u32 = 20;
/// The newest answer counts for so much of the averages: they look back on some dozens.
const NEWEST: f64 = 1.0 / 32.0;
/// The slowest that is usual lies so many deviations above the average.
const DEVIATIONS: f64 = 4.0;
/// A slow answer takes so many times as long.
const TIMES: f64 = 2.0;

/// Running averages over an origin's answers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usual {
    answers: u32,
    average_s: f64,
    deviation_s: f64,
}

impl Usual {
    /// An answer took so long.
    pub(super) fn took(&mut self, time: Duration) {
        let time_s = time.as_secs_f64();
        if self.answers == 0 {
            (self.average_s, self.deviation_s) = (time_s, time_s / 2.0);
        }
        self.answers = self.answers.saturating_add(1);
        self.deviation_s += ((time_s - self.average_s).abs() - self.deviation_s) * NEWEST;
        self.average_s += (time_s - self.average_s) * NEWEST;
    }

    /// From when on an answer is slow; `None` while too few have come.
    pub(super) fn slow(&self) -> Option<Duration> {
        let usual_s = self.average_s + DEVIATIONS * self.deviation_s;
        (self.answers >= ENOUGH).then(|| Duration::from_secs_f64(TIMES * usual_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(answers: impl IntoIterator<Item = u64>) -> Option<Duration> {
        let mut usual = Usual::default();
        answers.into_iter().for_each(|ms| usual.took(Duration::from_millis(ms)));
        usual.slow()
    }

    #[test]
    fn nothing_is_slow_before_it_is_known_what_is_usual() {
        assert_eq!(after(vec![10; 19]), None);
        assert!(after(vec![10; 20]).is_some());
    }

    #[test]
    fn slow_is_a_multiple_of_what_even_the_slower_answers_take() {
        let even = after(vec![100; 500]).unwrap();
        assert!(even >= Duration::from_millis(200) && even < Duration::from_millis(210), "{even:?}");
        let uneven = after((0..500).map(|n| if n % 2 == 0 { 50 } else { 150 })).unwrap();
        assert!(uneven >= Duration::from_millis(550) && uneven < Duration::from_millis(650), "{uneven:?}");
    }

    #[test]
    fn an_origin_that_becomes_slow_is_slow_as_usual_soon() {
        let slower = after(std::iter::repeat_n(10, 500).chain(std::iter::repeat_n(3_000, 30))).unwrap();
        assert!(slower > Duration::from_secs(3), "{slower:?}");
    }
}
