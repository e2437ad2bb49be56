//! A loopback origin.
