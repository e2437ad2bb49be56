//! The demo's generator: the same bytes from the same seed, a manifest that tells the truth about every sound microshard,
//! and faults that are what they are called.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use compact_local::demo::generate::{Fault, Generate, Generated, Oddity, generate};
use compact_local::demo::origin::Origin;
use compact_local::manifest::Selection;
use compact_local::manifest::listing::Listing;
use sha2::{Digest, Sha256};

const FAULTY: u64 = 12;

fn generated(dir: &Path, seed: u64) -> Generated {
    let plan = Generate { microshards: 700, seed, faulty: FAULTY, dir: dir.to_owned() };
    generate(&plan, &mut |_| ()).expect("generates")
}

/// One data set for all tests that only read it.
fn shared() -> &'static (PathBuf, Generated) {
    static SHARED: OnceLock<(PathBuf, Generated)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo-seed-1");
        if dir.exists() {
            fs::remove_dir_all(&dir).expect("removes the last test's data");
        }
        let generated = generated(&dir, 1);
        (dir, generated)
    })
}

/// Every file below `dir`, and its bytes.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(dir).expect("below").to_owned();
                files.insert(name, fs::read(path).expect("a file"));
            }
        }
    }
    files
}

struct Line {
    id: i64,
    language: String,
    uri: String,
    rows: usize,
    bytes: usize,
    sha256: String,
}

fn manifest(generated: &Generated) -> Vec<Line> {
    let mut csv = csv::Reader::from_path(&generated.manifest).expect("a manifest");
    let field = |record: &csv::StringRecord, at: usize| record[at].to_owned();
    csv.records()
        .map(|record| record.expect("a record"))
        .map(|record| Line {
            id: record[0].parse().expect("an id"),
            language: field(&record, 3),
            uri: field(&record, 4),
            rows: record[5].parse().expect("rows"),
            bytes: record[6].parse().expect("bytes"),
            sha256: field(&record, 7),
        })
        .collect()
}

fn decoded(uri: &str, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if uri.ends_with(".zst") {
        zstd::Decoder::new(bytes)?.read_to_end(&mut body)?;
    } else if uri.ends_with(".gz") {
        flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut body)?;
    } else {
        body.extend_from_slice(bytes);
    }
    Ok(body)
}

fn is_object(line: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line).is_ok()
}

/// The rows that a careful reader finds: no BOM, no blank lines.
fn rows(body: &[u8]) -> Vec<&[u8]> {
    let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    let lines = body.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(|line| !line.is_empty()).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let (one, first) = shared();
    let two = tempfile::tempdir().expect("a folder");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(7).build().expect("a pool");
    let second = pool.install(|| generated(two.path(), 1));
    assert_eq!((&first.faults, first.bytes), (&second.faults, second.bytes));
    assert!(tree(one) == tree(two.path()), "the trees differ");
}

#[test]
fn another_seed_gives_other_bytes() {
    let two = tempfile::tempdir().expect("a folder");
    generated(two.path(), 2);
    let contents = |dir: &Path| tree(dir).into_values().collect::<BTreeSet<_>>();
    let (one, two) = (contents(&shared().0), contents(two.path()));
    let both = one.intersection(&two).count();
    assert!(one.len() > 600 && both <= 3, "{both} are the same"); // an object without rows looks the same everywhere
}

#[test]
fn the_manifest_tells_the_truth_about_every_sound_and_every_odd_microshard() {
    let (dir, generated) = shared();
    let faulty: BTreeSet<i64> = generated.faults.iter().map(|(id, _)| *id).collect();
    let lines = manifest(generated);
    assert_eq!(lines.len(), 700);
    assert_eq!(lines.iter().map(|line| line.rows as u64).sum::<u64>(), generated.rows);
    let mut checked = 0;
    for line in lines.iter().filter(|line| !faulty.contains(&line.id)) {
        let bytes = fs::read(dir.join(&line.uri)).expect("the object is there");
        assert_eq!((bytes.len(), sha256(&bytes)), (line.bytes, line.sha256.clone()), "{}", line.uri);
        let body = decoded(&line.uri, &bytes).expect("it decodes");
        let rows = rows(&body);
        assert_eq!(rows.len(), line.rows, "{}", line.uri);
        assert!(rows.iter().all(|row| is_object(row)), "{}", line.uri);
        checked += 1;
    }
    assert_eq!(checked, 700 - FAULTY);
}

#[test]
fn the_manifest_is_a_listing_and_the_origin_serves_what_it_names() {
    let (dir, generated) = shared();
    let faulty: BTreeSet<i64> = generated.faults.iter().map(|(id, _)| *id).collect();
    let origin = Origin::start(dir).expect("starts");
    let agent = ureq::Agent::new_with_defaults();
    let listing = Listing::open(generated.manifest.to_str().expect("UTF-8")).expect("opens");
    let mut served = 0;
    let taken = listing.read(&Selection::default(), &mut |record| {
        let id = record.microshard_id.expect("an id");
        assert!(record.created_at.is_some() && record.run_id == generated.run_id);
        assert!(record.uri.starts_with(&format!("microshards/{}/", record.language)), "{}", record.uri);
        if !faulty.contains(&id) {
            let bytes = agent.get(format!("{}/{}", origin.url(), record.uri)).call()?.body_mut().read_to_vec()?;
            assert_eq!(record.sha256, Some(Sha256::digest(&bytes).into()), "{}", record.uri);
            served += 1;
        }
        Ok(())
    });
    assert_eq!((taken.expect("reads"), served), (700, 700 - FAULTY));
}

