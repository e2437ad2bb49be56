//! The integration tests: one binary, a module per behaviour.

mod postgres;
mod supervisor;

mod manifest_claim;
mod manifest_connect;
mod manifest_init;
mod manifest_pooler;
mod manifest_read;
mod manifest_sync;
