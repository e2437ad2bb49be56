//! A queue of planned shards in one SQLite file, for one process with hundreds of threads. It knows nothing of networks,
//! object stores, formats or databases elsewhere: microshards come in by `Intake`, leases go out by `Client::claim`, and
//! results are read with `Queue`.
//!
//! The states of a shard; a microshard's state is its shard's, unless it has a row in `exceptions`:
//!
//! ```text
//!             claim                 finish(Published)
//!   pending ---------> claimed ----------------------> published  (synced_at set by sync-back)
//!      ^  ^              | | |
//!      |  |   Released,  | | |  Failed, or a bound is reached
//!      |  +- runner died-+ | +-----------------------> failed
//!      |                   |
//!      |   its time comes  |  Deferred
//!      +------ waiting <---+                 held: a remainder kept back, or a shard that waits for `retry`
//! ```
//!
//! Claims cost what a shard has members, whatever is done (I7): partial indexes over the live slice. Every update that
//! ends a lease is fenced by the attempt (I5). Counters are kept by triggers, and CHECK constraints hold every legal state.

// What comes from outside must not end the process: where something cannot fail, the code says why.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::string_slice))]

mod check;
mod claim;
mod copying;
mod error;
#[cfg(feature = "test-faults")]
#[expect(clippy::expect_used, reason = "in no build that is used")]
mod faults;
mod failures;
mod file;
mod finish;
mod intake;
mod lock;
mod names;
mod record;
mod releasing;
mod reopening;
mod results;
mod retrying;
mod runner;
mod service;
mod sorter;
mod staging;
mod status;
mod step;

pub use claim::{Claimer, Job, LOST_MAX, Lease, Member, Pulse};
pub use error::{Error, Result};
pub use failures::{FailedMicroshard, Retried, RetrySelection};
#[cfg(feature = "test-faults")]
pub use faults::{die_at_statement, statements_of};
pub use file::{Queue, now_ms, private};
pub use finish::{DEFERRALS_MAX, Failure, Finish, Finished, Outcome, Receipt};
pub use intake::{Cut, GroupTotals, Intake, NameShard, NewSnapshot, Number, Planned, Planner, Size, SizesPass};
pub use lock::{Acquired, Lock, LockKind, real, with_suffix};
pub use releasing::Released;
pub use results::{Consumed, HeldFor, MicroshardState, PlannedShard, Refused, Snapshot, UnsyncedFailure};
pub use runner::{DEATHS_MAX, Recovery, Runner, RunnerState, SUSPECTS};
pub use service::{Claimed, Client, LEASE, Request};
pub use staging::Item;
pub use status::{GroupStatus, MicroshardCounts, ShardCounts, Waiting};
pub use step::{passed, step};
