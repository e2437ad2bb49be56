//! What an origin is asked: how many requests at a time (AIMD with slow start), how many a second (`Pace`), and when not at
//! all, because it asked to be left alone. Pure: it knows no clock, times are since any fixed moment.

use std::time::Duration;

use super::pace::Pace;

/// Where slow start begins.
const START: usize = 16;

/// An origin that asks for less is left alone so long at least, for what is on its way to come back; twice as long each time
/// that it served nothing since, up to the longest.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// How much may be asked, and why it changes.
#[derive(Debug, Clone)]
pub struct Limit {
    in_flight: usize,
    max: usize,
    good_answers: usize,
    /// Below it the number in flight doubles, from it on it grows by one.
    slow_start_until: usize,
    pace: Pace,
    paused_until: Duration,
    lowered: u64,
    /// Pleas since the last good answer.
    vain_pleas: u32,
}

impl Limit {
    /// Never more than `max` requests (at least 1) in flight, nor than `ceiling` a second.
    pub fn new(max: usize, ceiling: Option<f64>) -> Limit {
        let max = max.max(1);
        Limit {
            in_flight: START.min(max),
            max,
            good_answers: 0,
            slow_start_until: max,
            pace: Pace::new(ceiling),
            paused_until: Duration::ZERO,
            lowered: 0,
            vain_pleas: 0,
        }
    }

    /// Requests that may be in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether the pace is what it is because the origin asked for less.
    pub fn is_asked_for(&self) -> bool {
        self.pace.is_asked_for()
    }

    /// Requests a second; `None` without bound.
    pub fn pace(&self) -> Option<f64> {
        self.pace.now()
    }

    /// Until when the origin is left alone; it may be past.
    pub fn paused_until(&self) -> Duration {
        self.paused_until
    }

    /// How often it was lowered. Requests carry this number: what comes back with an older one says nothing new.
    pub fn lowered(&self) -> u64 {
        self.lowered
    }

    /// When the next request may be sent, as far as time goes; it may be past.
    pub fn due(&self) -> Duration {
        self.paused_until.max(self.pace.due())
    }

    /// A request is sent at `now`.
    pub fn sent(&mut self, now: Duration) {
        self.pace.sent(now);
    }

    /// How long a request that comes at `now` will wait for its time, with so many `ahead` of it.
    pub fn wait(&self, now: Duration, ahead: usize) -> Duration {
        let line = self.pace.now().map_or(Duration::ZERO, |pace| Duration::from_secs_f64(ahead as f64 / pace));
        self.due().saturating_sub(now) + line
    }

    /// A good answer at `now`: a limit's worth of them doubles the number in flight in slow start, later adds one.
    pub fn good(&mut self, now: Duration) {
        self.vain_pleas = 0;
        self.pace.good(now);
        self.good_answers += 1;
        if self.good_answers >= self.in_flight {
            self.good_answers = 0;
            let slow = (self.in_flight * 2).min(self.slow_start_until);
            self.in_flight = slow.max(self.in_flight + 1).min(self.max);
        }
    }

    /// Trouble that is not a plea for less, as a reset is: growth goes on with care.
    pub fn trouble(&mut self) {
        self.slow_start_until = self.slow_start_until.min(self.in_flight);
    }

    /// Nothing came in time: fewer at a time, at any pace.
    pub fn timed_out(&mut self, lowered_when_sent: u64) {
        if lowered_when_sent == self.lowered {
            self.lowered += 1;
            self.slow_start_until = self.in_flight;
            self.halve();
        }
    }

    /// The origin asked for less at `now`, and to be left alone for `pause`.
    pub fn throttled(&mut self, lowered_when_sent: u64, now: Duration, pause: Duration) {
        self.paused_until = self.paused_until.max(now + pause);
        if lowered_when_sent < self.lowered {
            return;
        }
        self.lowered += 1;
        let pause = (PAUSE * (1 << self.vain_pleas.min(5))).min(PAUSE_MAX);
        self.vain_pleas += 1;
        self.paused_until = self.paused_until.max(now + pause);
        self.halve();
        self.pace.lower(now, self.paused_until);
    }

