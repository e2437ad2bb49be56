//! The two-step stop. The first Ctrl-C (or SIGTERM) only sets a flag that lanes look at between phases; the second ends the
//! process at once: what it was doing is repeated at the next start (I4), so nothing is lost.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// How often a wait looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// The exit code of an interrupted process.
pub const EXIT_CODE: i32 = 130;

/// Whether the run was asked to stop.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    requested: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens for SIGINT and SIGTERM from now on; once per process. `Interrupt::default()` listens for nothing.
    pub fn install() -> io::Result<Interrupt> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the exit must see the flag before this very signal has set it.
            flag::register_conditional_shutdown(signal, EXIT_CODE, Arc::clone(&interrupt.requested))?;
            flag::register(signal, Arc::clone(&interrupt.requested))?;
        }
        Ok(interrupt)
    }

    /// Asks for the stop as the first signal does.
    pub fn request(&self) {
        self.requested.store(true, Ordering::SeqCst);
    }

    /// Waits for so long, or until it is requested.
    pub fn wait(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.requested() && Instant::now() < until {
            thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
        }
    }

    /// Whether to claim no more, and to finish or release at the next phase boundary.
    pub fn requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }
}
