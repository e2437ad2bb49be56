//! compact-local
pub mod cli;

pub mod error;
pub mod manifest;
pub mod store;
