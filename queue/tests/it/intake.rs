//! Snapshots: order, duplicates, additions, remainders that are held back.

use microshard_queue::{Claimer, Intake, Item, NewSnapshot, Number};

use crate::world::{Every, World, assert_sound, claim, claim_at, finish, ids, item, items, name, published};

#[test]
fn shards_are_consecutive_microshards_in_order_of_time_then_id() {
    let world = World::new();
    let mut all = items("en", [5, 4, 3, 2, 1]);
    all[0].created_at = Some(0); // 5 is the oldest
    all[3].created_at = Some(9); // 2 the newest
    all.extend(items("de", [7, 6]));
    let planned = world.snapshot("run", &all, Every(2, false)).expect("plans");
    assert_eq!((planned.added, planned.shards, planned.rows), (7, 4, Some(70)));
    let queue = world.queue();
    let mut shards = Vec::new();
    while let Some(job) = claim_at(&queue, 0) {
        shards.push((job.name.clone(), ids(&job)));
    }
    shards.sort();
    let expected = [
        ("run-de-000-00000", vec![6, 7]),
        ("run-en-000-00000", vec![5, 1]),
        ("run-en-000-00001", vec![3, 4]),
        ("run-en-000-00002", vec![2]),
    ];
    assert_eq!(shards, expected.map(|(name, ids)| (name.to_owned(), ids)));
    assert_sound(&queue);
}

#[test]
fn a_member_comes_back_as_it_went_in() {
    let world = World::with(3, 3);
    let member = claim(&world.queue()).members[1].clone();
    let went_in = item("en", 2);
    assert_eq!((member.microshard_id, &member.uri), (2, &went_in.uri));
    assert_eq!((member.rows, member.bytes, member.sha256), (Some(10), Some(100), went_in.sha256));
    assert_eq!((member.tries, member.tried_since_ms), (0, 0));
}

#[test]
fn an_id_or_a_uri_listed_twice_is_an_error_that_names_it() {
    // In a new file; in the run's second snapshot; in a queue that has another run only.
    for before in [None, Some("run"), Some("another")] {
        let world = World::new();
        if let Some(run) = before {
            world.snapshot(run, &items("en", 100..110), Every(2, false)).expect("plans");
        }
        let mut twice = items("en", [1, 2, 3]);
        twice[2].microshard_id = Some(1);
        let error = world.snapshot("run", &twice, Every(2, false)).expect_err("an id twice").to_string();
        assert!(error.contains("microshard 1 twice"), "{error}");
        let mut twice = items("en", [1, 2, 3]);
        twice[2].uri = twice[0].uri.clone();
        let error = world.snapshot("run", &twice, Every(2, false)).expect_err("a uri twice").to_string();
        assert!(error.contains("1 and 3") && !error.contains(&twice[0].uri), "a uri may be a secret: {error}");
        let mut twice = items("en", [1, 2, 3]);
        twice.iter_mut().for_each(|item| item.microshard_id = None);
        twice[2].uri = twice[0].uri.clone();
        let error = world.snapshot("run", &twice, Every(2, false)).expect_err("a uri twice, without ids").to_string();
        assert!(error.contains("lists one uri twice"), "{error}");
        assert_eq!(world.path.exists(), before.is_some(), "a first snapshot that fails leaves no queue");
        if before.is_some() {
            assert_eq!(world.queue().status().expect("reads")[0].microshards.total(), 10, "nor does it add anything");
            assert_sound(&world.queue());
        }
    }
}

#[test]
fn a_uri_that_an_earlier_snapshot_has_under_another_id_is_an_error() {
    let world = World::with(4, 2);
    let mut again = items("en", [5, 6]);
    again[1].uri = item("en", 3).uri;
    let error = world.snapshot("run", &again, Every(2, false)).expect_err("3 is there").to_string();
    assert!(error.contains("as microshards 3 and 6"), "{error}");
    assert_eq!(world.queue().status().expect("reads")[0].microshards.total(), 4);
    let planned = world.snapshot("another", &again, Every(2, false)).expect("another run has its own names");
    assert_eq!(planned.added, 2);
    assert_sound(&world.queue());
}

#[test]
fn a_held_microshard_that_is_listed_anew_with_the_uri_of_another_is_an_error() {
    // 1 and 2 are planned, 3 and 4 are held.
    for (id, others) in [(2, "as microshards 2 and 4"), (3, "as microshards 3 and 4")] {
        let world = World::new();
        world.snapshot("run", &items("en", 1..=4), Every(2, false)).expect("plans");
        let conn = rusqlite::Connection::open(&world.path).expect("opens");
        conn.execute_batch("UPDATE shards SET state = 5 WHERE shard = 2").expect("holds");
        drop(conn);
        let mut again = items("en", [3, 4]);
        again[1].uri = item("en", id).uri;
        let error = world.snapshot("run", &again, Every(2, false)).expect_err("its rows would be twice").to_string();
        assert!(error.contains(others), "{error}");
        assert_eq!(world.queue().status().expect("reads")[0].microshards.total(), 4, "nothing was added");
        let mut swapped = items("en", [3, 4]);
        (swapped[0].uri, swapped[1].uri) = (item("en", 4).uri, item("en", 3).uri);
        assert_eq!(world.snapshot("run", &swapped, Every(2, false)).expect("each uri once").added, 2);
        assert_sound(&world.queue());
    }
}

