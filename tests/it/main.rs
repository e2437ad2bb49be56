//! The integration tests: one binary, a module per behaviour.

mod demo_generate;
mod demo_origin;
mod formats;
mod interrupt;
mod listing;
mod monitor;
mod plan;
