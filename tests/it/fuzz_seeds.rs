//! What the fuzz targets start from, and what they have found: every file in `tests/fuzz/seeds`, asked of the same checks.

use std::path::Path;

use crate::fuzz_checks as checks;
use crate::world::files;

/// Replays the seeds of one target; `check` panics where something does not hold.
fn replay(target: &str, check: impl Fn(&[u8]) + std::panic::RefUnwindSafe) {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds").join(target);
    let names = files(&seeds);
    assert!(!names.is_empty(), "{target} has no seeds");
    for name in names {
        let input = std::fs::read(seeds.join(&name)).unwrap();
        assert!(input.len() <= 4096, "{name} is no small seed");
        std::panic::catch_unwind(|| check(&input)).unwrap_or_else(|_| panic!("{target}: {name} fails"));
    }
}

#[test]
fn the_rows_that_come_out_of_any_microshard_are_those_that_went_in() {
    replay("microshard", checks::microshard::check);
}

#[test]
fn any_tables_at_a_shards_end_are_read_or_refused() {
    replay("tables", checks::tables::check);
}

#[test]
fn any_listing_is_read_or_refused() {
    replay("listing", checks::listing::check);
}

#[test]
fn any_uri_is_one_object_below_its_base_or_refused() {
    replay("uris", checks::uris::check);
}

#[test]
fn any_damage_to_a_queue_file_is_an_error_and_no_more() {
    replay("queue", checks::queue::check);
}
