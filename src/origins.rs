//! What each origin is asked while a run is at work, for `status`.

use std::time::Duration;

use microshard_queue::now_ms;
use serde::{Deserialize, Serialize};

use crate::monitor::human;
use crate::shown::one_line;
use crate::store::{Sources, Tally};

/// Where the queue keeps it.
pub const KEY: &str = "origins";

/// What one origin is asked, and what it answered so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OriginLoad {
    /// `https://host:port`, `s3://bucket` or a directory; without secrets.
    pub origin: String,
    /// Requests at the same time, at most.
    pub at_once: usize,
    /// Requests a second, at most; null without bound.
    pub per_second: Option<f64>,
    /// The bound is the origin's own, and not `--max-requests-per-second`.
    pub asked_for_less: bool,
    /// Until when it is left alone, Unix milliseconds; null where it is not.
    pub paused_until_ms: Option<i64>,
    /// How often it answered 408, 429 or 503.
    pub throttled: u64,
    /// Timeouts, resets, other 5xx, short bodies.
    pub transient: u64,
    /// Objects that it was asked for a second time, because they were slow.
    #[serde(default)]
    pub asked_again: u64,
    /// What it answered when it last asked for less.
    pub why: Option<String>,
}

/// What the origins are asked now.
pub fn now(sources: &Sources) -> Vec<OriginLoad> {
    sources.tallies().into_iter().filter_map(|(origin, tally)| load(origin, tally)).collect()
}

fn load(origin: String, tally: Tally) -> Option<OriginLoad> {
    let load = tally.load?;
    Some(OriginLoad {
        origin,
        at_once: load.in_flight,
        per_second: load.per_second,
        asked_for_less: load.is_asked_for,
        paused_until_ms: (!load.pause.is_zero()).then(|| now_ms() + load.pause.as_millis() as i64),
        throttled: tally.throttled,
        transient: tally.transient,
        asked_again: tally.asked_again,
        why: (!load.why.is_empty()).then_some(load.why),
    })
}

impl OriginLoad {
    /// For a person.
    pub fn line(&self, now_ms: i64) -> String {
        let mut line = format!("{}: up to {} requests at once", one_line(&self.origin), self.at_once);
        if let Some(per_second) = self.per_second {
            line += &format!(", {} a second", human::per_s(per_second).trim_end_matches("/s"));
            line += if self.asked_for_less { " as it asks for less" } else { " by --max-requests-per-second" };
        }
        if let Some(left @ 1..) = self.paused_until_ms.map(|until| until - now_ms) {
            line += &format!("; left alone for {} more", human::duration(Duration::from_millis(left as u64)));
        }
        if let Some(why) = &self.why {
            line += &format!("; asked for less {} times, last: {}", human::count(self.throttled), one_line(why));
        }
        if self.transient > 0 {
            line += &format!("; {} other vain requests", human::count(self.transient));
        }
        if self.asked_again > 0 {
            line += &format!("; {} slow objects asked for a second time", human::count(self.asked_again));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_that_asks_for_less_is_told_with_its_pace_its_pause_and_its_reason() {
        let quiet = OriginLoad {
            origin: "http://a:1".into(),
            at_once: 64,
            per_second: None,
            asked_for_less: false,
            paused_until_ms: None,
            throttled: 0,
            transient: 0,
            asked_again: 0,
            why: None,
        };
        assert_eq!(quiet.line(0), "http://a:1: up to 64 requests at once");
        let capped = OriginLoad { per_second: Some(20.0), ..quiet.clone() };
        assert!(capped.line(0).ends_with("20.0 a second by --max-requests-per-second"), "{}", capped.line(0));
        let paused = OriginLoad {
            per_second: Some(475.0),
            asked_for_less: true,
            paused_until_ms: Some(60_000),
            throttled: 7,
            transient: 2,
            asked_again: 3,
            why: Some("the server\nanswered 503".into()),
            ..quiet
        };
        assert_eq!(
            paused.line(30_000),
            "http://a:1: up to 64 requests at once, 475 a second as it asks for less; left alone for 30 s more; asked for \
             less 7 times, last: the server\\nanswered 503; 2 other vain requests; 3 slow \
             objects asked for a second time"
        );
        assert!(!paused.line(60_000).contains("left alone"));
    }
}
