//! What there is to tell about a run: sums, speeds, the time left, failures. Pure: the time is given, and what is told
//! is only collected here, so that an event costs a few additions and no lane ever waits for a terminal.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::shown::{one_line, shown_uri};

use super::human::{bytes, bytes_per_s, count, duration, per_s, percent};
use super::totals::Sample;
use super::{Event, Rates, Totals};

/// Rates are taken over the last minute: shards end in steps of hundreds of microshards, so less would jump.
const WINDOW: Duration = Duration::from_secs(60);
/// Between two samples in the window.
const SAMPLE_PERIOD: Duration = Duration::from_secs(1);
/// Failures told one by one; the queue keeps all of them.
const FAILURES_TOLD: u64 = 20;

/// Microshards of one language.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LanguageProgress {
    /// All of them.
    pub planned: u64,
    /// Those published or given up, by earlier starts too.
    pub ended: u64,
}

/// A run's progress over time.
#[derive(Debug, Default)]
pub struct Progress {
    /// The sums so far.
    pub totals: Totals,
    /// By language.
    pub languages: BTreeMap<String, LanguageProgress>,
    /// The oldest is the last one beyond the window.
    samples: VecDeque<(Instant, Sample)>,
    /// What the whole run waits for, and until when.
    pause: Option<(Instant, String)>,
    /// Why the last shard was deferred.
    deferred_why: String,
    /// Requests at the same time, and a second where they are bounded, by origin.
    limits: BTreeMap<String, (u32, Option<u32>)>,
    failures: u64,
    untold: Vec<String>,
}

impl Progress {
    /// Adds one event.
    pub fn add(&mut self, event: &Event) {
        self.totals.add(event);
        match event {
            Event::Started { languages } => {
                for language in languages {
                    let progress = self.languages.entry(language.language.clone()).or_default();
                    progress.planned += language.planned.microshards;
                    progress.ended += language.done.microshards;
                }
                self.untold.push(self.first_line());
            }
            Event::Planned { languages } => {
                self.languages.values_mut().for_each(|progress| progress.planned = 0);
                for language in languages {
                    let progress = self.languages.entry(language.language.clone()).or_default();
                    progress.planned += language.planned.microshards;
                }
            }
            Event::ShardPublished { language, microshards, failed, .. } => {
                self.languages.entry(language.clone()).or_default().ended += microshards + failed;
            }
            Event::ShardFailed { language, microshards, shard, sentence } => {
                self.languages.entry(language.clone()).or_default().ended += microshards;
                self.tell_failure(|| format!("shard {} failed: {}", one_line(shard), one_line(sentence)));
            }
            Event::ShardHeld { language, microshards, failed, shard, why } => {
                let progress = self.languages.entry(language.clone()).or_default();
                progress.ended += failed;
                progress.planned = progress.planned.saturating_sub(*microshards);
                self.tell_failure(|| format!("shard {} is held: {}", one_line(shard), one_line(why)));
            }
            Event::MicroshardFailed { id, uri, sentence } => {
                self.tell_failure(|| format!("microshard {id} ({}) failed: {}", shown_uri(uri), one_line(sentence)))
            }
            Event::LeaseLost { shard, .. } => {
                self.untold
                    .push(format!("shard {} was lost to another lane: its work is thrown away", one_line(shard)));
            }
            Event::ShardDeferred { why, .. } => self.deferred_why.clone_from(why),
            Event::OriginLimit { origin, limit, per_second } => {
                self.limits.insert(origin.clone(), (*limit, *per_second));
            }
            Event::Waiting { until, why } => self.pause = Some((*until, why.clone())),
            Event::Finished { elapsed } => self.untold.push(self.last_line(*elapsed)),
            // New work came while all that was left waited.
            Event::Fetched { .. } => self.pause = None,
            Event::RowsBuilt { .. } => {}
        }
    }

    /// It is `now`: remembers where things stand.
    pub fn tick(&mut self, now: Instant) {
        let last = self.samples.back().map(|(then, _)| now.saturating_duration_since(*then));
        if last.is_none_or(|age| age >= SAMPLE_PERIOD) {
            self.samples.push_back((now, self.totals.sample()));
        }
        while self.samples.get(1).is_some_and(|(then, _)| now.saturating_duration_since(*then) >= WINDOW) {
            self.samples.pop_front();
        }
        self.pause.take_if(|(until, _)| *until <= now);
    }

