//! Cutting shards: pure, so tried on thousands of made-up groups.

use compact_local::plan::{Policy, Remainder};
use microshard_queue::{Cut, GroupTotals, Planner, Size};
use proptest::prelude::*;

fn policy(rows_max: u64, remainder: Remainder) -> Policy {
    Policy { rows_max, bytes_max: None, microshards_max: None, remainder }
}

fn cut(policy: &Policy, sizes: &[Size]) -> Vec<Cut> {
    let group = GroupTotals {
        language: "en".into(),
        microshards: sizes.len() as u64,
        rows: Some(sizes.iter().map(|size| size.rows).sum()),
        bytes: Some(sizes.iter().map(|size| size.bytes).sum()),
    };
    let mut pass = |each: &mut dyn FnMut(Size)| {
        sizes.iter().copied().for_each(each);
        Ok(())
    };
    policy.cut(&group, &mut pass).expect("cuts")
}

fn rows(counts: &[u64]) -> Vec<Size> {
    counts.iter().map(|rows| Size { rows: *rows, bytes: rows * 100 }).collect()
}

/// Rows of each shard.
fn filled(cuts: &[Cut], sizes: &[Size]) -> Vec<u64> {
    let mut sizes = sizes.iter();
    cuts.iter().map(|cut| sizes.by_ref().take(cut.microshards as usize).map(|size| size.rows).sum()).collect()
}

#[test]
fn emit_fills_to_the_target_and_ends_with_a_short_shard() {
    let sizes = rows(&[40, 40, 40, 40, 40]);
    let cuts = cut(&policy(100, Remainder::Emit), &sizes);
    assert_eq!(filled(&cuts, &sizes), [80, 80, 40]);
    assert_eq!(cuts.iter().map(|cut| cut.closed_by).collect::<Vec<_>>(), ["rows", "rows", "end"]);
}

#[test]
fn spread_makes_shards_even() {
    let sizes = rows(&[10; 101]);
    assert_eq!(filled(&cut(&policy(1000, Remainder::Spread), &sizes), &sizes), [510, 500]);
    let sizes = rows(&[10; 100]);
    assert_eq!(filled(&cut(&policy(1000, Remainder::Spread), &sizes), &sizes), [1000], "what fits into one is one");
}

#[test]
fn a_large_language_is_as_even_as_a_small_one() {
    let mut random = fastrand::Rng::with_seed(5);
    for microshards in [300, 3_000, 60_000] {
        let counts: Vec<u64> = (0..microshards).map(|_| random.u64(1..138)).collect();
        let sizes = rows(&counts);
        let even = cut(&policy(17_000, Remainder::Spread), &sizes);
        let shards = filled(&even, &sizes);
        let (smallest, largest) = (shards.iter().min().unwrap(), shards.iter().max().unwrap());
        assert!(largest - smallest <= 2 * 137, "{microshards}: {smallest} to {largest}");
        let full = cut(&policy(17_000, Remainder::Emit), &sizes).len();
        assert!(even.len() <= full + full / 100 + 1, "{} shards, {full} full ones", even.len());
    }
}

/// Which is what decided over how many shards there are: even in anything else, one of them would exceed its limit.
#[test]
fn shards_are_even_in_what_is_scarce() {
    let uneven = |at: usize| if at < 50 { 10 } else { 30 };
    for rows_are in [true, false] {
        let sizes: Vec<Size> = (0..100)
            .map(|at| match rows_are {
                true => Size { rows: uneven(at), bytes: 1 },
                false => Size { rows: 1, bytes: uneven(at) },
            })
            .collect();
        let policy = Policy { bytes_max: Some(1010), ..policy(1010, Remainder::Spread) };
        let cuts = cut(&policy, &sizes);
        assert_eq!(cuts.iter().map(|cut| cut.microshards).collect::<Vec<_>>(), [67, 33], "rows: {rows_are}");
    }
    let sizes: Vec<Size> = (0..100).map(|at| Size { rows: uneven(at), bytes: uneven(at) }).collect();
    let sixty = Policy { bytes_max: Some(3_000), microshards_max: Some(60), ..policy(3_000, Remainder::Spread) };
    assert_eq!(cut(&sixty, &sizes).iter().map(|cut| cut.microshards).collect::<Vec<_>>(), [50, 50]);
}

#[test]
fn hold_keeps_the_remainder_back_unless_it_is_full() {
    let cuts = cut(&policy(100, Remainder::Hold), &rows(&[50, 50, 50]));
    assert_eq!(cuts.iter().map(|cut| (cut.microshards, cut.held)).collect::<Vec<_>>(), [(2, false), (1, true)]);
    for (rows_max, bytes_max, microshards_max) in [(100, None, None), (1000, Some(10_000), None), (1000, None, Some(2))]
    {
        let policy = Policy { rows_max, bytes_max, microshards_max, remainder: Remainder::Hold };
        let cuts = cut(&policy, &rows(&[50, 50, 50, 50]));
        assert_eq!(cuts.iter().map(|cut| (cut.microshards, cut.held)).collect::<Vec<_>>(), [(2, false), (2, false)]);
    }
}