#[test]
fn twelve_languages_have_uneven_shares_and_every_encoding_is_there() {
    let lines = manifest(&shared().1);
    let count = |language: &str| lines.iter().filter(|line| line.language == language).count();
    assert_eq!(lines.iter().map(|line| &line.language).collect::<BTreeSet<_>>().len(), 12);
    assert!(count("en") > 3 * count("ko") && count("ko") > count("bn"));
    let plain = lines.iter().filter(|line| line.uri.ends_with(".jsonl")).count();
    let zstd = lines.iter().filter(|line| line.uri.ends_with(".jsonl.zst")).count();
    assert!(0 < plain && plain + zstd < lines.len() && zstd > 500);
}

#[test]
fn each_fault_is_what_it_is_called() {
    let (dir, generated) = shared();
    let lines: BTreeMap<i64, Line> = manifest(generated).into_iter().map(|line| (line.id, line)).collect();
    assert_eq!(generated.faults.len() as u64, FAULTY);
    assert_eq!(generated.faults.iter().map(|(_, fault)| fault).collect::<BTreeSet<_>>().len(), Fault::ALL.len());
    for (id, fault) in &generated.faults {
        let line = &lines[id];
        let stored = fs::read(dir.join(&line.uri));
        let Ok(bytes) = stored else {
            assert_eq!(*fault, Fault::Missing);
            continue;
        };
        // Size and digest must not give a fault of the contents away, or all of them would look like one.
        assert_eq!(bytes.len(), line.bytes, "{fault:?}");
        assert_eq!(sha256(&bytes) == line.sha256, *fault != Fault::DigestDiffers, "{fault:?}");
        let body = decoded(&line.uri, &bytes);
        assert_eq!(body.is_err(), *fault == Fault::TruncatedZstd, "{fault:?}");
        let Ok(body) = body else { continue };
        let rows = rows(&body);
        let sound = rows.iter().filter(|row| is_object(row)).count();
        assert_eq!(std::str::from_utf8(&body).is_err(), *fault == Fault::InvalidUtf8, "{fault:?}");
        match fault {
            Fault::RowsDiffer => assert_eq!((rows.len(), sound), (line.rows - 1, line.rows - 1)),
            Fault::BrokenLastLine => {
                assert_eq!((rows.len(), sound), (line.rows, line.rows - 1));
                assert!(!is_object(rows[rows.len() - 1]));
            }
            Fault::InvalidUtf8 => assert_eq!((rows.len(), sound), (line.rows, line.rows - 1)),
            Fault::DigestDiffers => assert_eq!((rows.len(), sound), (line.rows, line.rows)),
            Fault::Missing | Fault::TruncatedZstd => panic!("{fault:?} was not seen"),
        }
    }
}

#[test]
fn each_oddity_is_what_it_is_called() {
    let (dir, generated) = shared();
    let lines: BTreeMap<i64, Line> = manifest(generated).into_iter().map(|line| (line.id, line)).collect();
    let mut seen = BTreeSet::new();
    for (id, oddity) in &generated.oddities {
        let line = &lines[id];
        let bytes = fs::read(dir.join(&line.uri)).expect("the object is there");
        let body = decoded(&line.uri, &bytes).expect("it decodes");
        let found = match oddity {
            Oddity::Bom => body.starts_with(b"\xEF\xBB\xBF{"),
            Oddity::Crlf => memchr::memmem::find_iter(&body, b"}\r\n").count() == line.rows,
            Oddity::BlankLines => memchr::memmem::find(&body, b"\n\n").is_some(),
            Oddity::NoFinalNewline => body.ends_with(b"}"),
            Oddity::Empty => body.is_empty() && line.rows == 0,
            Oddity::MultiMemberGzip => {
                let mut first = Vec::new();
                flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut first).expect("a member");
                first.len() < body.len() && !first.ends_with(b"\n")
            }
        };
        assert!(found, "{oddity:?} {}", line.uri);
        seen.insert(*oddity);
    }
    assert_eq!(seen.len(), Oddity::ALL.len());
}

#[test]
fn rows_hold_spellings_that_only_verbatim_copying_keeps() {
    let files = tree(&shared().0.join("microshards"));
    let bodies = files.iter().filter_map(|(path, bytes)| decoded(path.to_str()?, bytes).ok());
    let all: Vec<u8> = bodies.flatten().collect();
    for spelling in [r#"\""#, r"\n", r"\u00e9", r"\/", r"\ud83d\ude00", "1.50", "1e3", r#"id" : ""#] {
        assert!(memchr::memmem::find(&all, spelling.as_bytes()).is_some(), "{spelling}");
    }
}

#[test]
fn a_second_generation_does_not_mix_with_the_first() {
    let (dir, _) = shared();
    let before = tree(dir);
    let again = Generate { microshards: 3, seed: 2, faulty: 0, dir: dir.clone() };
    let error = generate(&again, &mut |_| ()).expect_err("refused").to_string();
    assert!(error.contains("is there already: remove it"), "{error}");
    assert!(tree(dir) == before);
}

#[test]
fn any_number_may_be_faulty_but_not_more_than_there_are() {
    let progress = &mut |_| ();
    for (microshards, faulty) in [(0, 0), (1, 1), (7, 7), (30, 11)] {
        let dir = tempfile::tempdir().expect("a folder");
        let plan = Generate { microshards, seed: 1, faulty, dir: dir.path().to_owned() };
        let generated = generate(&plan, progress).expect("generates");
        assert_eq!((generated.microshards, generated.faults.len() as u64), (microshards, faulty));
    }
    let dir = tempfile::tempdir().expect("a folder");
    let plan = Generate { microshards: 7, seed: 1, faulty: 8, dir: dir.path().to_owned() };
    assert!(generate(&plan, progress).expect_err("refused").to_string().contains("lower --faulty"));
}
