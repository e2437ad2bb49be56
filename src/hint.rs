//! Commands to run next, as they can be typed: with the queue that was given, and for `run` with all that the queue is
//! bound to. The one home of such hints; pure.

use std::path::Path;

use crate::cli::QUEUE_DEFAULT;
use crate::config::Output;

/// A command on this queue, without a flag that says what is the default anyway.
pub fn command(words: &str, queue: &Path) -> String {
    let mut text = format!("compact-local {words}");
    if queue != Path::new(QUEUE_DEFAULT) {
        text += &format!(" --queue {}", quoted(&queue.display().to_string()));
    }
    text
}

/// `run` on this queue: with the options it is bound to, or a place for the output where there was no run yet.
pub fn run(queue: &Path, bound: Option<&Output>) -> String {
    let text = command("run", queue);
    match bound {
        None => format!("{text} --output DIR"),
        Some(output) => {
            output.flags().iter().fold(text, |text, (flag, value)| format!("{text} {flag} {}", quoted(value)))
        }
    }
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "_-./:@%+=,".contains(char);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Frames;

    #[test]
    fn a_hint_names_the_queue_unless_it_is_the_default_and_is_one_word_for_a_shell() {
        assert_eq!(command("failures", Path::new(QUEUE_DEFAULT)), "compact-local failures");
        assert_eq!(command("failures", Path::new("a.db")), "compact-local failures --queue a.db");
        assert_eq!(command("retry", Path::new("it's a.db")), r"compact-local retry --queue 'it'\''s a.db'");
    }

    #[test]
    fn run_is_told_with_all_that_a_queue_is_bound_to() {
        let usual = Output::unless_told_otherwise("/data/my shards".to_owned());
        let run_a = |output: Option<&Output>| run(Path::new("a.db"), output);
        assert_eq!(run_a(None), "compact-local run --queue a.db --output DIR");
        assert_eq!(run_a(Some(&usual)), "compact-local run --queue a.db --output '/data/my shards'");
        let other = Output { level: 9, frames: Frames::Splice, hold_on_failure: true, ..usual };
        assert_eq!(
            run_a(Some(&other)),
            "compact-local run --queue a.db --output '/data/my shards' --level 9 --frames splice --on-failure hold"
        );
    }
}
