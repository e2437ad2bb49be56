//! The integration tests: one binary, a module per behaviour.

mod origin;
mod s3;
mod store_conformance;
mod store_credentials;
mod store_http;
mod store_local;
mod store_s3;
mod store_sources;
mod store_uri;
