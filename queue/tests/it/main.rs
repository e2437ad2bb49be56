//! The queue's tests: one binary, a module per behaviour.

mod claims;
mod disk;
mod disks;
mod files;
mod intake;
mod model;
mod plans;
mod recovery;
mod results;
mod service;
mod turns;
mod world;
