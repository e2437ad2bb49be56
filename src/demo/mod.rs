//! What the demo needs besides the pipeline: microshards made from a seed, and a loopback origin that serves them.
//! Nothing here is used by the pipeline itself. The same seed gives the same bytes, whatever the number of threads.

pub mod generate;
pub mod origin;

mod blemish;
mod microshard;
mod row;
mod text;
