//! What is waited for while a run is at work, for `status`: which shard has been waiting how long for which object.

use std::cmp::Reverse;
use std::time::Duration;

use microshard_queue::now_ms;
use serde::{Deserialize, Serialize};

use crate::errand::{Errand, Errands};
use crate::monitor::human;
use crate::shown::{one_line, shown_uri};

/// Where the queue keeps it.
pub const KEY: &str = "waits";
/// What comes in less time is not waited for.
const SHORT: Duration = Duration::from_secs(1);
/// No more than these are told, the longest first.
const TOLD_MAX: usize = 20;

/// An object that takes long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// The shard that it is for.
    pub shard: String,
    /// The object, without secrets.
    pub uri: String,
    /// Since when it is on its way, Unix milliseconds.
    pub since_ms: i64,
    /// This is a second request for it, as the first takes long.
    pub again: bool,
}

/// What takes long now, the longest first.
pub fn now(errands: &Errands) -> Vec<Wait> {
    let mut long: Vec<_> = errands
        .now()
        .filter_map(|errand| errand.ask.sent_for().filter(|time| *time >= SHORT).map(|time| (time, errand)))
        .collect();
    long.sort_by_key(|(time, _)| Reverse(*time));
    long.truncate(TOLD_MAX);
    long.iter().map(|(time, errand)| wait(errand, *time)).collect()
}

fn wait(errand: &Errand, time: Duration) -> Wait {
    // To the second, so that the same wait is the same the next time.
    let since_ms = (now_ms() - time.as_millis() as i64) / 1000 * 1000;
    Wait { shard: errand.shard.clone(), uri: shown_uri(&errand.uri), since_ms, again: errand.again }
}

impl Wait {
    /// For a person.
    pub fn line(&self, now_ms: i64) -> String {
        let time = human::duration(Duration::from_millis((now_ms - self.since_ms).max(0) as u64));
        let again = if self.again { ", asked for a second time" } else { "" };
        format!("{} has been waiting for {time} for {}{again}", self.shard, one_line(&self.uri))
    }
}
