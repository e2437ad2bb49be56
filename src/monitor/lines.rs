//! A run without a terminal: a status line every ten seconds, and a line for each of the first failures. A closed pipe
//! ends the lines, never the run; a blocked one blocks the ticking thread only.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Event, Monitor, Progress};

/// Between two status lines.
const PERIOD: Duration = Duration::from_secs(10);

/// Writes status lines.
#[derive(Debug)]
pub struct Lines<W> {
    state: Mutex<State>,
    /// `None` once it was found closed. Taken after `state` was let go.
    to: Mutex<Option<W>>,
}

#[derive(Debug, Default)]
struct State {
    progress: Progress,
    /// When the last status line was written, or the run began.
    last: Option<Instant>,
}

impl<W: Write + Send> Lines<W> {
    /// Status lines into `to`.
    pub fn new(to: W) -> Lines<W> {
        Lines { state: Mutex::default(), to: Mutex::new(Some(to)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, lines: &[String]) {
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = to.as_mut() else { return };
        // In one write, so that nothing else on the same terminal comes between the words of a line.
        let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
        let written = open.write_all(text.as_bytes()).and_then(|()| open.flush());
        if written.is_err() {
            *to = None; // nobody reads it any more, and there is nobody else to tell
        }
    }
}

impl<W: Write + Send> Monitor for Lines<W> {
    fn event(&self, event: &Event) {
        let mut state = self.state();
        state.progress.add(event);
        if let Event::Finished { .. } = event {
            let lines = state.progress.take_untold();
            drop(state);
            self.write(&lines);
        }
    }

    fn tick(&self, now: Instant) {
        let mut state = self.state();
        state.progress.tick(now);
        let mut lines = state.progress.take_untold();
        let last = *state.last.get_or_insert(now);
        if now.saturating_duration_since(last) >= PERIOD {
            state.last = Some(now);
            lines.push(state.progress.line(now));
        }
        drop(state);
        if !lines.is_empty() {
            self.write(&lines);
        }
    }
}
