//! Whether a row is one JSON object that every reader takes for the same, told quickly. Only a yes counts: what is not
//! accepted here is judged, and explained, by a full parser. Strings are taken to be UTF-8.

/// Objects and arrays nested deeper than this break readers: duckdb takes no more. `Nesting` has as many bits.
pub(super) const DEPTH_MAX: u32 = u128::BITS - 1;
/// Names of one object that are compared here.
const NAMES_MAX: usize = 64;
/// A number of so many digits, and a power of ten of so many, is certainly an integer of 64 bits or a finite double.
const DIGITS_MAX: usize = 18;
const EXPONENT_DIGITS_MAX: usize = 2;

/// Tells it of one row after another; keeps its buffers between them.
#[derive(Default)]
pub(super) struct Checker(Names);

impl Checker {
    /// Whether `row` is certainly one such object, not nested too deep, with nothing but white space around it.
    pub(super) fn accepts(&mut self, row: &[u8]) -> bool {
        self.0.marks.clear();
        self.0.starts.clear();
        let mut rest = Rest { bytes: row, names: &mut self.0 };
        rest.skip_space();
        rest.bytes.first() == Some(&b'{') && rest.value().is_some() && rest.bytes.is_empty()
    }
}

/// What is not read yet. Methods return `None` where it is not what they are for.
struct Rest<'a> {
    bytes: &'a [u8],
    names: &'a mut Names,
}

/// The names in the objects that are open, as marks.
#[derive(Default)]
struct Names {
    marks: Vec<u64>,
    /// Where those of each object begin.
    starts: Vec<usize>,
}

impl Names {
    fn open(&mut self) {
        self.starts.push(self.marks.len());
    }

    fn close(&mut self) {
        self.marks.truncate(self.starts.pop().unwrap_or(0));
    }

    /// `None` where it may be there already.
    fn add(&mut self, name: &[u8]) -> Option<()> {
        let mark = mark(name);
        let others = self.marks.get(*self.starts.last()?..)?;
        if others.len() == NAMES_MAX || others.contains(&mark) {
            return None;
        }
        self.marks.push(mark);
        Some(())
    }
}

/// The same for the same name, seldom for another: its length and its ends.
fn mark(name: &[u8]) -> u64 {
    let of_8 =
        || Some(u64::from_le_bytes(*name.first_chunk()?) ^ u64::from_le_bytes(*name.last_chunk()?).rotate_left(31));
    let of_4 = || {
        let (first, last) = (u32::from_le_bytes(*name.first_chunk()?), u32::from_le_bytes(*name.last_chunk()?));
        Some(u64::from(first) | u64::from(last) << 24)
    };
    let of_each = || name.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    of_8().or_else(of_4).unwrap_or_else(of_each) ^ (name.len() as u64) << 56
}

/// Which brackets are open, the innermost in the lowest bit: 1 for an object.
#[derive(Default)]
struct Nesting {
    objects: u128,
    depth: u32,
}

impl Nesting {
    fn open(&mut self, object: bool) -> Option<()> {
        self.objects = (self.objects << 1) | u128::from(object);
        self.depth += 1;
        (self.depth <= DEPTH_MAX).then_some(())
    }

    fn close(&mut self, object: bool) -> Option<()> {
        let matches = self.in_object() == object;
        self.objects >>= 1;
        self.depth = self.depth.checked_sub(1)?;
        matches.then_some(())
    }

    fn in_object(&self) -> bool {
        self.objects & 1 == 1
    }
}

