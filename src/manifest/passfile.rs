//! `.pgpass`: the password of a (host, port, database, user), as libpq looks it up. Like libpq it ignores a file that
//! others may read, but says so: the reason travels into the error about the missing or wrong password.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What the password file said.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    /// The password, where a line fits.
    pub(super) password: Option<String>,
    /// Why the file was ignored, where it was.
    pub(super) ignored: Option<String>,
}

/// Looks up `wanted`: host, port, database, user. A file that is not there is no error.
pub(super) fn look_up(path: &Path, wanted: [&str; 4]) -> Lookup {
    match read(path) {
        Ok(text) => Lookup { password: text.lines().find_map(|line| password(line, wanted)), ignored: None },
        Err(reason) => Lookup { password: None, ignored: reason },
    }
}

fn read(path: &Path) -> Result<String, Option<String>> {
    let ignored = |why: String| Some(format!("the password file {} was ignored: {why}", path.display()));
    let mut file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(None),
        opened => opened.map_err(|error| ignored(error.to_string()))?,
    };
    let metadata = file.metadata().map_err(|error| ignored(error.to_string()))?;
    if !metadata.is_file() {
        return Err(ignored("it is not a plain file".to_owned()));
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(ignored(format!("others may read it (mode {mode:04o}), chmod it to 0600")));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| ignored(error.to_string()))?;
    Ok(text)
}

/// The password of a line that fits `wanted`: all that follows the four fields, colons included.
fn password(line: &str, wanted: [&str; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut rest = line;
    for wanted in wanted {
        let (field, after) = split_field(rest)?;
        if field != "*" && unescaped(field) != wanted {
            return None;
        }
        rest = after;
    }
    Some(unescaped(rest))
}

/// The text before the first `:` without a backslash, and what is behind it.
fn split_field(text: &str) -> Option<(&str, &str)> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            ':' if !escaped => {
                let (field, rest) = text.split_at_checked(at)?;
                return Some((field, rest.strip_prefix(':')?));
            }
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    None
}

/// A backslash takes the next character literally.
fn unescaped(text: &str) -> String {
    let mut chars = text.chars();
    let mut plain = String::with_capacity(text.len());
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const WANTED: [&str; 4] = ["h", "5432", "d", "u"];

    #[test]
    fn a_line_fits_by_name_or_star_and_unescapes() {
        assert_eq!(password(r"h:5432:d:u:a\:b\\c:d", WANTED).unwrap(), r"a:b\c:d");
        assert_eq!(password("*:*:*:u:p", WANTED).unwrap(), "p");
        for line in ["h:5433:d:u:p", "h:5432:d:u", "#h:5432:d:u:p", r"\*:*:*:u:p", ""] {
            assert_eq!(password(line, WANTED), None, "{line}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_ignored_with_the_reason() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "other:*:*:*:no\nh:*:*:*:yes").unwrap();
        let mode = |mode| std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o600);
        assert_eq!(look_up(file.path(), WANTED).password.unwrap(), "yes");
        mode(0o640);
        let lookup = look_up(file.path(), WANTED);
        assert!(lookup.password.is_none());
        assert!(lookup.ignored.unwrap().contains("mode 0640"));
    }

    #[test]
    fn a_missing_file_is_no_error() {
        let lookup = look_up(Path::new("/nonexistent/pgpass"), WANTED);
        assert!(lookup.password.is_none() && lookup.ignored.is_none());
    }
}
