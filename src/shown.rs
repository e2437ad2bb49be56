//! Uris, and what was typed for one, as they may be shown: without logins, queries and control characters. Where a mistyped
//! one does not tell how far its password goes, nothing of it is shown.

use std::borrow::Cow;
use std::net::Ipv4Addr;

/// Stands for what cannot be shown.
pub const HIDDEN: &str = "(not shown: it may hold a password)";

/// A uri fit for a message: without userinfo, query and control characters.
pub fn shown_uri(uri: &str) -> String {
    let text = match split_scheme(uri) {
        Some((scheme, rest)) => match place(scheme, rest) {
            Some(place) => format!("{scheme}://{place}"),
            None => format!("{scheme}://{HIDDEN}"),
        },
        // A path of this machine: a `?` is literal there, so what follows it must be seen.
        None if uri.starts_with('/') && !uri.starts_with("//") => uri.to_owned(),
        None if may_hold_login(uri) => HIDDEN.to_owned(),
        None if uri.starts_with('/') => uri.to_owned(),
        None => uri.split('?').next().unwrap_or_default().to_owned(),
    };
    one_line(&text).into_owned()
}

/// Whether there may be a login in it, `me:password@`, whatever is wrong around it.
pub fn may_hold_login(text: &str) -> bool {
    text.split_once(':').is_some_and(|(_, rest)| rest.contains('@'))
}

/// Only what is a scheme: the `://` of a mistyped text may come behind its password, or in its query.
fn split_scheme(uri: &str) -> Option<(&str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    uri.split_once("://").filter(|(scheme, _)| !scheme.is_empty() && scheme.chars().all(is_part))
}

/// Where an object is; nothing where that cannot be told from a login.
fn place(scheme: &str, rest: &str) -> Option<String> {
    let ends: &[char] = if matches!(scheme, "s3" | "file") { &['/'] } else { &['/', '?', '#'] };
    let (authority, path) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
    let login = authority.rsplit_once('@');
    // A password with a `/` in it, or a `?`, goes on behind what looks like the authority.
    if path.contains('@') && (login.is_some() || may_be_login(authority, path)) {
        return None;
    }
    if login.is_none() && matches!(scheme, "s3" | "file") {
        // Keys and paths are literal.
        return Some(rest.to_owned());
    }
    let host = login.map_or(authority, |(_, host)| host);
    Some(format!("{host}{}", path.split(['?', '#']).next().unwrap_or_default()))
}

/// `me:us` of `me:us/cret@host/x` has no port; where it has one, what follows the `@` may still be an address. Names of
/// objects have an `@` too: `host:80/a@b.jsonl`.
fn may_be_login(authority: &str, path: &str) -> bool {
    let Some((_, port)) = authority.rsplit_once(':') else { return false };
    if authority.ends_with(']') {
        return false;
    }
    let behind = path.rsplit('@').next().and_then(|behind| behind.split('/').next()).unwrap_or_default();
    let has_port = behind.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    port.parse::<u16>().is_err() || has_port || behind.parse::<Ipv4Addr>().is_ok()
}

/// The text without control characters: they could move the cursor, clear the screen or fake another line.
pub fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escaped =
        text.chars().map(|char| if char.is_control() { char.escape_default().to_string() } else { char.into() });
    Cow::Owned(escaped.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_uri_are_not_shown() {
        let uri = "https://me:pw@h.example:8080/a/b.jsonl?X-Amz-Signature=s3cret#x";
        assert_eq!(shown_uri(uri), "https://h.example:8080/a/b.jsonl");
        assert_eq!(shown_uri("https://h?sig=s@x/y"), "https://h");
        assert_eq!(shown_uri("https://h:80/a?sig=s@x/y"), "https://h:80/a");
        assert_eq!(shown_uri("s3://me:pw@bucket/a"), "s3://bucket/a");
        assert_eq!(shown_uri("s3://me:pw@bucket/a?X=Q"), "s3://bucket/a");
        assert_eq!(shown_uri("a/b\n?sig=s"), "a/b\\n");
        assert_eq!(shown_uri("a?sig=s&to=http://h/"), "a");
    }

    #[test]
    fn a_login_that_is_not_where_it_belongs_hides_all() {
        for uri in [
            "http://me:SE/CRET@127.0.0.1:8161/x",
            "http://me:SE?CRET@h/x",
            "http://me:SE#CRET@h/x?sig=SECRET@x",
            "http://me:12/CRET@127.0.0.1:8161/x",
            "http://me:12/CRET@127.0.0.1/x",
            "http://me:99999/CRET@h/x",
            "http://me:S@E/CRET@h/x",
            "https://me:/CRET@h/x",
            "s3://me:SE/CRET@b/a",
            "file://me:SE/CRET@h/x",
            "http:/me:SECRET@h/x",
            "http//me:SECRET@h/x",
            "//me:SECRET@h/x",
            "me:SECRET@h/x",
            "me:SECRET@http://h/x",
        ] {
            let shown = shown_uri(uri);
            assert!(shown.ends_with(HIDDEN) && !shown.contains("CRET") && !shown.contains("SE"), "{uri}: {shown}");
            assert_eq!(shown_uri(&shown), shown);
        }
    }

    #[test]
    fn names_stay_as_they_are() {
        for uri in [
            "http://h/a@b.jsonl",
            "http://h:8080/a@b.jsonl",
            "http://[::1]/a@b.jsonl",
            "http://[::1]:80/a@b:c.jsonl",
            "http://127.0.0.1:8080/image@sha256:0a/b.jsonl",
            "s3://bucket/a@b",
            "s3://bucket/a@b?c#d",
            "file:///in/a@b?c",
            "en/a@b.jsonl",
            "en/12:30.jsonl",
            "/in/12:30/a@b.jsonl",
            "//in/a@b.jsonl",
        ] {
            assert_eq!(shown_uri(uri), uri);
        }
        assert_eq!(shown_uri("/in/a?b://c?d#\u{1b}"), "/in/a?b://c?d#\\u{1b}");
    }

    #[test]
    fn control_characters_are_not_printed() {
        assert_eq!(one_line("a\n\u{1b}[2Jb"), "a\\n\\u{1b}[2Jb");
    }
}