impl Rest<'_> {
    /// A value and the white space around it.
    fn value(&mut self) -> Option<()> {
        let mut nesting = Nesting::default();
        loop {
            self.skip_space();
            let opened = match self.bytes.first()? {
                b'{' => Some(true),
                b'[' => Some(false),
                _ => None,
            };
            match opened {
                Some(object) => {
                    self.take(1)?;
                    nesting.open(object)?;
                    if object {
                        self.names.open();
                    }
                    self.skip_space();
                    if self.bytes.first() != Some(if object { &b'}' } else { &b']' }) {
                        if object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                None => self.scalar()?,
            }
            if self.after_value(&mut nesting)? {
                return Some(());
            }
        }
    }

    /// Closes brackets up to the next comma; `true` where the outermost value has ended.
    fn after_value(&mut self, nesting: &mut Nesting) -> Option<bool> {
        loop {
            self.skip_space();
            if nesting.depth == 0 {
                return Some(true);
            }
            match self.byte()? {
                b',' if nesting.in_object() => {
                    self.skip_space();
                    self.key()?;
                    return Some(false);
                }
                b',' => return Some(false),
                b'}' => {
                    self.names.close();
                    nesting.close(true)?;
                }
                b']' => nesting.close(false)?,
                _ => return None,
            }
        }
    }

    fn key(&mut self) -> Option<()> {
        self.word(b"\"")?;
        let name = self.bytes.split_off(..plain(self.bytes))?;
        // One with an escape could be spelt otherwise.
        self.word(b"\"")?;
        self.names.add(name)?;
        self.skip_space();
        (self.byte()? == b':').then_some(())
    }

    fn scalar(&mut self) -> Option<()> {
        match self.bytes.first()? {
            b'"' => self.string(),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number(),
        }
    }

    fn string(&mut self) -> Option<()> {
        if self.byte()? != b'"' {
            return None;
        }
        loop {
            self.take(plain(self.bytes))?;
            match self.byte()? {
                b'"' => return Some(()),
                b'\\' => self.escape()?,
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        match self.byte()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => match self.unit()? {
                0xD800..=0xDBFF => {
                    self.word(b"\\u")?;
                    (0xDC00..=0xDFFF).contains(&self.unit()?).then_some(())
                }
                0xDC00..=0xDFFF => None,
                _ => Some(()),
            },
            _ => None,
        }
    }

    /// The four digits of a UTF-16 code unit.
    fn unit(&mut self) -> Option<u32> {
        self.take(4)?.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)?))
    }

    fn number(&mut self) -> Option<()> {
        let is_negative = self.bytes.first() == Some(&b'-');
        if is_negative {
            self.take(1)?;
        }
        let before = self.bytes;
        match self.byte()? {
            b'0' => {}
            b'1'..=b'9' => {
                let digits = before.get(..1 + self.skip_digits())?;
                if digits.len() > DIGITS_MAX && (is_negative || !fits_64_bits(digits)) {
                    return None;
                }
            }
            _ => return None,
        }
        if self.bytes.first() == Some(&b'.') {
            self.take(1)?;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.bytes.first() {
            self.take(1)?;
            if let Some(b'+' | b'-') = self.bytes.first() {
                self.take(1)?;
            }
            if self.digits()? > EXPONENT_DIGITS_MAX {
                return None;
            }
        }
        Some(())
    }

    /// One digit or more; how many.
    fn digits(&mut self) -> Option<usize> {
        self.byte()?.is_ascii_digit().then(|| 1 + self.skip_digits())
    }

    /// How many there were.
    fn skip_digits(&mut self) -> usize {
        let before = self.bytes.len();
        while let [b'0'..=b'9', rest @ ..] = self.bytes {
            self.bytes = rest;
        }
        before - self.bytes.len()
    }

    fn skip_space(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.bytes {
            self.bytes = rest;
        }
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.bytes = self.bytes.strip_prefix(word)?;
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes.split_off_first().copied()
    }

    fn take(&mut self, count: usize) -> Option<&[u8]> {
        self.bytes.split_off(..count)
    }
}

fn fits_64_bits(digits: &[u8]) -> bool {
    digits.iter().try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))).is_some()
}

