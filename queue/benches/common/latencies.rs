//! Times of one operation, in the order of their length.

use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn new(mut samples: Vec<Duration>) -> Latencies {
        samples.sort_unstable();
        Latencies(samples)
    }

    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        self.0.get(self.0.len() * percent / 100).or(self.0.last()).copied().unwrap_or_default()
    }
}

impl std::fmt::Display for Latencies {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [p50, p99, max] = [50, 99, 100].map(|percent| self.percentile(percent).as_secs_f64() * 1e3);
        write!(formatter, "p50 {p50:.1} ms, p99 {p99:.1} ms, max {max:.1} ms")
    }
}
