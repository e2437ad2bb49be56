//! Hexadecimal, for sums.

use std::fmt::Write;

/// Lower-case hexadecimal.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

/// The bytes of a SHA-256 in hexadecimal of either case; `None` where it is none.
pub fn decode_sha256(text: &str) -> Option<[u8; 32]> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    let bytes = pairs.iter().map(|[high, low]| u8::try_from(nibble(*high)? << 4 | nibble(*low)?).ok());
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_read_as_it_is_written_and_nothing_else_is_one() {
        let sum = std::array::from_fn(|index| index as u8 * 8 + 7);
        assert_eq!(decode_sha256(&encode(&sum)), Some(sum));
        assert_eq!(decode_sha256(&encode(&sum).to_uppercase()), Some(sum));
        for odd in
            [encode(&sum[1..]), encode(&[&sum[..], &[0]].concat()), "+f".repeat(32), "é".repeat(32), " ".repeat(64)]
        {
            assert_eq!(decode_sha256(&odd), None, "{odd}");
        }
    }
}