    fn halve(&mut self) {
        self.good_answers = 0;
        self.in_flight = (self.in_flight / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;

    const MAX: usize = 100;
    const NOW: Duration = Duration::ZERO;
    const RATE: f64 = 500.0;

    fn answer_well(limit: &mut Limit, times: usize) {
        for _ in 0..times {
            limit.good(NOW);
        }
    }

    #[test]
    fn good_answers_double_the_limit_up_to_its_maximum() {
        let mut limit = Limit::new(MAX, None);
        let mut seen = vec![limit.in_flight()];
        for _ in 0..4 {
            let now = limit.in_flight();
            answer_well(&mut limit, now);
            seen.push(limit.in_flight());
        }
        assert_eq!(seen, [16, 32, 64, 100, 100]);
    }

    #[test]
    fn a_plea_for_less_halves_once_however_many_were_in_flight() {
        let mut limit = Limit::new(16, None);
        for _ in 0..3 {
            limit.throttled(0, NOW, NOW);
        }
        assert_eq!((limit.in_flight(), limit.lowered()), (8, 1));
        limit.throttled(1, NOW, NOW);
        assert_eq!((limit.in_flight(), limit.lowered()), (4, 2));
    }

    #[test]
    fn the_limit_never_falls_under_one() {
        let mut limit = Limit::new(4, None);
        for lowered in 0..9 {
            limit.timed_out(lowered);
        }
        assert_eq!(limit.in_flight(), 1);
        limit.good(NOW);
        assert_eq!(limit.in_flight(), 2);
    }

    #[test]
    fn after_a_timeout_the_limit_doubles_to_where_it_was_and_then_grows_by_one() {
        let mut limit = Limit::new(MAX, None);
        limit.timed_out(0);
        answer_well(&mut limit, 8);
        assert_eq!(limit.in_flight(), 16);
        answer_well(&mut limit, 16);
        assert_eq!(limit.in_flight(), 17);
    }

    #[test]
    fn a_reset_ends_slow_start_and_lowers_nothing() {
        let mut limit = Limit::new(MAX, None);
        limit.trouble();
        assert_eq!(limit.in_flight(), 16);
        answer_well(&mut limit, 16);
        assert_eq!(limit.in_flight(), 17);
    }

    #[test]
    fn everybody_leaves_an_origin_alone_as_long_as_it_asked() {
        let mut limit = Limit::new(MAX, None);
        let second = Duration::from_secs(1);
        limit.throttled(0, NOW, 10 * second);
        // A plea of a request that was on its way counts too.
        limit.throttled(0, second, 20 * second);
        assert_eq!((limit.due(), limit.wait(second, 0)), (21 * second, 20 * second));
    }

    /// An origin that serves so many a second, and what it makes of a request at a time.
    trait Simulated {
        fn serves(&mut self, at: Duration) -> bool;
    }

    /// A token bucket.
    struct Bucket {
        tokens: f64,
        at: Duration,
    }

    impl Simulated for Bucket {
        fn serves(&mut self, at: Duration) -> bool {
            self.tokens = (self.tokens + (at - self.at).as_secs_f64() * RATE).min(50.0);
            self.at = at;
            let serves = self.tokens >= 1.0;
            self.tokens -= f64::from(u8::from(serves));
            serves
        }
    }

    /// So many in each second of the clock.
    #[derive(Default)]
    struct Window {
        second: u64,
        served: u64,
    }

    impl Simulated for Window {
        fn serves(&mut self, at: Duration) -> bool {
            if at.as_secs() > self.second {
                *self = Window { second: at.as_secs(), served: 0 };
            }
            self.served += 1;
            self.served as f64 <= RATE
        }
    }

    /// Asks as much as the limit allows for so many seconds; good and refused answers, as they come.
    fn simulate(
        origin: &mut dyn Simulated,
        latency: Duration,
        retry_after: Duration,
        seconds: u64,
    ) -> Vec<(Duration, bool)> {
        let end = Duration::from_secs(seconds);
        let mut limit = Limit::new(256, None);
        // What is on its way: when it is answered, how often the limit had been lowered when it was sent, and whether well.
        let mut on_its_way: BinaryHeap<Reverse<(Duration, u64, bool)>> = BinaryHeap::new();
        let (mut now, mut answers) = (NOW, Vec::new());
        while now < end {
            let may_send = on_its_way.len() < limit.in_flight();
            if may_send && limit.due() <= now {
                limit.sent(now);
                on_its_way.push(Reverse((now + latency, limit.lowered(), origin.serves(now))));
                continue;
            }
            let answered_at = on_its_way.peek().map(|Reverse((at, ..))| *at);
            if may_send && answered_at.is_none_or(|at| limit.due() < at) {
                now = limit.due();
                continue;
            }
            let Some(Reverse((at, lowered, is_good))) = on_its_way.pop() else { break };
            now = at;
            answers.push((now, is_good));
            if is_good { limit.good(now) } else { limit.throttled(lowered, now, retry_after) }
        }
        answers
    }

    /// The share of answers that were refusals, and good answers a second, from a moment on.
    fn figures(answers: &[(Duration, bool)], from: u64, to: u64) -> (f64, f64) {
        let within = |at: &Duration| (from..to).contains(&at.as_secs());
        let good = answers.iter().filter(|(at, good)| *good && within(at)).count() as f64;
        let all = answers.iter().filter(|(at, _)| within(at)).count() as f64;
        (1.0 - good / all, good / (to - from) as f64)
    }

    #[test]
    fn an_origin_that_serves_500_a_second_is_asked_hardly_more_and_hardly_less() {
        for (millis, retry_after) in [1, 5, 30, 100, 200].into_iter().flat_map(|millis| [(millis, 1000), (millis, 0)]) {
            let (latency, retry_after) = (Duration::from_millis(millis), Duration::from_millis(retry_after));
            let origins: [(&str, &mut dyn Simulated); 2] =
                [("bucket", &mut Bucket { tokens: 50.0, at: NOW }), ("window", &mut Window::default())];
            for (name, origin) in origins {
                let answers = simulate(origin, latency, retry_after, 120);
                let (refused, rate) = figures(&answers, 0, 120);
                assert!(refused < 0.05 && rate >= 0.85 * RATE, "{name} {millis} ms: {refused:.3} refused, {rate:.0}/s");
            }
        }
    }

    /// Serves at one rate, and from a moment on at another.
    struct Changing(Bucket, Duration, f64);

    impl Simulated for Changing {
        fn serves(&mut self, at: Duration) -> bool {
            let Changing(bucket, from, rate) = self;
            let since = (at - bucket.at).as_secs_f64();
            // The bucket itself fills at `RATE`.
            let share = if at >= *from { *rate / RATE } else { 1.0 };
            bucket.tokens += since * RATE * (share - 1.0);
            bucket.serves(at)
        }
    }

    #[test]
    fn an_origin_that_comes_to_serve_more_or_less_is_asked_for_that() {
        let second = Duration::from_secs(1);
        for (rate, enough) in [(100.0, 70.0), (2000.0, 1500.0)] {
            let mut origin = Changing(Bucket { tokens: 50.0, at: NOW }, 30 * second, rate);
            let answers = simulate(&mut origin, second / 100, second, 150);
            let (refused, served) = figures(&answers, 120, 150);
            assert!(served >= enough && refused < 0.05, "{rate}: {served:.0}/s, {refused:.3} refused");
        }
    }

    /// Serves nothing for a while.
    struct Outage(Bucket);

    impl Simulated for Outage {
        fn serves(&mut self, at: Duration) -> bool {
            let serves = self.0.serves(at);
            serves && !(30..60).contains(&at.as_secs())
        }
    }

    #[test]
    fn an_outage_is_waited_for_with_few_requests_and_says_nothing_of_the_pace_after_it() {
        for retry_after in [Duration::ZERO, Duration::from_secs(1)] {
            let answers =
                simulate(&mut Outage(Bucket { tokens: 50.0, at: NOW }), Duration::from_millis(10), retry_after, 120);
            let asked = answers.iter().filter(|(at, _)| (31..60).contains(&at.as_secs())).count();
            let (_, served) = figures(&answers, 75, 120);
            assert!(asked < 600 && served >= 0.7 * RATE, "{asked} asked in vain, then {served:.0}/s");
        }
    }
}
