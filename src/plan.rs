//! Which microshards make which shard: pure, deterministic, a function of the snapshot alone (I3). A microshard is never
//! split; a shard never exceeds a limit, unless a single microshard does. Sizes are read in passes, so a plan of ten
//! million microshards needs no memory for them (I8).

use microshard_queue::{Cut, GroupTotals, Planner, Result, Size, SizesPass};

/// How many numbers of shards are tried before shards are filled instead: each costs a pass over the group.
const TRIES: usize = 16;

/// What happens to the rest that does not fill a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remainder {
    /// The shards of one language are as even as whole microshards allow.
    Spread,
    /// Fill every shard to the target; the last one is short.
    Emit,
    /// Keep the remainder back for a later snapshot.
    Hold,
}

/// How shards are cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Rows a shard holds at most.
    pub rows_max: u64,
    /// Input bytes a shard holds at most.
    pub bytes_max: Option<u64>,
    /// Microshards a shard holds at most.
    pub microshards_max: Option<u64>,
    /// What happens to the rest.
    pub remainder: Remainder,
}

/// Rows, bytes and number of microshards: what a limit is set on, or what a shard has so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Measure {
    rows: u64,
    bytes: u64,
    microshards: u64,
}

impl Measure {
    fn add(&mut self, size: Size) {
        self.rows += size.rows;
        self.bytes = self.bytes.saturating_add(size.bytes);
        self.microshards += 1;
    }

    /// Which of `limits` this measure exceeds.
    fn over(&self, limits: &Measure) -> Option<&'static str> {
        if self.rows > limits.rows {
            Some("rows")
        } else if self.bytes > limits.bytes {
            Some("bytes")
        } else if self.microshards > limits.microshards {
            Some("microshards")
        } else {
            None
        }
    }

    /// How many shards this needs at least, were microshards divisible.
    fn shards(&self, limits: &Measure) -> u64 {
        self.rows
            .div_ceil(limits.rows)
            .max(self.bytes.div_ceil(limits.bytes))
            .max(self.microshards.div_ceil(limits.microshards))
            .max(1)
    }

    fn of(&self, scarce: Scarce) -> u128 {
        u128::from(match scarce {
            Scarce::Rows => self.rows,
            Scarce::Bytes => self.bytes,
            Scarce::Microshards => self.microshards,
        })
    }
}

/// The measure that decides how many shards there are, and by which they are made even.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scarce {
    Rows,
    Bytes,
    Microshards,
}

impl Planner for Policy {
    fn cut(&self, group: &GroupTotals, sizes: &mut SizesPass<'_>) -> Result<Vec<Cut>> {
        self.check(group)?;
        match self.remainder {
            Remainder::Spread => self.spread(group, sizes),
            Remainder::Emit => self.fill(sizes, false),
            Remainder::Hold => self.fill(sizes, true),
        }
    }
}

impl Policy {
    fn limits(&self) -> Measure {
        Measure {
            rows: self.rows_max,
            bytes: self.bytes_max.unwrap_or(u64::MAX),
            microshards: self.microshards_max.unwrap_or(u64::MAX),
        }
    }

    /// A limit on something the manifest does not count would be no limit at all.
    fn check(&self, group: &GroupTotals) -> Result<()> {
        let error = |what: &str, advice: &str| {
            let sentence = format!("the manifest lacks {what} for language {}: {advice}", group.language);
            Err(microshard_queue::Error::Input(sentence))
        };
        if group.bytes.is_none() && self.bytes_max.is_some() {
            return error("byte sizes", "leave --shard-bytes out, or give --shard-microshards instead");
        }
        if group.rows.is_none() && self.bytes_max.is_none() && self.microshards_max.is_none() {
            return error("row counts", "give --shard-microshards (250 makes shards of some 17,000 rows of 69 each)");
        }
        Ok(())
    }

    /// Fills every shard to a limit; `hold` keeps the last one back, as it is not full.
    fn fill(&self, sizes: &mut SizesPass<'_>, hold: bool) -> Result<Vec<Cut>> {
        let limits = self.limits();
        let mut cuts = Vec::new();
        let mut open = Measure::default();
        sizes(&mut |size| {
            let mut grown = open;
            grown.add(size);
            match grown.over(&limits) {
                Some(closed_by) if open.microshards > 0 => {
                    cuts.push(Cut { microshards: open.microshards, held: false, closed_by });
                    open = Measure::default();
                    open.add(size);
                }
                _ => open = grown,
            }
        })?;
        if open.microshards > 0 {
            let full = open.rows == limits.rows || open.bytes == limits.bytes || open.microshards == limits.microshards;
            cuts.push(Cut { microshards: open.microshards, held: hold && !full, closed_by: "end" });
        }
        Ok(cuts)
    }

    /// As even as whole microshards allow, in as few shards as that takes: at most one, and one in a hundred, more than
    /// filling them takes.
    fn spread(&self, group: &GroupTotals, sizes: &mut SizesPass<'_>) -> Result<Vec<Cut>> {
        let limits = self.limits();
        let total =
            Measure { rows: group.rows.unwrap_or(0), bytes: group.bytes.unwrap_or(0), microshards: group.microshards };
        // Full shards leave no room for borders that are off by half a microshard: many need a few more to be even.
        let filled = self.fill(sizes, false)?;
        let (fewest, most) = (total.shards(&limits), filled.len() as u64);
        let scarce = scarce(&total, &limits);
        for shards in (fewest..=most + most / 100 + 1).take(TRIES) {
            if let Some(cuts) = even(&total, &limits, shards, scarce, sizes)? {
                return Ok(cuts);
            }
        }
        Ok(filled)
    }
}

fn scarce(total: &Measure, limits: &Measure) -> Scarce {
    let shards = total.shards(limits);
    if total.rows.div_ceil(limits.rows) == shards && total.rows > 0 {
        Scarce::Rows
    } else if total.bytes.div_ceil(limits.bytes) == shards && total.bytes > 0 {
        Scarce::Bytes
    } else {
        Scarce::Microshards
    }
}

/// Cuts into `shards` of nearly the same size; `None` where one of them would exceed a limit.
fn even(
    total: &Measure,
    limits: &Measure,
    shards: u64,
    scarce: Scarce,
    sizes: &mut SizesPass<'_>,
) -> Result<Option<Vec<Cut>>> {
    let mut cuts: Vec<Cut> = Vec::new();
    let mut fits = true;
    let (mut seen, mut open) = (Measure::default(), Measure::default());
    sizes(&mut |size| {
        let before = seen.of(scarce);
        seen.add(size);
        // A border goes where the microshard's middle crosses it: that is the nearest place for it.
        let middle_twice = (before + seen.of(scarce)) * u128::from(shards);
        let border_twice = 2 * (cuts.len() as u128 + 1) * total.of(scarce);
        if middle_twice > border_twice && open.microshards > 0 {
            cuts.push(Cut { microshards: open.microshards, held: false, closed_by: "spread" });
            open = Measure::default();
        }
        open.add(size);
        fits &= open.microshards == 1 || open.over(limits).is_none();
    })?;
    if open.microshards > 0 {
        cuts.push(Cut { microshards: open.microshards, held: false, closed_by: "end" });
    }
    Ok(fits.then_some(cuts))
}
