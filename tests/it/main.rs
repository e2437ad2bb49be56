//! The integration tests: one binary, a module per behaviour.

mod demo_generate;
mod demo_origin;
mod interrupt;
mod listing;
mod monitor;
