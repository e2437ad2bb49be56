//! Decode, check, encode and splice, each alone and in memory, a shard's worth of microshards at a time. `parts.rs` tells what they
//! cost in CPU time over a whole data set; this is for work on one of them. Claims: `queue/benches/claims.rs`.
//!
//!     cargo bench --bench micro

use std::sync::LazyLock;

use compact_local::demo::generate::{Generate, generate};
use compact_local::format::{Decoder, Encoded, Frames, JsonlReader, Limits, RowReader, Rows};
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};

const LIMITS: Limits = Limits { bytes_max: 1 << 30, lenient: false };
/// Microshards of a shard: about 17,000 rows.
const PER_SHARD: u64 = 250;

/// Made once: the objects as an origin has them, and their rows.
static MICROSHARDS: LazyLock<Microshards> = LazyLock::new(Microshards::generate);

struct Microshards {
    objects: Vec<Vec<u8>>,
    texts: Vec<Vec<u8>>,
}

fn main() {
    divan::main();
}

#[divan::bench]
fn decode(bencher: Bencher) {
    let mut decoder = Decoder::default();
    MICROSHARDS.counted(bencher).bench_local(|| {
        for object in &MICROSHARDS.objects {
            divan::black_box(decoder.decode(divan::black_box(object), LIMITS).expect("decodes").text.len());
        }
    });
}

/// Of rows that are not compressed, which are copied once before.
#[divan::bench]
fn check(bencher: Bencher) {
    let mut reader = JsonlReader::default();
    MICROSHARDS.counted(bencher).bench_local(|| {
        for text in &MICROSHARDS.texts {
            divan::black_box(reader.read(divan::black_box(text), LIMITS).expect("is good").count());
        }
    });
}

#[divan::bench(args = [1, 3, 9])]
fn encode(bencher: Bencher, level: i32) {
    MICROSHARDS.counted(bencher).bench_local(|| {
        let mut writer = Frames::Single.writer(std::io::sink(), level).expect("creates");
        for text in &MICROSHARDS.texts {
            writer.append(0, Rows::Lines { text: divan::black_box(text), count: 1, encoded: None }).expect("encodes");
        }
        writer.finish().expect("encodes")
    });
}

/// Without the decoding and checking that a spliced microshard goes through as any other does.
#[divan::bench]
fn splice(bencher: Bencher) {
    let mut decoder = Decoder::default();
    let frames: Vec<_> = MICROSHARDS
        .objects
        .iter()
        .map(|object| decoder.decode(object, LIMITS).expect("decodes").frames.to_vec())
        .collect();
    MICROSHARDS.counted(bencher).bench_local(|| {
        let mut writer = Frames::Splice.writer(std::io::sink(), 3).expect("creates");
        for ((object, text), frames) in MICROSHARDS.objects.iter().zip(&MICROSHARDS.texts).zip(&frames) {
            let encoded = (!frames.is_empty()).then_some(Encoded { object, frames });
            writer.append(0, Rows::Lines { text: divan::black_box(text), count: 1, encoded }).expect("writes");
        }
        writer.finish().expect("writes")
    });
}

impl Microshards {
    fn generate() -> Microshards {
        let dir = tempfile::tempdir().expect("a directory");
        let plan = Generate { microshards: PER_SHARD, seed: 1, faulty: 0, dir: dir.path().to_owned() };
        let generated = generate(&plan, &mut |_| {}).expect("generates");
        let mut manifest = csv::Reader::from_path(generated.manifest).expect("opens");
        let uri = manifest.headers().expect("reads").iter().position(|column| column == "uri").expect("a column");
        let read = |line: csv::StringRecord| std::fs::read(dir.path().join(&line[uri])).expect("reads");
        let objects: Vec<_> = manifest.records().map(|line| read(line.expect("reads"))).collect();
        let mut reader = JsonlReader::default();
        let mut rows = |object: &Vec<u8>| {
            let Rows::Lines { text, .. } = reader.read(object, LIMITS).expect("is good");
            text.to_vec()
        };
        let texts = objects.iter().map(&mut rows).collect();
        Microshards { objects, texts }
    }

    /// Throughput in microshards and in bytes of rows.
    fn counted<'a, 'b>(&self, bencher: Bencher<'a, 'b>) -> Bencher<'a, 'b> {
        let bytes: usize = self.texts.iter().map(Vec::len).sum();
        bencher.counter(ItemsCount::new(self.objects.len())).counter(BytesCount::new(bytes))
    }
}
