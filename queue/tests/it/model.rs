//! Random sequences of all that can happen to a queue, against a plain model in memory. After every step the counters,
//! the states and the members are compared (I1, I5): the model allows any legal choice of a claim, and nothing else.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use microshard_queue::{
    Claimer, DEATHS_MAX, DEFERRALS_MAX, Failure, Finish, Finished, GroupStatus, LOST_MAX, Lease, Outcome, Queue,
    RetrySelection,
};
use proptest::prelude::*;

use crate::world::{Every, World, items, name, published};

const LEASE_MS: i64 = 100;

#[derive(Debug, Clone)]
enum Op {
    Snapshot {
        microshards: i64,
        per_shard: u64,
    },
    Claim {
        wait_ms: i64,
    },
    /// Ends one of the leases ever given, perhaps long lost.
    Finish {
        lease: usize,
        end: End,
        failed: Vec<usize>,
    },
    Kill {
        suspect: Option<usize>,
    },
    Retry,
    Release {
        snapshot: usize,
    },
}

#[derive(Debug, Clone, Copy)]
enum End {
    Published,
    Deferred { wait_ms: i64, progress: bool },
    Failed,
    Held,
    Released,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let end = prop_oneof![
        4 => Just(End::Published),
        2 => (0_i64..300, any::<bool>()).prop_map(|(wait_ms, progress)| End::Deferred { wait_ms, progress }),
        1 => Just(End::Failed),
        1 => Just(End::Held),
        1 => Just(End::Released),
    ];
    let op = prop_oneof![
        1 => (1_i64..12, 1_u64..5).prop_map(|(microshards, per_shard)| Op::Snapshot { microshards, per_shard }),
        8 => (0_i64..60).prop_map(|wait_ms| Op::Claim { wait_ms }),
        8 => (any::<prop::sample::Index>(), end, prop::collection::vec(0_usize..5, 0..2))
            .prop_map(|(lease, end, failed)| Op::Finish { lease: lease.index(1 << 20), end, failed }),
        1 => prop::option::of(0_usize..100).prop_map(|suspect| Op::Kill { suspect }),
        1 => Just(Op::Retry),
        1 => (0_usize..4).prop_map(|snapshot| Op::Release { snapshot }),
    ];
    prop::collection::vec(op, 1..60)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Pending,
    Waiting(i64),
    Claimed(i64),
    Published,
    Failed,
    Held,
}

#[derive(Debug)]
struct Shard {
    snapshot: usize,
    state: State,
    attempt: i64,
    lost: u32,
    deferrals: u32,
    /// Seq of each member, and whether it has failed; those that were retried are gone.
    members: BTreeMap<i64, bool>,
    released: bool,
    /// Of a shard that `retry` made: which failure, as shard and seq, each of its members came from.
    origins: BTreeMap<i64, (i64, i64)>,
}

#[derive(Default)]
struct Model {
    shards: BTreeMap<i64, Shard>,
    leases: Vec<Lease>,
    deaths_on: BTreeMap<i64, u32>,
    deaths: u32,
    now_ms: i64,
    snapshots: usize,
}

impl Model {
    fn fail_all(shard: &mut Shard) {
        shard.members.values_mut().for_each(|failed| *failed = true);
        shard.state = State::Failed;
    }

    fn count(&self, state: impl Fn(State) -> bool) -> u64 {
        self.shards.values().filter(|shard| state(shard.state)).count() as u64
    }

    fn live(&self, state: impl Fn(State) -> bool) -> u64 {
        let shards = self.shards.values().filter(|shard| state(shard.state));
        shards.map(|shard| shard.members.values().filter(|failed| !**failed).count() as u64).sum()
    }

    fn failed(&self) -> u64 {
        self.shards.values().map(|shard| shard.members.values().filter(|failed| **failed).count() as u64).sum()
    }
}