#[test]
fn a_microshard_larger_than_several_shards_is_one_shard_and_none_is_empty() {
    let cuts = cut(&policy(100, Remainder::Spread), &rows(&[500, 10, 10, 10, 10]));
    assert!(cuts[0].microshards == 1 && cuts.iter().all(|cut| cut.microshards > 0), "{cuts:?}");
}

#[test]
fn the_limit_that_closed_a_shard_is_named() {
    let mut policy = policy(1_000_000, Remainder::Emit);
    policy.bytes_max = Some(5000);
    assert_eq!(cut(&policy, &rows(&[40, 40]))[0].closed_by, "bytes");
    policy.microshards_max = Some(1);
    policy.bytes_max = None;
    assert_eq!(cut(&policy, &rows(&[40, 40]))[0].closed_by, "microshards");
}

#[test]
fn a_limit_on_what_the_manifest_does_not_count_is_an_error_with_advice() {
    let group = GroupTotals { language: "en".into(), microshards: 3, rows: None, bytes: None };
    let mut none = |_: &mut dyn FnMut(Size)| Ok(());
    let error = policy(100, Remainder::Spread).cut(&group, &mut none).expect_err("no counts").to_string();
    assert!(error.contains("row counts") && error.contains("--shard-microshards") && error.contains("en"), "{error}");
    let by_bytes = Policy { bytes_max: Some(1), ..policy(100, Remainder::Spread) };
    let error = by_bytes.cut(&group, &mut none).expect_err("no sizes").to_string();
    assert!(error.contains("byte sizes"), "{error}");
}

#[test]
fn without_row_counts_microshards_decide() {
    let group = GroupTotals { language: "en".into(), microshards: 10, rows: None, bytes: None };
    let policy = Policy { microshards_max: Some(4), ..policy(100, Remainder::Spread) };
    let mut pass = |each: &mut dyn FnMut(Size)| {
        (0..10).for_each(|_| each(Size::default()));
        Ok(())
    };
    let cuts = policy.cut(&group, &mut pass).expect("cuts");
    assert_eq!(cuts.iter().map(|cut| cut.microshards).collect::<Vec<_>>(), [3, 4, 3]);
}

fn remainders() -> impl Strategy<Value = Remainder> {
    prop_oneof![Just(Remainder::Spread), Just(Remainder::Emit), Just(Remainder::Hold)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_microshard_is_lost_and_no_limit_exceeded(
        counts in prop::collection::vec(0_u64..200, 1..400),
        rows_max in 50_u64..5000,
        bytes_max in prop::option::of(5000_u64..200_000),
        microshards_max in prop::option::of(1_u64..100),
        remainder in remainders(),
    ) {
        let sizes = rows(&counts);
        let policy = Policy { rows_max, bytes_max, microshards_max, remainder };
        let cuts = cut(&policy, &sizes);
        prop_assert_eq!(cuts.iter().map(|cut| cut.microshards).sum::<u64>(), counts.len() as u64);
        prop_assert!(cuts.iter().all(|cut| cut.microshards > 0));
        prop_assert_eq!(&cuts, &cut(&policy, &sizes), "deterministic");
        let held = cuts.iter().filter(|cut| cut.held).count();
        prop_assert!(held <= 1 && (held == 0 || remainder == Remainder::Hold));
        for (shard, rows) in cuts.iter().zip(filled(&cuts, &sizes)) {
            let within = rows <= rows_max
                && rows * 100 <= bytes_max.unwrap_or(u64::MAX)
                && shard.microshards <= microshards_max.unwrap_or(u64::MAX);
            prop_assert!(within || shard.microshards == 1, "only a single microshard may exceed a limit");
        }
    }

    #[test]
    fn spread_needs_hardly_more_shards_than_filling_and_evens_them_out(
        counts in prop::collection::vec(1_u64..100, 50..400),
        rows_max in 500_u64..5000,
    ) {
        let sizes = rows(&counts);
        let even = cut(&policy(rows_max, Remainder::Spread), &sizes);
        let full = cut(&policy(rows_max, Remainder::Emit), &sizes);
        prop_assert!(even.len() <= full.len() + full.len() / 100 + 1);
        let shards = filled(&even, &sizes);
        let (smallest, largest) = (shards.iter().min().unwrap_or(&0), shards.iter().max().unwrap_or(&0));
        // Each border is off by half a microshard at most.
        prop_assert!(even == full || largest - smallest <= 200, "{:?}", shards);
    }
}
