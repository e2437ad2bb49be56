//! compact-local
pub mod cli;
pub mod demo;
pub mod error;
pub mod interrupt;
pub mod manifest;
pub mod monitor;
pub mod store;
pub mod format;
pub mod naming;
pub mod plan;