/// How many bytes from the start need no attention in a string: no quote, no backslash, no control character. Eight at a
/// time; the lowest byte that is marked is always marked rightly.
fn plain(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word & (ONES << 7);
    let equal = |word: u64, byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (index, chunk) in chunks.iter().enumerate() {
        let word = u64::from_le_bytes(*chunk);
        let marked = below(word, b' ') | equal(word, b'"') | equal(word, b'\\');
        if marked != 0 {
            return index * 8 + marked.trailing_zeros() as usize / 8;
        }
    }
    let stop = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' '));
    bytes.len() - rest.len() + stop.unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::Checker;
    use crate::format::disputed;

    /// By other code: grammar, then what readers differ about.
    fn is_object_to_all(row: &[u8]) -> bool {
        parses(row) && disputed::find(row).is_none()
    }

    fn is_object(row: &[u8]) -> bool {
        Checker::default().accepts(row)
    }

    fn parses(row: &[u8]) -> bool {
        row.trim_ascii_start().starts_with(b"{") && serde_json::from_slice::<serde::de::IgnoredAny>(row).is_ok()
    }

    #[test]
    fn what_json_is_is_told_at_once() {
        let deepest = format!("{}1{}", "{\"a\":".repeat(127), "}".repeat(127));
        for row in [
            r#"{}"#,
            r#" { "a" : [ ] , "b" : { } } "#,
            r#"{"a":[1,-0,0.5,1e9,-12.50E+3,true,false,null,"",[[{}]]],"b":"\u00e9\"\\\/\b\f\n\r\t é 日本語"}"#,
            r#"{"a":"a long text, longer than eight bytes, with \"quotes\" and nothing else"}"#,
            deepest.as_str(),
        ] {
            assert!(is_object(row.as_bytes()), "{row}");
        }
    }

    #[test]
    fn what_readers_may_differ_about_is_never_accepted() {
        for row in [
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"a":[{"longer_than_eight":1,"longer_than_eight":2}]}"#,
            r#"{"a":{"b":{}},"a":1}"#,
            r#"{"a":"\ud800"}"#,
            r#"{"a":"\udc00\ud800"}"#,
            r#"{"a":"\uD800\n"}"#,
            r#"{"a":"\ud83d\u0041"}"#,
            r#"{"a":1e400}"#,
            r#"{"a":184467440737095516160}"#,
            r#"{"a":18446744073709551616}"#,
            r#"{"a":-9223372036854775809}"#,
        ] {
            assert!(!is_object(row.as_bytes()), "{row}");
        }
    }

    #[test]
    fn what_is_long_deep_or_there_in_another_object_is_accepted_at_once() {
        for row in [
            r#"{"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}],"c":1}"#,
            r#"{"longest":18446744073709551615,"least":-999999999999999999,"e":1.5e-99}"#,
            r#"{"start":1,"stars":2,"a_long_name_1":3,"a_long_name_2":4,"":5,"0":6}"#,
        ] {
            assert!(is_object(row.as_bytes()), "{row}");
        }
    }

    #[test]
    fn what_is_no_json_or_too_deep_is_never_accepted() {
        let too_deep = format!("{}1{}", "{\"a\":".repeat(128), "}".repeat(128));
        for row in [
            "",
            " ",
            "[]",
            "1",
            "{",
            "}",
            "{}}",
            "{}{}",
            "{]",
            "[}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{,}",
            "{\"a\":[1,]}",
            "{\"a\":[,1]}",
            "{\"a\":01}",
            "{\"a\":1.}",
            "{\"a\":.5}",
            "{\"a\":+1}",
            "{\"a\":1e}",
            "{\"a\":-}",
            "{\"a\":tru}",
            "{\"a\":NaN}",
            "{\"a\":'b'}",
            "{a:1}",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\u12g4\"}",
            "{\"a\":\"\t\"}",
            "{\"a\":\"b}",
            "{\"a\":1 2}",
            "{\"a\" 1}",
            "{1:1}",
            "{\"a\":[1}",
            "{\"a\":{\"b\":1]}",
            "{\"a\":\"1234567\n\"}",
            too_deep.as_str(),
        ] {
            assert!(!is_object(row.as_bytes()), "{row}");
        }
    }

    #[test]
    fn whatever_is_done_to_a_row_nothing_is_accepted_that_is_not_right_to_all_and_little_else_is_refused() {
        let row = r#"{"id":"s-1","start":0.81,"end":-4.9e-1,"ok":[true,{"id":1,"ie":{}}],"text":"a \"b\" \ud83d\ude00 é","t":[1,20,[]]}"#;
        let mut random = fastrand::Rng::with_seed(11);
        let alphabet = b"{}[]\",:\\u0019eEdi+-. tfn\x00\x1f\xc3";
        let (mut accepted, mut right) = (0, 0);
        for _ in 0..300_000 {
            let mut row = row.as_bytes().to_vec();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..row.len());
                match random.u8(..4) {
                    0 => drop(row.remove(at)),
                    1 => row.insert(at, alphabet[random.usize(..alphabet.len())]),
                    2 => row[at] = alphabet[random.usize(..alphabet.len())],
                    _ => row.swap(at, random.usize(..at + 1)),
                }
            }
            // The text around it is UTF-8, or is refused before.
            if std::str::from_utf8(&row).is_err() {
                continue;
            }
            let (quick, full) = (is_object(&row), is_object_to_all(&row));
            assert!(full || !quick, "{}", String::from_utf8_lossy(&row));
            accepted += u32::from(quick);
            right += u32::from(full);
        }
        assert!(accepted > 10_000 && accepted * 100 >= right * 99, "{accepted} of {right}");
    }
}
