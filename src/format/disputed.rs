//! What is right by JSON's grammar and yet not the same to every reader: some refuse it, others take it for something else.

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

/// The first such thing in `row`, which is one JSON object by the grammar.
pub(super) fn find(row: &[u8]) -> Option<Disputed> {
    // Of every object that is open.
    let mut names: Vec<HashSet<String>> = Vec::new();
    let mut at = 0;
    while let Some((token, rest)) = first_token(row.get(at..)?) {
        let what = match token {
            b"{" => {
                names.push(HashSet::new());
                None
            }
            b"}" => {
                names.pop();
                None
            }
            [b'"', ..] => of_string(token, is_name(rest).then(|| names.last_mut()).flatten()),
            [b'-' | b'0'..=b'9', ..] => of_number(token),
            _ => None,
        };
        if let Some(what) = what {
            return Some(Disputed { what, at });
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

fn of_string(token: &[u8], names: Option<&mut HashSet<String>>) -> Option<String> {
    // By the grammar it is right, and its UTF-8 has been checked: nothing else can be wrong with it.
    let Ok(text) = serde_json::from_slice::<String>(token) else { return Some("a lone surrogate".to_owned()) };
    let shown: String = text.chars().take(SHOWN_MAX).collect();
    let is_new = names.is_none_or(|names| names.insert(text));
    (!is_new).then(|| format!("the key {shown:?} twice"))
}

fn of_number(token: &[u8]) -> Option<String> {
    let text = str::from_utf8(token).ok()?;
    let is_integer = !text.contains(['.', 'e', 'E']);
    if is_integer && text.parse::<i64>().is_err() && text.parse::<u64>().is_err() {
        return Some("an integer of more than 64 bits".to_owned());
    }
    let is_finite = text.parse::<f64>().is_ok_and(f64::is_finite);
    (!is_finite).then(|| "a number beyond a double".to_owned())
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
            (r#"{"a":"\\\ud800"}"#, "a lone surrogate", 5),
            (r#"{"\udc00\ud800":1}"#, "a lone surrogate", 1),
            (r#"{"a":["\ud83d\u0041"]}"#, "a lone surrogate", 6),
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
    fn a_long_name_is_shown_in_part_and_without_its_controls() {
        let name = format!("\\n{}", "x".repeat(100));
        let (what, _) = found(&format!(r#"{{"{name}":1,"{name}":2}}"#)).unwrap();
        assert_eq!(what, format!("the key \"\\n{}\" twice", "x".repeat(39)));
    }
}
