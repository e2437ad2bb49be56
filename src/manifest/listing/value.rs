//! The text of a field to its value. Pure. An error is what follows the quoted field: "is not an integer".

use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::hex::decode_sha256;

/// A value, or why the text is none.
pub(super) type Parsed<T> = Result<T, String>;

/// A microshard's id.
pub(super) fn id(text: &str) -> Parsed<i64> {
    integer(text)
}

/// A number of rows or bytes.
pub(super) fn count<T: FromStr>(text: &str) -> Parsed<T> {
    match text.trim().strip_prefix('-') {
        Some(digits) if is_integer(digits) => Err("is negative".into()),
        _ => integer(text),
    }
}

fn integer<T: FromStr>(text: &str) -> Parsed<T> {
    let text = text.trim();
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !is_integer(digits) {
        return Err("is not an integer".into());
    }
    text.parse().map_err(|_| "is out of range".into())
}

fn is_integer(digits: &str) -> bool {
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// 64 hexadecimal digits, also as Postgres exports a bytea: `\x...`.
pub(super) fn sha256(text: &str) -> Parsed<[u8; 32]> {
    let text = text.trim();
    let digits = text.strip_prefix("\\x").unwrap_or(text);
    decode_sha256(digits).ok_or_else(|| "is no SHA-256: 64 hexadecimal digits are expected".to_owned())
}

/// Unix time in microseconds: from RFC 3339, from Postgres's `2026-01-05 08:00:00.5+00`, from a date and time without an
/// offset (taken as UTC), or from an integer of seconds, milliseconds or microseconds, told apart by its size: as
/// seconds, 1e11 would be the year 5138.
pub(super) fn timestamp_us(text: &str) -> Parsed<i64> {
    let text = text.trim();
    if is_integer(text.strip_prefix('-').unwrap_or(text)) {
        let number: i64 = integer(text)?;
        let factor = match number.unsigned_abs() {
            0..100_000_000_000 => 1_000_000,
            100_000_000_000..100_000_000_000_000 => 1_000,
            _ => 1,
        };
        return Ok(number * factor);
    }
    let timestamp = text.parse::<Timestamp>().or_else(|_| {
        let local: DateTime = text.parse()?;
        TimeZone::UTC.to_timestamp(local)
    });
    timestamp.map(Timestamp::as_microsecond).map_err(|_: jiff::Error| {
        "is no time: RFC 3339 (2026-01-05T08:00:00Z), 2026-01-05 08:00:00+00 or a unix time is expected".into()
    })
}

/// The field as a message shows it: quoted, without control characters, not too long.
pub(super) fn quoted(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let shown: String = text.chars().take(CHARS_MAX).collect();
    let more = if shown.len() < text.len() { "..." } else { "" };
    format!("{:?}", shown + more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_one_moment_is_the_same_moment() {
        const MOMENT_US: i64 = 1_767_600_000_000_000;
        for text in [
            "2026-01-05T08:00:00Z",
            "2026-01-05T08:00:00+00:00",
            "2026-01-05T10:30:00+02:30",
            "2026-01-05 08:00:00+00",
            "2026-01-05 03:00:00-05",
            "2026-01-05 13:30:00.000000+05:30",
            "2026-01-05 08:00:00",
            "2026-01-05T08:00:00",
            "1767600000",
            "1767600000000",
            "1767600000000000",
        ] {
            assert_eq!(timestamp_us(text), Ok(MOMENT_US), "{text}");
        }
        assert_eq!(timestamp_us("2026-01-05 08:00:00.25+00"), Ok(MOMENT_US + 250_000));
        assert_eq!(timestamp_us("2026-01-05 08:00:00.123456"), Ok(MOMENT_US + 123_456));
        assert_eq!(timestamp_us("-1"), Ok(-1_000_000));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["yesterday", "2026-13-01T00:00:00Z", "08:00:00", "12.5", "99999999999999999999", "-"] {
            assert!(timestamp_us(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_sha256_is_64_hexadecimal_digits_in_either_case() {
        let lower = "00ff".repeat(16);
        assert_eq!(sha256(&lower), sha256(&format!("\\x{}", lower.to_uppercase())));
        assert_eq!(sha256(&lower).map(|sum| sum[..2].to_vec()), Ok(vec![0, 255]));
        for text in ["", "00", &"0".repeat(63), &"g".repeat(64), &"é".repeat(32), &format!("0x{lower}")] {
            assert!(sha256(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_count_says_what_is_wrong_with_it() {
        assert_eq!(count::<u32>(" 70 "), Ok(70));
        assert_eq!(count::<u32>("-7"), Err("is negative".into()));
        assert_eq!(count::<u32>("4294967296"), Err("is out of range".into()));
        for text in ["7.0", "1e3", "+7", "", "seven", "--7", "٣"] {
            assert_eq!(count::<u32>(text), Err("is not an integer".into()), "{text}");
        }
    }
}
