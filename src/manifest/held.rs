//! What the queue keeps of where a snapshot came from: what `sync-back` and `release` need, and no secret.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Claim;

/// Where a snapshot came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Held {
    /// A listing; nothing is held there.
    Listing {
        /// Its path.
        listing: String,
    },
    /// Postgres.
    Postgres {
        /// How the microshards are held.
        claim: Claim,
        /// Which server, without a password.
        server: String,
    },
}

impl Held {
    /// Reads the queue's record.
    pub fn parse(text: &str) -> Result<Held> {
        serde_json::from_str(text).context("the queue's record of its manifest cannot be read")
    }
}
