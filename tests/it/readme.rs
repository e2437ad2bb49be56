//! The README tells the truth about what can be typed: every command line in it parses, every flag it names exists, no
//! flag is left out, and every source file and test it names is there. It must never run anything; what commands do is tested
//! elsewhere.

use std::collections::BTreeSet;
use std::path::Path;

use clap::{CommandFactory, Parser};
use compact_local::cli::Cli;

const README: &str = include_str!("../../README.md");

/// The lines inside the fences of shell code; a line that ends in `\` goes on.
fn shell_lines() -> Vec<String> {
    let blocks = README.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n"));
    blocks.flat_map(|block| block.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// What the shell passes on of a line: up to a comment, a pipe or the next command, without quotes.
fn words(line: &str) -> Vec<String> {
    let ends = |word: &&str| !(word.starts_with('#') || ["|", "&&", ";", ">"].contains(word));
    line.split_whitespace().take_while(ends).map(|word| word.trim_matches('"').to_owned()).collect()
}

/// All code in the text, outside the fences.
fn code_spans() -> Vec<&'static str> {
    README.split("```").step_by(2).flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
}

/// Every flag of every command, but those that clap adds.
fn flags() -> BTreeSet<String> {
    let cli = Cli::command();
    let arguments = cli.get_subcommands().flat_map(|command| command.get_arguments());
    arguments.filter_map(|argument| argument.get_long()).map(|long| format!("--{long}")).collect()
}

#[test]
fn every_command_line_of_the_readme_parses() {
    let lines = shell_lines();
    let ours: Vec<_> = lines.iter().filter(|line| line.starts_with("compact-local ")).collect();
    assert!(ours.len() > 20, "only {} command lines were found: has the README's form changed?", ours.len());
    for line in ours {
        if let Err(error) = Cli::try_parse_from(words(line)) {
            panic!("`{line}` does not parse: {error}");
        }
    }
}

#[test]
fn every_flag_the_readme_names_exists_and_none_is_left_out() {
    let spans = code_spans();
    let named = spans.iter().filter_map(|span| span.split_whitespace().next()).filter(|word| word.starts_with("--"));
    let named: BTreeSet<String> = named.map(str::to_owned).collect();
    let flags = flags();
    assert_eq!(named.difference(&flags).collect::<Vec<_>>(), Vec::<&String>::new(), "named, but do not exist");
    assert_eq!(flags.difference(&named).collect::<Vec<_>>(), Vec::<&String>::new(), "exist, but are not named");
}

#[test]
fn every_source_file_the_readme_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_source = |span: &&&str| span.starts_with("src/") || span.starts_with("queue/");
    let spans = code_spans();
    let named: Vec<_> = spans.iter().filter(is_source).collect();
    assert!(named.len() > 20, "only {} files were found: has the README's form changed?", named.len());
    for path in named {
        assert!(root.join(path).exists(), "{path} is not there");
    }
}

#[test]
fn every_test_the_readme_names_is_there() {
    let named: Vec<_> = code_spans().into_iter().filter_map(|span| span.split_once("::")).collect();
    assert!(named.len() > 25, "only {} tests were found: has the README's form changed?", named.len());
    for (module, test) in named {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/it/{module}.rs"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(text.contains(&format!("#[test]\nfn {test}() {{\n")), "there is no test `{module}::{test}`");
    }
}
