//! What a run tells about itself: events come out of the pipeline, nothing goes in. A monitor must never slow a lane
//! down, fail or panic: an event is only added up, a terminal is written to by `tick` and at the end; where it is
//! closed the monitor goes quiet, and the run goes on.

mod bars;
pub mod human;
mod lines;
mod progress;
mod totals;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

pub use bars::Bars;
pub use lines::Lines;
pub use progress::{LanguageProgress, Progress};
pub use totals::{Rates, Totals};

/// Shards, and what is in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Shards.
    pub shards: u64,
    /// Microshards.
    pub microshards: u64,
    /// Rows; 0 where the manifest does not count them.
    pub rows: u64,
}

/// What the queue holds of one language when a run starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LanguageTotals {
    /// The language.
    pub language: String,
    /// Everything that is planned.
    pub planned: Amount,
    /// What earlier starts have published or given up.
    pub done: Amount,
}

/// Something that happened in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The queue is open and work begins.
    Started {
        /// Every language with work in the queue.
        languages: Vec<LanguageTotals>,
    },
    /// A snapshot has added to the plan.
    Planned {
        /// Every language of the queue, as it is planned now.
        languages: Vec<LanguageTotals>,
    },
    /// One microshard was downloaded.
    Fetched {
        /// Its size.
        bytes: u64,
    },
    /// One microshard's rows went into a shard that is not published yet.
    RowsBuilt {
        /// How many.
        rows: u64,
    },
    /// A shard is published and committed.
    ShardPublished {
        /// Its language.
        language: String,
        /// Its key.
        shard: String,
        /// Microshards in it.
        microshards: u64,
        /// Microshards planned for it that failed.
        failed: u64,
        /// Rows in it.
        rows: u64,
        /// Bytes of its microshards.
        bytes_in: u64,
        /// Bytes of the shard.
        bytes_out: u64,
    },
    /// A shard gave its lane back and waits.
    ShardDeferred {
        /// Its language.
        language: String,
        /// Its key.
        shard: String,
        /// How long it waits at least.
        delay: Duration,
        /// Why, for a person.
        why: String,
    },
    /// A shard is given up, with all its microshards.
    ShardFailed {
        /// Its language.
        language: String,
        /// Its key.
        shard: String,
        /// Microshards that were planned for it.
        microshards: u64,
        /// Why, for a person.
        sentence: String,
    },
    /// A shard is held until what failed of it is retried.
    ShardHeld {
        /// Its language.
        language: String,
        /// Its key.
        shard: String,
        /// Microshards that wait with it.
        microshards: u64,
        /// Microshards planned for it that failed.
        failed: u64,
        /// Why, for a person.
        why: String,
    },
    /// A lane lost its shard to another while it hung; its work was thrown away.
    LeaseLost {
        /// Its language.
        language: String,
        /// Its key.
        shard: String,
    },
    /// A microshard is given up. Told once per failure; counted when its shard ends.
    MicroshardFailed {
        /// Its id.
        id: i64,
        /// Where it is.
        uri: String,
        /// Why, for a person.
        sentence: String,
    },
    /// An origin is asked for more, or less, at the same time.
    OriginLimit {
        /// The origin, `https://host`.
        origin: String,
        /// Requests at the same time from now on.
        limit: u32,
        /// Requests a second from now on, where they are bounded.
        per_second: Option<u32>,
    },
    /// The whole run waits: everything that is left was deferred. Told once, and when the time is another.
    Waiting {
        /// Until the first of it is taken up again.
        until: Instant,
        /// Why, for a person.
        why: String,
    },
    /// The run is over.
    Finished {
        /// How long it took.
        elapsed: Duration,
    },
}

/// Hears what happens in a run.
pub trait Monitor: Send + Sync {
    /// Something happened. Called from any thread; must return soon.
    fn event(&self, event: &Event);

    /// It is `now`: time to show something. Called a few times a second by one thread of the pipeline's, so that a
    /// monitor needs neither clock nor thread, and joined before the last event is sent.
    fn tick(&self, now: Instant) {
        let _ = now;
    }
}

/// Bars where standard error is a terminal that can move its cursor, a line every ten seconds elsewhere.
pub fn for_stderr() -> Box<dyn Monitor> {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if std::io::stderr().is_terminal() && !dumb {
        Box::new(Bars::new(indicatif::ProgressDrawTarget::stderr_with_hz(8)))
    } else {
        Box::new(Lines::new(std::io::stderr()))
    }
}
