//! A run on a terminal: one bar for all, one for each language, failures as lines above them. Never a bar a thread.
//! Everything is drawn by `tick`, so a stopped terminal stops no lane. Lines are printed by `println`, not by `suspend`:
//! that one panics when the terminal is gone.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::progress::LanguageProgress;
use super::{Event, Monitor, Progress};
use crate::shown::one_line;

/// Languages with a bar of their own, those with most microshards; the first bar counts all.
const LANGUAGES_SHOWN: usize = 16;

/// Draws bars.
#[derive(Debug)]
pub struct Bars {
    progress: Mutex<Progress>,
    /// Taken after `progress` was let go.
    drawn: Mutex<Drawn>,
}

#[derive(Debug)]
struct Drawn {
    screen: MultiProgress,
    all: ProgressBar,
    languages: BTreeMap<String, ProgressBar>,
}

impl Bars {
    /// Bars on `target`.
    pub fn new(target: ProgressDrawTarget) -> Bars {
        let screen = MultiProgress::with_draw_target(target);
        let all = screen.add(bar("all", "{prefix:10} [{bar:30}] {msg}"));
        let drawn = Drawn { screen, all, languages: BTreeMap::new() };
        Bars { progress: Mutex::default(), drawn: Mutex::new(drawn) }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drawn(&self) -> MutexGuard<'_, Drawn> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Monitor for Bars {
    fn event(&self, event: &Event) {
        let mut progress = self.progress();
        progress.add(event);
        if let Event::Finished { .. } = event {
            let (lines, languages) = (progress.take_untold(), progress.languages.clone());
            let (planned, ended) = (progress.totals.planned.microshards, progress.totals.ended());
            drop(progress);
            let mut drawn = self.drawn();
            drawn.print(&lines);
            drawn.show(&languages, LanguageProgress { planned, ended });
            drawn.leave();
        }
    }

    fn tick(&self, now: Instant) {
        let mut progress = self.progress();
        progress.tick(now);
        let (lines, languages, message) = (progress.take_untold(), progress.languages.clone(), progress.line(now));
        let (planned, ended) = (progress.totals.planned.microshards, progress.totals.ended());
        drop(progress);
        let mut drawn = self.drawn();
        drawn.print(&lines);
        drawn.show(&languages, LanguageProgress { planned, ended });
        drawn.all.set_message(message);
    }
}

impl Drawn {
    fn print(&self, lines: &[String]) {
        for line in lines {
            let _ = self.screen.println(line); // the terminal is gone; there is nobody else to tell
        }
    }

    fn show(&mut self, languages: &BTreeMap<String, LanguageProgress>, all: LanguageProgress) {
        if self.languages.is_empty() {
            self.add(languages);
        }
        let named = self.languages.iter().filter_map(|(language, bar)| Some((bar, *languages.get(language)?)));
        for (bar, progress) in named.chain([(&self.all, all)]) {
            bar.set_length(progress.planned);
            bar.set_position(progress.ended);
        }
    }

    fn add(&mut self, languages: &BTreeMap<String, LanguageProgress>) {
        let mut largest: Vec<(&String, u64)> =
            languages.iter().map(|(language, progress)| (language, progress.planned)).collect();
        largest.sort_by_key(|(_, planned)| std::cmp::Reverse(*planned)); // stable: equal ones stay in order
        for (language, _) in largest.into_iter().take(LANGUAGES_SHOWN) {
            let bar = bar(&one_line(language), "{prefix:10} [{bar:30}] {human_pos}/{human_len}");
            self.languages.insert(language.clone(), self.screen.add(bar));
        }
    }

    /// Leaves the bars as they stand: a run that was stopped shows how far it came.
    fn leave(&self) {
        self.languages.values().chain([&self.all]).for_each(ProgressBar::abandon);
    }
}

#[expect(clippy::expect_used, reason = "the templates are those of this file, and every one is drawn by its tests")]
fn bar(name: &str, template: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the templates of this file are well formed");
    ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden())
        .with_style(style.progress_chars("=> "))
        .with_prefix(name.to_owned())
}
