//! What is right by JSON's grammar and yet not the same to every reader: some refuse it, others take it for something else.

use std::borrow::Cow;
use std::collections::HashSet;

/// What of a row readers differ about.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Disputed {
    /// What is there: `the key "a" twice`.
    pub(super) what: String,
    /// Where, in bytes from the row's start.
    pub(super) at: usize,
}

/// Characters of a name that are shown.
const SHOWN_MAX: usize = 40;
/// Names in the objects that are open: more would take more memory than anybody has reckoned with.
const NAMES_MAX: usize = 1 << 16;
/// The largest power of ten of a double. With a larger one even a zero is refused by some.
const EXPONENT_MAX: i32 = 308;

/// The names in the objects that are open.
#[derive(Default)]
struct Names<'a> {
    objects: Vec<HashSet<Cow<'a, str>>>,
    count: usize,
}

impl<'a> Names<'a> {
    fn close(&mut self) {
        self.count -= self.objects.pop().map_or(0, |names| names.len());
    }

    /// What is wrong with one more name.
    fn add(&mut self, name: Cow<'a, str>) -> Option<String> {
        let object = self.objects.last_mut()?;
        if self.count >= NAMES_MAX {
            return Some(format!("more than {NAMES_MAX} keys"));
        }
        let shown: String = name.chars().take(SHOWN_MAX).collect();
        if !object.insert(name) {
            return Some(format!("the key {shown:?} twice"));
        }
        self.count += 1;
        None
    }
}

/// The first such thing in `row`, which is one JSON object by the grammar.
pub(super) fn find(row: &[u8]) -> Option<Disputed> {
    let mut names = Names::default();
    let mut at = 0;
    while let Some((token, rest)) = first_token(row.get(at..)?) {
        let found = match token {
            b"{" => {
                names.objects.push(HashSet::new());
                None
            }
            b"}" => {
                names.close();
                None
            }
            [b'"', ..] => match text_of(token) {
                None => Some(("a lone surrogate".to_owned(), lone_surrogate(token))),
                Some(text) if is_name(rest) => names.add(text).map(|what| (what, 0)),
                Some(_) => None,
            },
            [b'-' | b'0'..=b'9', ..] => of_number(token).map(|what| (what.to_owned(), 0)),
            _ => None,
        };
        if let Some((what, within)) = found {
            return Some(Disputed { what, at: at + within });
        }
        at += token.len();
    }
    None
}

/// A string or a number whole, else one byte; and what comes behind it.
fn first_token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = match text.first()? {
        b'"' => string_length(text),
        b'-' | b'0'..=b'9' => {
            let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
            text.iter().take_while(|byte| is_part(byte)).count()
        }
        _ => 1,
    };
    text.split_at_checked(length)
}

/// With both quotes.
fn string_length(text: &[u8]) -> usize {
    let mut escaped = false;
    let inside = text.iter().skip(1).take_while(|byte| {
        let goes_on = escaped || **byte != b'"';
        escaped = !escaped && **byte == b'\\';
        goes_on
    });
    2 + inside.count()
}

fn is_name(rest: &[u8]) -> bool {
    rest.trim_ascii_start().first() == Some(&b':')
}

/// What a string stands for; `None` where it has a lone surrogate: by the grammar it is right, and its UTF-8 has been
/// checked, so that nothing else can be wrong with it.
fn text_of(token: &[u8]) -> Option<Cow<'_, str>> {
    if token.contains(&b'\\') {
        return serde_json::from_slice::<String>(token).ok().map(Cow::Owned);
    }
    serde_json::from_slice::<&str>(token).ok().map(Cow::Borrowed)
}