fn apply(world: &World, queue: &Queue, model: &mut Model, op: &Op) {
    match op {
        Op::Snapshot { microshards, per_shard } => snapshot(world, queue, model, *microshards, *per_shard),
        Op::Claim { wait_ms } => claim(queue, model, *wait_ms),
        Op::Finish { lease, end, failed } => finish(queue, model, *lease, *end, failed),
        Op::Kill { suspect } => kill(queue, model, *suspect),
        Op::Retry => retry(queue, model),
        Op::Release { snapshot } => release(queue, model, *snapshot),
    }
}

fn snapshot(world: &World, queue: &Queue, model: &mut Model, microshards: i64, per_shard: u64) {
    model.snapshots += 1;
    let run = format!("run{}", model.snapshots);
    world.snapshot(&run, &items("en", 1..=microshards), Every(per_shard, false)).expect("plans");
    adopt(queue, model);
}

/// Takes shards that are new in the queue into the model.
fn adopt(queue: &Queue, model: &mut Model) {
    queue
        .for_each_shard(&mut |shard| -> microshard_queue::Result<()> {
            if let Entry::Vacant(vacant) = model.shards.entry(shard.shard) {
                let run: usize = shard.run_id["run".len()..].parse().expect("a number");
                let members = queue.members_of(&shard)?.iter().map(|member| (member.seq, false)).collect();
                vacant.insert(Shard {
                    snapshot: run - 1,
                    state: State::Pending,
                    attempt: 0,
                    lost: 0,
                    deferrals: 0,
                    members,
                    released: false,
                    origins: BTreeMap::new(),
                });
            }
            Ok(())
        })
        .expect("reads");
}

fn claim(queue: &Queue, model: &mut Model, wait_ms: i64) {
    model.now_ms += wait_ms;
    let now_ms = model.now_ms;
    let claimer = Claimer { owner: "me", now_ms, lease_ms: LEASE_MS, only: None };
    let job = queue.transaction(|| queue.claim(claimer)).expect("claims");
    for shard in model.shards.values_mut() {
        if matches!(shard.state, State::Waiting(until) if until <= now_ms) {
            shard.state = State::Pending;
        }
    }
    let pending = model.count(|state| state == State::Pending);
    let mut expired: Vec<(i64, i64)> = model
        .shards
        .iter()
        .filter_map(|(id, shard)| match shard.state {
            State::Claimed(until) if until <= now_ms => Some((until, *id)),
            _ => None,
        })
        .collect();
    expired.sort_unstable();
    // Phase 2 fails the shards whose leases have run out too often, oldest first, until one can be given.
    if pending == 0 {
        for (_, id) in &expired {
            let shard = model.shards.get_mut(id).expect("is there");
            if job.as_ref().is_some_and(|job| job.lease.shard == *id) {
                break;
            }
            if shard.lost + 1 >= LOST_MAX {
                shard.attempt += 1;
                shard.lost += 1;
                Model::fail_all(shard);
            }
        }
    }
    let Some(job) = job else {
        assert_eq!(pending, 0, "a pending shard was not claimed");
        let left = model.count(|state| matches!(state, State::Claimed(until) if until <= now_ms));
        assert_eq!(left, 0, "an expired lease was not taken over");
        return;
    };
    let shard = model.shards.get_mut(&job.lease.shard).expect("a shard that exists");
    match shard.state {
        State::Pending => {}
        State::Claimed(until) if until <= now_ms && pending == 0 => shard.lost += 1,
        other => panic!("claimed a shard that is {other:?}, with {pending} pending"),
    }
    shard.state = State::Claimed(now_ms + LEASE_MS);
    shard.attempt += 1;
    assert_eq!(job.lease.attempt, shard.attempt, "the fence goes up at every claim");
    let members: Vec<i64> = job.members.iter().map(|member| member.seq).collect();
    let expected: Vec<i64> = shard.members.iter().filter(|(_, failed)| !**failed).map(|(seq, _)| *seq).collect();
    assert_eq!(members, expected, "the same members, without those that failed");
    model.leases.push(job.lease);
}

