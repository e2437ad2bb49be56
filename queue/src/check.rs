//! Counts everything again and compares: the counters against the rows (I1). Slow on purpose; `verify` runs it.

use crate::error::{Named, Result};
use crate::file::Queue;

/// Counters that must equal what is counted from rows, and the sentence that says they don't.
const CHECKS: [(&str, &str); 6] = [
    (
        "the counters of shards differ from the shards",
        "SELECT count(*) FROM groups g WHERE (pending, waiting, claimed, published, failed, held, synced) IS NOT
           (SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE state = 2),
                   count(*) FILTER (WHERE state = 3), count(*) FILTER (WHERE state = 4), count(*) FILTER (WHERE state = 5),
                   count(synced_at) FROM shards s WHERE s.grp = g.grp)",
    ),
    (
        "the counters of microshards differ from the microshards",
        "SELECT count(*) FROM groups g WHERE (m_pending, m_claimed, m_published, m_held) IS NOT
           (SELECT coalesce(sum(members) FILTER (WHERE state < 2), 0), coalesce(sum(members) FILTER (WHERE state = 2), 0),
                   coalesce(sum(members) FILTER (WHERE state = 3), 0), coalesce(sum(members) FILTER (WHERE state = 5), 0)
            FROM shards s WHERE s.grp = g.grp)",
    ),
    (
        "the counters of failures differ from the failures",
        "SELECT count(*) FROM groups g WHERE m_failed <> (SELECT count(*) FROM exceptions e
           JOIN shards s ON s.shard = e.shard WHERE s.grp = g.grp AND e.state = 0)",
    ),
    (
        "shards count other microshards than they have",
        "SELECT count(*) FROM shards s WHERE members <> (SELECT count(*) FROM microshards m WHERE m.seq BETWEEN s.first AND s.last
           AND NOT EXISTS (SELECT 1 FROM exceptions e WHERE e.seq = m.seq))",
    ),
    (
        "microshards belong to no shard",
        "SELECT count(*) FROM microshards m WHERE m.seq <= (SELECT coalesce(max(last), 0) FROM shards) AND NOT EXISTS
           (SELECT 1 FROM (SELECT last FROM shards INDEXED BY shards_first WHERE first <= m.seq ORDER BY first DESC LIMIT 1)
            WHERE last >= m.seq)",
    ),
    (
        "shards overlap",
        "SELECT count(*) FROM (SELECT first, lag(last) OVER (ORDER BY first) AS before FROM shards) WHERE before >= first",
    ),
];

impl Queue {
    /// What is wrong with the queue's own books; empty where nothing is.
    pub fn check(&self) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        let damage: String =
            self.conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).named("check", &self.path)?;
        if damage != "ok" {
            wrong.push(format!("the file is damaged: {damage}"));
        }
        for (sentence, sql) in CHECKS {
            let count: i64 = self.conn.query_row(sql, [], |row| row.get(0)).named("check", &self.path)?;
            if count > 0 {
                wrong.push(format!("{sentence} ({count})"));
            }
        }
        Ok(wrong)
    }
}
