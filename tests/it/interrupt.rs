//! The two-step stop, on a real process: the first signal is only noticed, the second ends it with 130.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use compact_local::interrupt::Interrupt;
use rustix::process::{Pid, Signal, kill_process};

/// The process that is interrupted: says when it listens, and when it was asked to stop; then never stops.
#[test]
#[ignore = "started by the tests below"]
fn a_process_that_never_stops() {
    let mut out = std::io::stdout();
    let interrupt = Interrupt::install().expect("installs");
    writeln!(out, "\nlistening").expect("writes");
    while !interrupt.requested() {
        std::thread::yield_now();
    }
    writeln!(out, "requested").expect("writes");
    loop {
        std::thread::park();
    }
}

fn interrupted(signal: Signal) -> Option<i32> {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "interrupt::a_process_that_never_stops", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut said = BufReader::new(child.stdout.take().expect("piped")).lines();
    let pid = Pid::from_child(&child);
    for word in ["listening", "requested"] {
        assert!(said.by_ref().any(|line| line.expect("reads") == word), "it never said {word}");
        kill_process(pid, signal).expect("kills");
    }
    child.wait().expect("ends").code()
}

#[test]
fn the_first_ctrl_c_is_noticed_and_the_second_exits_with_130() {
    assert_eq!(interrupted(Signal::INT), Some(130));
}

#[test]
fn sigterm_stops_in_the_same_two_steps() {
    assert_eq!(interrupted(Signal::TERM), Some(130));
}