fn finish(queue: &Queue, model: &mut Model, lease: usize, end: End, failed: &[usize]) {
    if model.leases.is_empty() {
        return;
    }
    let lease = model.leases[lease % model.leases.len()].clone();
    let shard = model.shards.get_mut(&lease.shard).expect("is there");
    let holds = matches!(shard.state, State::Claimed(_)) && shard.attempt == lease.attempt;
    let live: Vec<i64> = shard.members.iter().filter(|(_, failed)| !**failed).map(|(seq, _)| *seq).collect();
    let mut failures: Vec<i64> = failed.iter().filter_map(|index| live.get(*index).copied()).collect();
    failures.dedup();
    let (outcome, until) = match end {
        End::Published => (published(&format!("k{}", lease.shard)), 0),
        End::Deferred { wait_ms, progress } => {
            let until_ms = model.now_ms + wait_ms;
            (Outcome::Deferred { until_ms, why: "later".into(), progress }, until_ms)
        }
        End::Failed => (Outcome::Failed("bad".into()), 0),
        End::Held => (Outcome::Held("held".into()), 0),
        End::Released => (Outcome::Released, 0),
    };
    let failure = |seq: &i64| Failure { seq: *seq, sentence: "x".into(), tries: 1 };
    let finish = Finish { outcome, failures: failures.iter().map(failure).collect(), troubles: vec![] };
    let finished = queue.transaction(|| queue.finish(&lease, &finish)).expect("finishes");
    assert_eq!(finished == Finished::Accepted, holds, "a lease ends once, and only while it holds (I5)");
    if !holds {
        return;
    }
    for seq in failures {
        shard.members.insert(seq, true);
    }
    match end {
        End::Published => {
            shard.state = State::Published;
            shard.deferrals = 0;
            model.deaths = 0;
        }
        End::Deferred { progress, .. } => {
            shard.deferrals = if progress { 1 } else { shard.deferrals + 1 };
            shard.state = State::Waiting(until);
            assert!(shard.deferrals <= DEFERRALS_MAX, "sequences are shorter than that");
        }
        End::Failed => Model::fail_all(shard),
        End::Held => shard.state = State::Held,
        End::Released => shard.state = State::Pending,
    }
}

fn kill(queue: &Queue, model: &mut Model, suspect: Option<usize>) {
    let claimed: Vec<i64> =
        model.shards.iter().filter(|(_, shard)| matches!(shard.state, State::Claimed(_))).map(|(id, _)| *id).collect();
    let held: Vec<i64> = claimed.iter().flat_map(|id| model.shards[id].members.keys().copied()).collect();
    let suspect = suspect.and_then(|index| held.get(index).copied());
    let started = queue.start_runner("me", "host", suspect.as_slice());
    model.deaths += u32::from(!claimed.is_empty());
    if model.deaths >= DEATHS_MAX {
        assert!(started.is_err(), "deaths in a row without progress are bounded");
        model.deaths = 0;
    } else {
        assert_eq!(started.expect("starts").shards, claimed.len() as u64);
    }
    for id in &claimed {
        model.shards.get_mut(id).expect("is there").state = State::Pending;
    }
    let Some(seq) = suspect else { return };
    let shard = claimed.iter().find(|id| model.shards[*id].members.contains_key(&seq)).expect("is held");
    let failed = model.shards.get_mut(shard).expect("is there").members.get_mut(&seq).expect("is there");
    if !*failed {
        let deaths = model.deaths_on.entry(seq).or_default();
        *deaths += 1;
        *failed = *deaths >= 2;
    }
}

fn retry(queue: &Queue, model: &mut Model) {
    queue.retry(&RetrySelection::default(), &name).expect("retries");
    let known: Vec<i64> = model.shards.keys().copied().collect();
    let mut retried = Vec::new();
    for (id, shard) in &mut model.shards {
        let has_failed = shard.members.values().any(|failed| *failed);
        match shard.state {
            State::Held if shard.released || !has_failed => {}
            State::Held => {
                shard.members.values_mut().for_each(|failed| *failed = false);
                shard.state = State::Pending;
            }
            _ if has_failed => {
                let failed = shard.members.iter().filter(|(_, failed)| **failed);
                retried.push((shard.snapshot, failed.map(|(seq, _)| (*id, *seq)).collect::<Vec<_>>()));
                shard.members.retain(|_, failed| !*failed);
            }
            _ => {}
        }
    }
    adopt(queue, model);
    retried.sort_by_key(|(snapshot, _)| *snapshot);
    let mut retried = retried.into_iter().peekable();
    let new = model.shards.iter_mut().filter(|(id, _)| !known.contains(id));
    for (_, shard) in new {
        let mut origins = Vec::new();
        while origins.len() < shard.members.len() {
            let (snapshot, of_shard) = retried.next().expect("nothing is made up");
            assert_eq!(snapshot, shard.snapshot);
            origins.extend(of_shard);
        }
        assert_eq!(origins.len(), shard.members.len(), "what failed in one shard stays together");
        shard.origins = shard.members.keys().copied().zip(origins).collect();
    }
    assert!(retried.peek().is_none(), "all of it is in new shards");
}

