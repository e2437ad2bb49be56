//! What `--memory` is divided into: a promise about resident bytes (I8). Every holder is added up at its most before anything
//! is started, and as many lanes are made as fit. What a run held at most is told at its end.

use anyhow::{Result, ensure};

use crate::monitor::human;

/// The program, the queue's page caches, the bars, the dataset index.
const PROCESS: u64 = 48 << 20;
/// A download thread: what it touches of its stack, an HTTP client's buffers, TLS.
const FETCHER: u64 = 192 << 10;
/// A builder: stack, decoder, and what it decodes beside others at least.
const BUILDER: u64 = (1 << 20) + DECODED_COPIES * DECODED_MIN;
const DECODED_MIN: u64 = 1 << 20;
/// A microshard is held decoded, once more in the decoder's window, and once more where it is repaired.
const DECODED_COPIES: u64 = 3;
/// Download threads that one lane keeps busy: with fewer lanes they idle while a lane waits for its last objects.
const THREADS_PER_LANE: usize = 64;

/// What a run is to hold.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    /// `--memory`.
    pub memory: u64,
    /// Download threads.
    pub threads: usize,
    /// Builders.
    pub builders: usize,
    /// Bytes of the microshards of one job.
    pub job: u64,
    /// Bytes of a shard being written, beside its file.
    pub encoder: u64,
    /// Bytes of a finished shard that are mapped to be sent.
    pub sent: u64,
    /// Decoded bytes of one microshard at most.
    pub microshard_max: u64,
}

/// Who may hold how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Lanes.
    pub lanes: usize,
    /// What is downloaded and not yet built, of all lanes and of deferred jobs.
    pub bodies: u64,
    /// Microshards that decode to more are decoded one at a time.
    pub decoded_beside: u64,
}

impl Memory {
    /// Divides `needs.memory`. Lanes: one for each builder, and enough more to keep the download threads busy, as far as
    /// they fit; a quarter of what they share is left for what deferred jobs have fetched.
    ///
    /// # Errors
    /// Not even one lane fits.
    pub fn divide(needs: &Needs) -> Result<Memory> {
        // An eighth is what the allocator keeps between pieces.
        let usable = needs.memory - needs.memory / 8;
        let fixed = PROCESS + needs.threads as u64 * FETCHER + needs.builders as u64 * BUILDER;
        // What was typed, or is in the manifest, may be of any size.
        let lane = needs.job.saturating_add(needs.encoder).saturating_add(needs.sent);
        let turn = DECODED_COPIES.saturating_mul(needs.microshard_max);
        let least = fixed.saturating_add(turn).saturating_add(lane);
        ensure!(least <= usable, too_little(needs, least));
        let (decoded_beside, decoded) = decoded(needs, usable - least);
        let shared = usable - fixed - decoded;
        let wanted = needs.builders + needs.threads.div_ceil(THREADS_PER_LANE).max(2);
        let affordable = usize::try_from(shared / 4 * 3 / lane).unwrap_or(usize::MAX);
        let lanes = wanted.min(affordable).max(1);
        let bodies = shared - lanes as u64 * (needs.encoder + needs.sent);
        Ok(Memory { lanes, bodies, decoded_beside })
    }
}

/// Up to what size microshards are decoded beside others, and what all builders then hold at most beyond the least. Half of
/// what is spare goes to it, up to a quarter of the memory; where that is not enough for the largest in every builder,
/// those take turns.
fn decoded(needs: &Needs, spare: u64) -> (u64, u64) {
    let extra = (spare / 2).min(needs.memory / 4);
    let turn = DECODED_COPIES * needs.microshard_max;
    let in_all = turn.saturating_mul(needs.builders as u64);
    if in_all <= turn + extra {
        return (needs.microshard_max, in_all);
    }
    let beside = DECODED_MIN + extra / DECODED_COPIES / needs.builders as u64;
    (beside.min(needs.microshard_max), turn + extra)
}