#[test]
fn names_that_a_failed_snapshot_left_behind_mislead_nobody() {
    let world = World::with(4, 2);
    let mut intake = Intake::begin(&world.path).expect("begins");
    items("en", [77, 78]).iter().for_each(|item| intake.add(item).expect("adds"));
    let snapshot = NewSnapshot {
        run_id: "run".into(),
        number: Number::From(1),
        claim: String::new(),
        remainders_given_back: false,
    };
    intake.plan(&snapshot, &Every(1, false), &|_, _, _, _| "same".to_owned()).expect_err("a clash of names");
    // 5 and 6 get the places that 77 and 78 had, and are what their names lead to.
    assert_eq!(world.snapshot("run", &items("en", [5, 6]), Every(2, false)).expect("plans").added, 2);
    let planned = world.snapshot("run", &items("en", [4, 5, 77, 78]), Every(2, false)).expect("plans");
    assert_eq!((planned.added, planned.known), (2, 2));
    assert_sound(&world.queue());
}

#[test]
fn the_same_id_in_another_run_is_another_microshard() {
    let world = World::new();
    world.snapshot("one", &items("en", 1..=4), Every(2, false)).expect("plans");
    let planned = world.snapshot("two", &items("en", 1..=4), Every(2, false)).expect("plans");
    assert_eq!((planned.added, planned.known), (4, 0));
    assert_eq!(world.queue().status().expect("reads").len(), 2);
}

#[test]
fn a_second_snapshot_adds_what_is_new_and_changes_nothing_that_is_planned() {
    let world = World::with(10, 4);
    let queue = world.queue();
    let first = claim(&queue);
    finish(&queue, &first.lease, published("a"));
    let planned = world.snapshot("run", &items("en", 5..=15), Every(4, false)).expect("plans");
    assert_eq!((planned.added, planned.known, planned.number), (5, 6, 1));
    let mut names = Vec::new();
    while let Some(job) = claim_at(&queue, 0) {
        names.push((job.name.clone(), ids(&job)));
    }
    let expected = [
        ("run-en-000-00001", vec![5, 6, 7, 8]),
        ("run-en-000-00002", vec![9, 10]),
        ("run-en-001-00000", vec![11, 12, 13, 14]),
        ("run-en-001-00001", vec![15]),
    ];
    assert_eq!(names, expected.map(|(name, ids)| (name.to_owned(), ids)));
    assert_sound(&queue);
}

#[test]
fn a_remainder_that_is_held_is_planned_again_with_what_comes_later() {
    let world = World::new();
    let planned = world.snapshot("run", &items("en", 1..=6), Every(4, true)).expect("plans");
    assert_eq!((planned.shards, planned.held), (2, 2));
    let queue = world.queue();
    assert_eq!(queue.status().expect("reads")[0].microshards.held, 2);
    // The manifest lists 5 again, with a newer time; 6 it does not list any more.
    let mut again = items("en", [5, 7, 8]);
    again[0].updated_at = Some(999);
    let planned = world.snapshot("run", &again, Every(4, true)).expect("plans");
    assert_eq!((planned.added, planned.held), (4, 0), "5, 6, 7 and 8");
    let status = &queue.status().expect("reads")[0];
    assert_eq!((status.microshards.pending, status.microshards.held, status.microshards.total()), (8, 0, 8));
    claim(&queue);
    assert_eq!(ids(&claim(&queue)), [5, 6, 7, 8]);
    let mut updated = Vec::new();
    queue
        .for_each_shard(&mut |shard| -> microshard_queue::Result<()> {
            updated.extend(queue.consumed(&shard)?.iter().map(|member| (member.microshard_id, member.updated_at)));
            Ok(())
        })
        .expect("reads");
    assert!(updated.contains(&(5, Some(999))), "as the manifest lists it now: {updated:?}");
    assert_sound(&queue);
}

#[test]
fn a_remainder_that_was_given_back_is_planned_again_only_where_it_is_listed() {
    let world = World::new();
    world.snapshot("run", &items("en", 1..=6), Every(4, true)).expect("plans");
    // 5 is listed again; 6 somebody else has taken meanwhile.
    let mut intake = Intake::begin(&world.path).expect("begins");
    items("en", [5, 7]).iter().for_each(|item| intake.add(item).expect("adds"));
    let snapshot = NewSnapshot {
        run_id: "run".into(),
        number: Number::From(1),
        claim: String::new(),
        remainders_given_back: true,
    };
    assert_eq!(intake.plan(&snapshot, &Every(4, false), &name).expect("plans").added, 2);
    let queue = world.queue();
    assert_eq!(ids(&claim(&queue)), [1, 2, 3, 4]);
    assert_eq!(ids(&claim(&queue)), [5, 7]);
    assert_eq!(queue.status().expect("reads")[0].microshards.total(), 6);
    assert_sound(&queue);
}