/// The offset of the first one in such a string.
fn lone_surrogate(token: &[u8]) -> usize {
    let unit = |at: usize| {
        let digits = token.get(at..)?.strip_prefix(b"\\u")?.get(..4)?;
        u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut at = 0;
    while at < token.len() {
        at += match (unit(at), unit(at + 6)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
            (Some(0xD800..=0xDFFF), _) => return at,
            _ if token.get(at) == Some(&b'\\') => 2,
            _ => 1,
        };
    }
    0
}

fn of_number(token: &[u8]) -> Option<&'static str> {
    let text = str::from_utf8(token).ok()?;
    let is_integer = !text.contains(['.', 'e', 'E']);
    if is_integer && text.parse::<i64>().is_err() && text.parse::<u64>().is_err() {
        return Some("an integer of more than 64 bits");
    }
    let exponent = text.split_once(['e', 'E']).map_or(Ok(0), |(_, exponent)| exponent.parse());
    let is_double =
        text.parse::<f64>().is_ok_and(f64::is_finite) && exponent.is_ok_and(|power: i32| power <= EXPONENT_MAX);
    (!is_double).then_some("a number beyond a double")
}

#[cfg(test)]
mod tests {
    use super::find;

    fn found(row: &str) -> Option<(String, usize)> {
        find(row.as_bytes()).map(|disputed| (disputed.what, disputed.at))
    }

    #[test]
    fn what_readers_differ_about_is_found_at_its_place() {
        for (row, what, at) in [
            (r#"{"a":1,"a":2}"#, r#"the key "a" twice"#, 7),
            (r#"{"a":1, "\u0061" : 2}"#, r#"the key "a" twice"#, 8),
            (r#"{"b":{"c":1},"d":[{"e":1,"e":2}]}"#, r#"the key "e" twice"#, 25),
            (r#"{"a":{"a":{}},"a":1}"#, r#"the key "a" twice"#, 14),
            (r#"{"a":"\\\ud800"}"#, "a lone surrogate", 8),
            (r#"{"\udc00\ud800":1}"#, "a lone surrogate", 2),
            (r#"{"a":["\ud83d\ude00é\ud83d\u0041"]}"#, "a lone surrogate", 21),
            (r#"{"a":-0.0e309}"#, "a number beyond a double", 5),
            (r#"{"a":1e-99999999999999999999}"#, "a number beyond a double", 5),
            (r#"{"a":1e400}"#, "a number beyond a double", 5),
            (r#"{"a":[0,-1.5E+309]}"#, "a number beyond a double", 8),
            (r#"{"a":18446744073709551616}"#, "an integer of more than 64 bits", 5),
            (r#"{"a":-9223372036854775809}"#, "an integer of more than 64 bits", 5),
        ] {
            assert_eq!(found(row), Some((what.to_owned(), at)), "{row}");
        }
    }

    #[test]
    fn what_all_readers_take_alike_is_not_disputed() {
        for row in [
            "{}",
            r#"{"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}],"c":"a","d":["d","d"]}"#,
            r#"{"a":"\ud83d\ude00 \\ud800 \"a\": \u0000 é","\"":1,"\\":2}"#,
            r#"{"a":18446744073709551615,"b":-9223372036854775808,"c":-0,"d":1e-400,"e":1.7976931348623157e308,"f":1e5}"#,
            r#"{"a":123456789012345678901234567890.5}"#,
        ] {
            assert_eq!(found(row), None, "{row}");
        }
    }

    #[test]
    fn as_many_names_as_memory_was_reckoned_for_are_taken_and_those_of_a_closed_object_do_not_count() {
        let object = |names: usize| {
            let names: Vec<String> = (0..names).map(|name| format!("\"{name}\":0")).collect();
            format!("{{{}}}", names.join(","))
        };
        assert_eq!(found(&object(1 << 16)), None);
        assert_eq!(found(&format!("{{\"a\":{},\"b\":{}}}", object(40_000), object(40_000))), None);
        let (what, _) = found(&object((1 << 16) + 1)).unwrap();
        assert_eq!(what, "more than 65536 keys");
        let (what, _) = found(&format!("{{\"a\":{}}}", object(1 << 16))).unwrap();
        assert_eq!(what, "more than 65536 keys");
    }

    #[test]
    fn a_long_name_is_shown_in_part_and_without_its_controls() {
        let name = format!("\\n{}", "x".repeat(100));
        let (what, _) = found(&format!(r#"{{"{name}":1,"{name}":2}}"#)).unwrap();
        assert_eq!(what, format!("the key \"\\n{}\" twice", "x".repeat(39)));
    }
}