    /// The lines to tell since the last call: how it began, failures, how it ended.
    pub fn take_untold(&mut self) -> Vec<String> {
        std::mem::take(&mut self.untold)
    }

    /// The speeds over the last minute.
    pub fn rates(&self, now: Instant) -> Rates {
        let Some((then, from)) = self.samples.front() else { return Rates::default() };
        Rates::between(*from, self.totals.sample(), now.saturating_duration_since(*then))
    }

    /// The time left at the present speed; `None` while nothing ends.
    pub fn eta(&self, now: Instant) -> Option<Duration> {
        let left = self.totals.planned.microshards.saturating_sub(self.totals.ended());
        let ended_per_s = self.rates(now).ended;
        if ended_per_s > 0.0 { Duration::try_from_secs_f64(left as f64 / ended_per_s).ok() } else { None }
    }

    /// Where things stand, in one line; what matters most comes first, for a terminal may cut it.
    pub fn line(&self, now: Instant) -> String {
        let (totals, rates) = (&self.totals, self.rates(now));
        let (ended, planned) = (totals.ended(), totals.planned.microshards);
        let mut parts = vec![percent(ended, planned), format!("{}/{} microshards", count(ended), count(planned))];
        if let Some((until, why)) = &self.pause {
            parts.push(format!("pausing {}: {}", duration(until.saturating_duration_since(now)), one_line(why)));
        } else if ended < planned {
            let eta = self.eta(now).map_or("unknown".into(), duration);
            parts.push(format!("ETA {eta}"));
        }
        if totals.microshards_failed > 0 {
            parts.push(format!("failed {}", count(totals.microshards_failed)));
        }
        parts.push(per_s(rates.fetched));
        parts.push(format!("in {}", bytes_per_s(rates.bytes_in)));
        parts.push(format!("out {}", bytes_per_s(rates.bytes_out)));
        if let Some((origin, (limit, per_second))) =
            self.limits.iter().min_by_key(|(_, (limit, per_second))| (per_second.unwrap_or(u32::MAX), *limit))
        {
            let pace = per_second.map(|rate| format!(", {} a second", count(rate.into()))).unwrap_or_default();
            parts.push(format!("{limit} at once{pace} from {}", shown_uri(origin)));
        }
        if !totals.waiting.is_empty() {
            let shards = count(totals.waiting.len() as u64);
            parts.push(format!("waiting {shards} shards: {}", one_line(&self.deferred_why)));
        }
        parts.join("  ")
    }

    fn first_line(&self) -> String {
        let (planned, done) = (self.totals.planned, self.totals.done_before);
        let (microshards, shards) = (count(planned.microshards), count(planned.shards));
        let mut line = format!("{microshards} microshards, {} languages, {shards} shards", self.languages.len());
        if done != super::Amount::default() {
            line += &format!(
                "; {} shards with {} microshards were done before",
                count(done.shards),
                count(done.microshards)
            );
        }
        line
    }

    fn last_line(&self, elapsed: Duration) -> String {
        let totals = &self.totals;
        let held = match totals.microshards_held {
            0 => String::new(),
            held => format!(", held {}", count(held)),
        };
        let failed = format!("failed {}{held}", count(totals.microshards_failed));
        if totals.published.shards == 0 {
            if totals.planned.shards == totals.done_before.shards && totals.microshards_failed == 0 {
                return "nothing to do".to_owned();
            }
            return format!("no shard was published in {}: {failed}", duration(elapsed));
        }
        let rates = Rates::between(Sample::default(), totals.sample(), elapsed);
        format!(
            "{} microshards into {} shards in {} ({}): {} rows, in {}, out {}, {failed}",
            count(totals.published.microshards),
            count(totals.published.shards),
            duration(elapsed),
            per_s(rates.ended),
            count(totals.published.rows),
            bytes(totals.bytes_in),
            bytes(totals.bytes_out)
        )
    }

    fn tell_failure(&mut self, line: impl FnOnce() -> String) {
        self.failures += 1;
        if self.failures <= FAILURES_TOLD {
            self.untold.push(line());
        } else if self.failures == FAILURES_TOLD + 1 {
            self.untold.push("more failures: `failures` lists them all".into());
        }
    }
}
