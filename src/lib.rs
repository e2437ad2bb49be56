//! compact-local
pub mod cli;
pub mod demo;
pub mod error;
pub mod interrupt;
pub mod manifest;
pub mod monitor;
pub mod store;