fn too_little(needs: &Needs, least: u64) -> String {
    format!(
        "--memory {} is too little for {} download threads, {} builders, a microshard that decodes to {} and a shard of {}: \
         give at least {}, or lower --threads, --builders, --max-microshard-bytes, --level or the size of shards in \
         `snapshot`",
        human::bytes(needs.memory),
        needs.threads,
        needs.builders,
        human::bytes(needs.microshard_max),
        human::bytes(needs.job),
        // Rounded up, as it is shown with three digits.
        human::bytes((least / 7).saturating_mul(8).saturating_add(least / 50)),
    )
}

/// The most bytes that this process was resident with; `None` where the system does not tell.
pub fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn needs(memory: u64, builders: usize) -> Needs {
        let (threads, job, encoder, sent) = (256, 2 * MIB, 4 * MIB, 0);
        Needs { memory, threads, builders, job, encoder, sent, microshard_max: 64 * MIB }
    }

    /// Everything that may be held by what was divided, without what is left to the allocator.
    fn held(needs: &Needs, memory: &Memory) -> u64 {
        let builders = needs.builders as u64;
        let turn = if memory.decoded_beside < needs.microshard_max { needs.microshard_max } else { 0 };
        PROCESS
            + needs.threads as u64 * FETCHER
            + builders * MIB
            + DECODED_COPIES * (builders * memory.decoded_beside + turn)
            + memory.lanes as u64 * (needs.encoder + needs.sent)
            + memory.bodies
    }

    #[test]
    fn all_that_may_be_held_is_never_more_than_the_memory() {
        for builders in [1, 2, 3, 8, 64, 1024] {
            for memory in (8..16_384).step_by(41).map(|mib| mib * MIB) {
                let mut needs = needs(memory, builders);
                for (job, sent) in [(1, 0), (2 * MIB, 0), (300 * MIB, 0), (300 * MIB, 300 * MIB)] {
                    (needs.job, needs.sent) = (job, sent);
                    let Ok(divided) = Memory::divide(&needs) else { continue };
                    assert!(held(&needs, &divided) <= memory - memory / 8, "{needs:?} {divided:?}");
                    assert!(divided.bodies >= divided.lanes as u64 * job, "{needs:?} {divided:?}");
                }
            }
        }
    }

    #[test]
    fn the_default_gives_every_builder_a_lane_and_the_downloads_enough_of_them() {
        for (builders, lanes) in [(2, 6), (8, 12), (64, 68)] {
            assert_eq!(Memory::divide(&needs(2048 * MIB, builders)).unwrap().lanes, lanes);
        }
    }

    #[test]
    fn large_microshards_take_turns_only_where_not_every_builder_can_hold_one() {
        assert_eq!(Memory::divide(&needs(2048 * MIB, 2)).unwrap().decoded_beside, 64 * MIB);
        assert_eq!(Memory::divide(&needs(2048 * MIB, 64)).unwrap().decoded_beside, MIB + 512 * MIB / 64 / 3);
    }

    #[test]
    fn sizes_beyond_all_memory_are_refused_or_divided_and_overflow_nothing() {
        for memory in [0, 1, 2048 * MIB, u64::MAX] {
            for size in [0, 1, u64::MAX / 3, u64::MAX] {
                for builders in [1, 1024] {
                    let all = needs(memory, builders);
                    for needs in
                        [Needs { job: size, ..all }, Needs { sent: size, ..all }, Needs { microshard_max: size, ..all }]
                    {
                        if let Ok(divided) = Memory::divide(&needs) {
                            assert!(u128::from(divided.bodies) <= u128::from(memory), "{needs:?} {divided:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_said_to_be_enough_is_enough_and_not_much_less_is() {
        let refused = Memory::divide(&needs(100 * MIB, 2)).unwrap_err().to_string();
        let enough = refused.split("at least ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        let enough = crate::cli::bytes(&enough.replace(' ', "")).unwrap();
        assert!(Memory::divide(&needs(enough, 2)).is_ok(), "{refused}");
        assert!(Memory::divide(&needs(enough / 10 * 8, 2)).is_err(), "{refused}");
    }
}