/// A retry that was not worked is undone: what was to be retried is failed where it failed, unless a retry of the retry
/// has it.
fn undo_retry(model: &mut Model, id: i64) {
    let shard = model.shards.remove(&id).expect("is there");
    model.leases.retain(|lease| lease.shard != id);
    for (copy, origin) in shard.origins {
        model.deaths_on.remove(&copy);
        if shard.members.contains_key(&copy) {
            model.shards.get_mut(&origin.0).expect("is there").members.insert(origin.1, true);
            continue;
        }
        let mut later = model.shards.values_mut().flat_map(|shard| shard.origins.values_mut());
        *later.find(|of| **of == (id, copy)).expect("it was retried once more") = origin;
    }
}

fn release(queue: &Queue, model: &mut Model, snapshot: usize) {
    let snapshots = queue.snapshots().expect("reads");
    let Some(row) = snapshots.get(snapshot) else { return };
    queue.release_unworked(row.snapshot, &mut |_| {}).expect("releases");
    let unworked = |shard: &Shard| !matches!(shard.state, State::Published | State::Failed);
    let of_retries = model.shards.iter().filter(|(_, shard)| shard.snapshot == snapshot && !shard.origins.is_empty());
    let undone: Vec<i64> = of_retries.filter(|(_, shard)| unworked(shard)).map(|(id, _)| *id).rev().collect();
    undone.into_iter().for_each(|id| undo_retry(model, id));
    for shard in model.shards.values_mut().filter(|shard| shard.snapshot == snapshot) {
        if matches!(shard.state, State::Pending | State::Waiting(_) | State::Claimed(_) | State::Held) {
            (shard.state, shard.released) = (State::Held, true);
        }
    }
}

fn compare(queue: &Queue, model: &Model) {
    assert_eq!(queue.check().expect("checks"), Vec::<String>::new());
    let total = GroupStatus::total(&queue.status().expect("reads"));
    let (shards, microshards) = (&total.shards, &total.microshards);
    let waiting = |state| matches!(state, State::Waiting(_));
    let claimed = |state| matches!(state, State::Claimed(_));
    let pending = |state| state == State::Pending || waiting(state);
    assert_eq!(shards.pending, model.count(pending));
    assert_eq!(shards.waiting, model.count(waiting));
    assert_eq!(shards.claimed, model.count(claimed));
    assert_eq!(shards.published, model.count(|state| state == State::Published));
    assert_eq!(shards.failed, model.count(|state| state == State::Failed));
    assert_eq!(shards.held, model.count(|state| state == State::Held));
    assert_eq!(microshards.pending, model.live(pending));
    assert_eq!(microshards.claimed, model.live(claimed));
    assert_eq!(microshards.consumed, model.live(|state| state == State::Published));
    assert_eq!(microshards.held, model.live(|state| state == State::Held));
    assert_eq!(microshards.failed, model.failed());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_every_microshard_is_in_one_state_and_every_lease_ends_once(ops in ops()) {
        let world = World::new();
        world.snapshot("run1", &items("en", 1..=6), Every(2, false)).expect("plans");
        let mut model = Model { snapshots: 1, ..Model::default() };
        let queue = world.queue();
        adopt(&queue, &mut model);
        for op in &ops {
            apply(&world, &queue, &mut model, op);
            compare(&queue, &model);
        }
    }
}
