//! `microshards.csv`: what became of every microshard of a listing, beside the shards. One line a microshard, streamed.
//! The listing itself is never written to.

use std::io::Write;

use anyhow::{Context, Result};

const TROUBLE: &str = "failed to write the temporary file of microshards.csv (TMPDIR says where)";

/// Writes the results of a listing's run: `microshard_id,status,shard_id,error`.
pub struct ResultsWriter<W: Write> {
    csv: csv::Writer<W>,
}

impl<W: Write> ResultsWriter<W> {
    /// Writes the header.
    pub fn create(to: W) -> Result<ResultsWriter<W>> {
        let mut results = ResultsWriter { csv: csv::Writer::from_writer(to) };
        results.line(["microshard_id", "status", "shard_id", "error"])?;
        Ok(results)
    }

    /// The microshard is in this shard.
    pub fn consumed(&mut self, microshard_id: i64, shard_id: &str) -> Result<()> {
        self.line([&microshard_id.to_string(), "consumed", shard_id, ""])
    }

    /// The microshard failed, and why.
    pub fn failed(&mut self, microshard_id: i64, sentence: &str) -> Result<()> {
        self.line([&microshard_id.to_string(), "failed", "", sentence])
    }

    /// Flushes, and gives the file back: it is not durable yet.
    pub fn finish(self) -> Result<W> {
        self.csv.into_inner().map_err(|error| error.into_error()).context(TROUBLE)
    }

    fn line(&mut self, fields: [&str; 4]) -> Result<()> {
        self.csv.write_record(fields).context(TROUBLE)
    }
}
