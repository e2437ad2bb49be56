//! The integration tests: one binary, a module per behaviour.

mod demo_generate;
mod demo_origin;
mod faults;
mod formats;
mod interrupt;
mod listing;
mod manifest_claim;
mod manifest_connect;
mod manifest_init;
mod manifest_pooler;
mod manifest_read;
mod manifest_sync;
mod monitor;
mod origin;
mod plan;
mod postgres;
mod s3;
mod store_conformance;
mod store_credentials;
mod store_http;
mod store_local;
mod store_s3;
mod store_sources;
mod store_uri;
mod supervisor;
