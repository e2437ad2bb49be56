//! The integration tests: one binary, a module per behaviour.
