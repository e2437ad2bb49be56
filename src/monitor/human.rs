//! Numbers and texts as people read them. Pure. Whatever came from outside passes `shown_uri` or `one_line` before it is
//! printed: no secret of a URL and no control character reaches a terminal.

use std::time::Duration;

/// `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `950 B`, `12.3 kB`, `1.20 GB`: powers of 1000, three digits.
pub fn bytes(bytes: u64) -> String {
    bytes_of(bytes as f64)
}

/// `31.2 MB/s`.
pub fn bytes_per_s(rate: f64) -> String {
    format!("{}/s", bytes_of(rate))
}

fn bytes_of(bytes: f64) -> String {
    if bytes < 999.5 {
        return format!("{bytes:.0} B");
    }
    let mut value = bytes / 1000.0;
    for unit in ["kB", "MB", "GB", "TB"] {
        if value < 999.5 {
            return format!("{} {unit}", three_digits(value));
        }
        value /= 1000.0;
    }
    format!("{} PB", three_digits(value))
}

/// `2,140/s`, `3.25/s`.
pub fn per_s(rate: f64) -> String {
    if rate < 999.5 { format!("{}/s", three_digits(rate)) } else { format!("{}/s", count(rate.round() as u64)) }
}

fn three_digits(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// `12.3 %`; 100 only when all is done.
pub fn percent(done: u64, all: u64) -> String {
    if done >= all {
        return "100 %".into();
    }
    let tenths = u128::from(done) * 1000 / u128::from(all);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// `45 s`, `5 min 59 s`, `2 h 05 min`, `3 d 04 h`.
pub fn duration(duration: Duration) -> String {
    let s = (duration.as_secs_f64()).round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {:02} h", s / 86_400, s % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well_at_every_size() {
        assert_eq!(
            [0, 999, 1000, 876_000, u64::MAX].map(count),
            ["0", "999", "1,000", "876,000", "18,446,744,073,709,551,615"]
        );
        assert_eq!(
            [0, 999, 1000, 12_345, 999_499, 999_500].map(bytes),
            ["0 B", "999 B", "1.00 kB", "12.3 kB", "999 kB", "1.00 MB"]
        );
        assert_eq!(bytes(u64::MAX), "18447 PB");
        assert_eq!([0.0, 0.014, 9.996, 99.96, 2140.4].map(per_s), ["0/s", "0.01/s", "10.0/s", "100/s", "2,140/s"]);
        assert_eq!(bytes_per_s(31_249_999.0), "31.2 MB/s");
    }

    #[test]
    fn a_hundred_per_cent_is_said_only_when_all_is_done() {
        assert_eq!(percent(0, 3), "0.0 %");
        assert_eq!(percent(999_999, 1_000_000), "99.9 %");
        assert_eq!([percent(3, 3), percent(0, 0)], ["100 %", "100 %"]);
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let of = |s: f64| duration(Duration::from_secs_f64(s));
        assert_eq!([of(0.4), of(59.4), of(59.6), of(359.0)], ["0 s", "59 s", "1 min 00 s", "5 min 59 s"]);
        assert_eq!([of(7500.0), of(273_600.0)], ["2 h 05 min", "3 d 04 h"]);
    }
}
