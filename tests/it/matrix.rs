//! Every step of a command, one after the other: the process dies there, or the operation that comes next is refused as a
//! disk refuses. Then the command is run again. Which steps there are is recorded from an undisturbed run, so that a new
//! one is tried without a word here.

use std::collections::BTreeMap;

use crate::world::World;

const SIGABRT: i32 = -6;
/// What a disk says: ENOSPC, EIO, EACCES.
const REFUSALS: [(i32, &str); 3] =
    [(28, "No space left on device"), (5, "Input/output error"), (13, "Permission denied")];

/// A command to disturb.
pub(crate) struct Matrix<'a> {
    /// A world, another each time, in which the command has all it needs.
    pub(crate) world: &'a dyn Fn() -> World,
    pub(crate) command: &'a str,
    /// How the command ends when nothing disturbs it.
    pub(crate) code: i32,
    /// Steps that other tests try.
    pub(crate) but: &'a dyn Fn(&str) -> bool,
    /// Is told of the undisturbed world first, then of every world in which the command was disturbed and run again.
    pub(crate) check: &'a dyn Fn(&World, &str),
}

/// A step of the undisturbed run: whether what comes next may be refused, and how often it was passed.
pub(crate) type Steps = BTreeMap<String, (bool, u32)>;

impl Matrix<'_> {
    /// Tries everything; the steps there are.
    pub(crate) fn run(&self) -> Steps {
        let world = (self.world)();
        world.run_with(self.command, "QUEUE_TEST_STEPS", "steps").ends(self.code);
        let steps = steps(&world);
        (self.check)(&world, "undisturbed");
        for (name, (is_refusable, times)) in steps.iter().filter(|(name, _)| !(self.but)(name)) {
            self.die(name, 1);
            if *times > 1 {
                self.die(name, *times);
            }
            for (errno, says) in REFUSALS.iter().filter(|_| *is_refusable) {
                self.refuse(name, *errno, says);
            }
        }
        steps
    }

    fn die(&self, name: &str, nth: u32) {
        let (world, why) = ((self.world)(), format!("`{}` died at step {nth} of `{name}`", self.command));
        let died = world.run_with(self.command, "QUEUE_TEST_FAULT", &format!("{name};{nth};die"));
        // How often a step is passed may depend on the moment; that it is passed does not.
        assert!(died.code == SIGABRT || nth > 1 && died.code == self.code, "{why}: {died:?}");
        self.again(&world, &why);
    }

    fn refuse(&self, name: &str, errno: i32, says: &str) {
        let (world, why) = ((self.world)(), format!("`{}` was refused `{name}`: {says}", self.command));
        let fault = format!("{name};1;{errno}");
        let refused = world.run_with(self.command, "QUEUE_TEST_FAULT", &fault);
        let told: Vec<&str> = refused.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        let [sentence] = told[..] else { panic!("{why}: {refused:?}") };
        assert_eq!(refused.code, 1, "{why}: {refused:?}");
        assert!(sentence.contains("failed to ") && sentence.contains(says), "{why}: {sentence}");
        let names_it = ["q.db", "out", "s3://data/", "microshards.csv"].iter().any(|object| sentence.contains(object));
        assert!(names_it, "{why}: {sentence}");
        self.again(&world, &why);
    }

    fn again(&self, world: &World, why: &str) {
        let ran = world.run(self.command);
        assert!(ran.code == self.code, "{why}; then: {ran:?}");
        (self.check)(world, why);
    }
}

/// What an undisturbed run noted.
fn steps(world: &World) -> Steps {
    let mut steps = Steps::new();
    for line in std::fs::read_to_string(world.path("steps")).unwrap().lines() {
        let (kind, name) = line.split_once(';').unwrap();
        steps.entry(name.to_owned()).or_insert((kind == "step", 0)).1 += 1;
    }
    assert!(!steps.is_empty());
    std::fs::remove_file(world.path("steps")).unwrap();
    steps
}
