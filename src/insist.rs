//! What is asked of the output outside of jobs, such as to take the index: as often and as long as a shard is put.

use anyhow::Result;

use crate::interrupt::Interrupt;
use crate::job::output_trouble;
use crate::patience::{Patience, Refusals};
use crate::store::StoreError;

/// Asks until it is given, the output is lost, or the run is told to stop. An error that does not pass is one at once.
pub fn insist<T>(patience: &Patience, interrupt: &Interrupt, ask: &mut dyn FnMut() -> Result<T>) -> Result<T> {
    let refusals = Refusals::default();
    loop {
        let error = match ask() {
            Ok(given) => return Ok(given),
            Err(error) => error,
        };
        if !error.downcast_ref().is_some_and(|error: &StoreError| error.trouble.is_passing()) {
            return Err(error);
        }
        let error: StoreError = error.downcast()?;
        let (count, refused_for) = refusals.count();
        if patience.output_is_lost(count, refused_for) || interrupt.requested() {
            return Err(output_trouble(error).into());
        }
        interrupt.wait(patience.deferral_after(count - 1, error.trouble));
    }
}