#[test]
fn objects_without_ids_are_numbered_in_the_order_of_their_uris_and_known_by_them() {
    let world = World::new();
    let file = |name: &str| Item { microshard_id: None, language: "en".into(), uri: name.into(), ..Item::default() };
    world.snapshot("run", &[file("b"), file("a")], Every(9, false)).expect("plans");
    let planned = world.snapshot("run", &[file("b"), file("a"), file("0")], Every(9, false)).expect("plans");
    assert_eq!((planned.added, planned.known), (1, 2));
    let queue = world.queue();
    let members: Vec<_> = [claim(&queue), claim(&queue)].into_iter().flat_map(|job| job.members).collect();
    let members: Vec<_> = members.iter().map(|member| (member.microshard_id, member.uri.as_str())).collect();
    assert_eq!(members, [(1, "a"), (2, "b"), (3, "0")]);
}

#[test]
fn what_a_killed_snapshot_copied_is_gone_with_the_next_one() {
    let world = World::with(4, 2);
    // As a kill leaves it: microshards beyond the last shard, and a snapshot that was never planned.
    let conn = rusqlite::Connection::open(&world.path).expect("opens");
    conn.execute_batch(
        "INSERT INTO microshards(run, microshard_id, uri) VALUES(1, 77, 'u');
         INSERT INTO snapshots(run, number, claim) VALUES(1, 55, '{}')",
    )
    .expect("writes");
    drop(conn);
    let queue = world.queue();
    assert_eq!(queue.status().expect("reads")[0].microshards.total(), 4, "it does not count");
    assert_eq!(queue.snapshots().expect("reads").len(), 1);
    let planned = world.snapshot("run", &items("en", [77]), Every(2, false)).expect("plans");
    assert_eq!((planned.added, planned.known), (1, 0), "77 is new, not known");
    assert_sound(&queue);
}

#[test]
fn names_that_clash_are_an_error_and_nothing_is_added() {
    let world = World::new();
    let mut all = items("a", [1]);
    all.extend(items("b", [2]));
    let mut intake = Intake::begin(&world.path).expect("begins");
    all.iter().for_each(|item| intake.add(item).expect("adds"));
    let snapshot = NewSnapshot {
        run_id: "run".into(),
        number: Number::From(0),
        claim: String::new(),
        remainders_given_back: false,
    };
    let error = intake.plan(&snapshot, &Every(1, false), &|_, _, _, _| "same".to_owned()).expect_err("a clash");
    assert!(error.to_string().contains("\"b\""), "{error}");
    assert!(!world.path.exists());
}

#[test]
fn a_size_that_no_object_has_is_an_error_that_names_the_microshard() {
    let world = World::new();
    let mut all = items("en", 1..=3);
    all[1].bytes = Some(u64::MAX);
    let error = world.snapshot("run", &all, Every(2, false)).expect_err("too large").to_string();
    assert!(error.contains("microshard 2 has 18446744073709551615 bytes"), "{error}");
}

#[test]
fn a_language_or_run_that_no_file_name_can_hold_is_an_error() {
    let world = World::new();
    let long = "x".repeat(101);
    let error = world.snapshot("run", &items(&long, [7]), Every(2, false)).expect_err("too long").to_string();
    assert!(error.contains("the language of microshard 7 has 101 bytes"), "{error}");
    let error = world.snapshot(&long, &items("en", [7]), Every(2, false)).expect_err("too long").to_string();
    assert!(error.contains("the run id has 101 bytes"), "{error}");
    assert!(!world.path.exists());
    world.snapshot(&long[..100], &items(&long[..100], [7]), Every(2, false)).expect("fits");
}

#[test]
fn two_snapshots_at_once_are_refused() {
    let world = World::with(4, 2);
    let _first = Intake::begin(&world.path).expect("begins");
    let error = Intake::begin(&world.path).expect_err("another is at work").to_string();
    assert!(error.contains("another snapshot"), "{error}");
}

#[test]
fn a_snapshot_into_a_queue_at_work_is_claimed_from_without_opening_it_again() {
    let world = World::with(2, 2);
    let at_work = world.queue();
    claim(&at_work);
    assert!(claim_at(&at_work, 0).is_none());
    world.snapshot("urgent", &items("fr", [1]), Every(2, false)).expect("plans");
    let job = at_work
        .transaction(|| at_work.claim(Claimer { owner: "me", now_ms: 0, lease_ms: 9, only: None }))
        .expect("claims");
    assert_eq!(job.expect("a new shard").run_id, "urgent");
    assert!(name("urgent", "fr", 0, 0).starts_with("urgent"));
}
