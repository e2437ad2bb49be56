//! Connection settings as they are typed: `postgres://user@host:port/db?key=value`, or `key=value key='va lue'`.
//! Pure: text to a map of libpq's keys. A password may be in the text, so an error never repeats any of it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use percent_encoding::percent_decode_str;

/// libpq's keys and their values.
pub(super) type Settings = BTreeMap<String, String>;

/// Whether this is a URL of Postgres.
pub(super) fn is_url(text: &str) -> bool {
    text.starts_with("postgres://") || text.starts_with("postgresql://")
}

/// Parses either form.
pub(super) fn parse(text: &str) -> Result<Settings> {
    match text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://")) {
        Some(rest) => parse_url(rest),
        None => parse_pairs(text),
    }
}

fn parse_url(rest: &str) -> Result<Settings> {
    let mut settings = Settings::new();
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    // Else it is the end of a password, and would be shown as the database's name.
    ensure!(
        !database.contains('@'),
        "the URL's `@` comes behind a `/`: write postgres://user@host/db, with a `/`, `?`, `#` or `@` of the password or \
         the database's name percent-encoded"
    );
    // The last `@`: a password that was not percent-encoded may hold one.
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (Some(login), hosts),
        None => (None, authority),
    };
    if let Some(login) = login {
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        put_decoded(&mut settings, "user", user)?;
        put_decoded(&mut settings, "password", password)?;
    }
    let (hosts, ports) = split_hosts(hosts)?;
    put_decoded(&mut settings, "host", &hosts)?;
    put_decoded(&mut settings, "port", &ports)?;
    put_decoded(&mut settings, "dbname", database)?;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').context("the URL's query holds a key without a value")?;
        put_decoded(&mut settings, key, value)?;
    }
    Ok(settings)
}

/// `a:1,[::1]:2` to `a,::1` and `1,2`.
fn split_hosts(text: &str) -> Result<(String, String)> {
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for one in text.split(',') {
        let (host, port) = match one.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').context("the URL's host opens a `[` and does not close it")?;
                (host, port.strip_prefix(':').unwrap_or(port))
            }
            None => one.split_once(':').unwrap_or((one, "")),
        };
        ensure!(
            port.chars().all(|c| c.is_ascii_digit()),
            "the URL's port is no number; a `:`, `/`, `?`, `#` or `@` in the password must be percent-encoded"
        );
        hosts.push(host);
        ports.push(port);
    }
    let ports = if ports.iter().all(|port| port.is_empty()) { String::new() } else { ports.join(",") };
    Ok((hosts.join(","), ports))
}

fn put_decoded(settings: &mut Settings, key: &str, value: &str) -> Result<()> {
    if !value.is_empty() {
        let value = percent_decode_str(value).decode_utf8().with_context(|| format!("the URL's {key} is not UTF-8"))?;
        settings.insert(key.to_owned(), value.into_owned());
    }
    Ok(())
}

fn parse_pairs(text: &str) -> Result<Settings> {
    let mut settings = Settings::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=').context("a setting without `=` in the connection string")?;
        let key = key.trim();
        ensure!(key.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "a setting's name is not lower case letters");
        let (value, after) = take_value(after.trim_start())?;
        settings.insert(key.to_owned(), value);
        rest = after.trim_start();
    }
    Ok(settings)
}

/// One value, plain or quoted, and what is left behind it.
fn take_value(text: &str) -> Result<(String, &str)> {
    let (quoted, body) = text.strip_prefix('\'').map_or((false, text), |body| (true, body));
    let mut value = String::new();
    let mut chars = body.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => value.extend(chars.next()),
            '\'' if quoted => return Ok((value, chars.as_str())),
            c if !quoted && c.is_whitespace() => return Ok((value, chars.as_str())),
            c => value.push(c),
        }
    }
    if quoted {
        bail!("a quoted value in the connection string does not end");
    }
    Ok((value, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap().into_iter().collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn a_url_gives_every_part() {
        let url = "postgresql://us%20er:p%40ss@h1:1,[::1]:2/d%2Fb?sslmode=require&connect_timeout=3";
        let want = [
            ("connect_timeout", "3"),
            ("dbname", "d/b"),
            ("host", "h1,::1"),
            ("password", "p@ss"),
            ("port", "1,2"),
            ("sslmode", "require"),
            ("user", "us er"),
        ];
        assert_eq!(parsed(url), pairs(&want));
        assert_eq!(parsed("postgres://"), pairs(&[]));
        assert_eq!(parsed("postgres://%2Frun%2Fpg/x"), pairs(&[("dbname", "x"), ("host", "/run/pg")]));
    }

    #[test]
    fn pairs_may_be_quoted() {
        let want = [("host", "h"), ("password", r"it's \ me"), ("user", "")];
        assert_eq!(parsed(r" host = h  password='it\'s \\ me' user=''"), pairs(&want));
    }

    #[test]
    fn an_error_repeats_nothing_of_the_text() {
        for text in [
            "postgres://u:hunter2:x@h:hunter2/d",
            "postgres:///u:hunter2@h/d",
            "postgres://u:1/hunter2@h/d",
            "host='hunter2",
            "hunter2",
            "postgres://[hunter2",
            "HUNTER2=hunter2",
        ] {
            let error = format!("{:?}", parse(text).unwrap_err());
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
