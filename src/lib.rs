//! compact-local
pub mod cli;
pub mod demo;
pub mod error;
pub mod manifest;
pub mod store;
