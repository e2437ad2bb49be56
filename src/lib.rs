//! compact-local
pub mod cli;

pub mod error;
pub mod manifest;
pub mod store;
pub mod format;
pub mod naming;
pub mod plan;
