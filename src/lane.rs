//! A lane: permit, claim, job, finish, again. The only caller of `finish` (I5); it holds no lock while it works.

use std::time::Duration;

use microshard_queue::{Claimed, Finish, Finished, Job, Outcome, now_ms};

use crate::budget::Budget;
use crate::faults::passed;
use crate::fetch::Bodies;
use crate::job::{self, RunError, Tools};
use crate::monitor::{Event, Monitor};
use crate::park::Park;

/// What a lane needs besides a job's tools.
pub struct Lane<'a, 'run> {
    /// What its jobs work with.
    pub tools: Tools<'a>,
    /// Memory.
    pub budget: &'run Budget,
    /// Bytes a job is expected to need.
    pub job_bytes: u64,
    /// What deferred jobs have fetched.
    pub park: &'a Park<'run>,
    /// Who is told.
    pub monitor: &'a dyn Monitor,
}

/// Works jobs until none is left, or the run is told to stop.
pub fn run(lane: &Lane<'_, '_>) -> Result<(), RunError> {
    loop {
        let permit = lane.budget.acquire(lane.job_bytes, &|| lane.park.drop_oldest());
        passed("lane: claim");
        let job = match lane.tools.queue.claim()? {
            Claimed::Job(job) => job,
            Claimed::Drained | Claimed::Stopped => return Ok(()),
        };
        let mut bodies = match lane.park.take(job.lease.shard) {
            Some(parked) => parked.with(permit),
            None => Bodies::new(permit),
        };
        passed("lane: claimed");
        let worked = job::run(&job, &mut bodies, &lane.tools);
        let (finish, error) = match worked {
            Ok(finish) => (finish, None),
            Err(error) => (released(), Some(error)),
        };
        if matches!(finish.outcome, Outcome::Deferred { .. }) {
            bodies.settle();
            lane.park.put(job.lease.shard, bodies);
        }
        passed("lane: finish");
        let finished = lane.tools.queue.finish(job.lease.clone(), finish.clone())?;
        passed("lane: finished");
        tell(lane.monitor, &job, &finish, finished);
        if let Some(error) = error {
            return Err(error);
        }
    }
}

/// Trouble of the run is nobody's failure: the shard goes back as it was.
fn released() -> Finish {
    Finish { outcome: Outcome::Released, failures: Vec::new(), troubles: Vec::new() }
}

fn tell(monitor: &dyn Monitor, job: &Job, finish: &Finish, finished: Finished) {
    let (language, shard) = (job.language.clone(), job.name.clone());
    if finished == Finished::Lost {
        monitor.event(&Event::LeaseLost { language, shard });
        return;
    }
    for failure in &finish.failures {
        if let Some(member) = job.members.iter().find(|member| member.seq == failure.seq) {
            let (id, uri, sentence) = (member.microshard_id, member.uri.clone(), failure.sentence.clone());
            monitor.event(&Event::MicroshardFailed { id, uri, sentence });
        }
    }
    let failed = finish.failures.len() as u64;
    let microshards = job.members.len() as u64 - failed;
    match &finish.outcome {
        Outcome::Published(receipt) => {
            let (rows, bytes_in, bytes_out) = (receipt.rows, receipt.bytes_in, receipt.bytes_out);
            monitor.event(&Event::ShardPublished { language, shard, microshards, failed, rows, bytes_in, bytes_out });
        }
        Outcome::Deferred { until_ms, why, .. } => {
            let delay = Duration::from_millis((until_ms - now_ms()).max(0) as u64);
            monitor.event(&Event::ShardDeferred { language, shard, delay, why: why.clone() });
        }
        Outcome::Failed(why) => {
            let microshards = job.members.len() as u64;
            monitor.event(&Event::ShardFailed { language, shard, microshards, sentence: why.clone() });
        }
        Outcome::Held(why) => {
            monitor.event(&Event::ShardHeld { language, shard, microshards, failed, why: why.clone() });
        }
        Outcome::Released => {}
    }
}
