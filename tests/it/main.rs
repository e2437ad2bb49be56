//! The integration tests: one binary, a module per behaviour.

mod demo_generate;
mod demo_origin;
mod faults;
mod formats;
mod interrupt;
mod listing;
mod monitor;
mod origin;
mod plan;
mod s3;
mod store_conformance;
mod store_credentials;
mod store_http;
mod store_local;
mod store_s3;
mod store_sources;
mod store_uri;
