//! compact-local turns a million tiny objects into a few thousand training shards on one machine.
//!
//! ```text
//! manifest (Postgres, or a listing) --snapshot--> queue.db, planned into shards
//!                                        | claim (UPDATE ... RETURNING)   ^ finish(lease, outcome)
//!                                        v                                |
//!        lane:      memory permit -> claim -> job::run -> finish
//!                                        | fetch_all <-> fetchers x --threads   (HTTP, S3, files)
//!                                        | builders (rayon): verify, decode, check, encode
//!                                        | store.put, confirmed
//! queue.db --sync-back--> manifest (idempotent), then marked synced in queue.db
//! ```
//!
//! Every microshard ends as exactly one of: consumed by one published shard; failed, with a sentence; still pending. A
//! process killed at any moment loses nothing and doubles nothing: data, then reference, then head.
//!
//! The modules below are in the order data flows.

// What comes from outside must not end the process: where something cannot fail, the code says why.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::string_slice))]

pub mod cli;
pub mod command;
pub mod config;

pub mod manifest;
pub mod naming;
pub mod plan;

pub mod compact;
pub mod lane;
pub mod job;
pub mod fetch;
pub mod errand;
pub mod build;
pub mod isolate;
pub mod leftovers;
pub mod index;
pub mod verify;
pub mod cat;

pub mod format;
pub mod store;

pub mod budget;
pub mod memory;
pub mod park;
pub mod told;
pub mod origins;
pub mod waits;
pub mod patience;
pub mod insist;
pub mod slots;
pub mod stop;

pub mod monitor;
#[cfg_attr(not(test), expect(clippy::indexing_slicing, reason = "places in microshards of its own making"))]
pub mod demo;
pub mod error;
pub mod shown;
pub mod hint;
mod faults;
pub mod hex;
pub mod interrupt;
pub mod limits;
pub mod time;
