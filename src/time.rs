//! Times as people and other programs read them.

use std::time::{Duration, UNIX_EPOCH};

/// The last of the year 9999: RFC 3339 has four digits for a year.
const LAST_MS: i64 = 253_402_300_799_999;

/// Unix milliseconds as RFC 3339, UTC; what it cannot say as its first or its last time.
pub fn rfc3339(unix_ms: i64) -> String {
    let time = UNIX_EPOCH + Duration::from_millis(unix_ms.clamp(0, LAST_MS) as u64);
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn a_time_is_told_whatever_it_is() {
        assert_eq!(rfc3339(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        for (first_or_last, shown) in [(i64::MIN, "1970-01-01T00:00:00.000Z"), (i64::MAX, "9999-12-31T23:59:59.999Z")] {
            assert_eq!(rfc3339(first_or_last), shown);
        }
        assert_eq!(rfc3339(253_402_300_800_000), rfc3339(i64::MAX));
    }
}
