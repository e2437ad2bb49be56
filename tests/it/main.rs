//! The integration tests: one binary, a module per behaviour.

mod at_work;
mod bad_use;
mod cat;
mod cat_faults;
mod demo_generate;
mod demo_origin;
#[expect(dead_code, reason = "the queue's tests use all of it")]
#[path = "../../queue/tests/it/disk.rs"]
mod disk;
mod disks;
mod end_to_end;
mod faults;
mod faulty;
mod formats;
mod frames;
mod frames_run;
#[path = "../fuzz/checks/mod.rs"]
mod fuzz_checks;
mod fuzz_seeds;
mod hostile;
mod hostile_names;
mod kills;
mod listing;
mod lost_claims;
mod manifest_claim;
mod manifest_connect;
mod manifest_init;
mod manifest_pooler;
mod manifest_read;
mod manifest_sync;
mod memory;
mod microshards;
mod monitor;
mod nginx;
mod origin;
mod plan;
mod poison;
mod postgres;
mod pushback;
mod readme;
mod s3;
mod shards;
mod store_conformance;
mod store_credentials;
mod store_http;
mod store_ranges;
mod store_local;
mod store_s3;
mod store_sources;
mod store_uri;
mod supervisor;
mod tidy;
mod verify;
mod world;
