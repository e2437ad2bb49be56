//! Times as people and other programs read them.

use std::time::{Duration, UNIX_EPOCH};

/// Unix milliseconds as RFC 3339, UTC.
pub fn rfc3339(unix_ms: i64) -> String {
    let time = UNIX_EPOCH + Duration::from_millis(unix_ms.max(0) as u64);
    humantime::format_rfc3339_millis(time).to_string()
}
