//! The rows of the demo: segments of a transcript, one JSON object a line. Pure. A few are spelt as no JSON writer would
//! spell them, so that only a verbatim copy has the same bytes.

use std::io::Write;

use fastrand::Rng;

use super::text::Language;

/// Seconds of a video in one microshard.
pub(super) const MICROSHARD_SECONDS: f64 = 600.0;

/// The rows of one microshard, beginning at `start_s` of its video; `MICROSHARD_SECONDS` long.
pub(super) fn transcript(video: u64, language: &Language, rows: u64, start_s: f64, rng: &mut Rng) -> Vec<u8> {
    let mut body = Vec::with_capacity(rows as usize * 512);
    let step_s = MICROSHARD_SECONDS / rows.max(1) as f64;
    for row in 0..rows {
        let from_s = start_s + row as f64 * step_s + rng.f64() * 0.2 * step_s;
        let to_s = from_s + (0.3 + rng.f64() * 0.5) * step_s;
        push_row(&mut body, video, language, from_s, to_s, rng);
    }
    body
}

fn push_row(body: &mut Vec<u8>, video: u64, language: &Language, from_s: f64, to_s: f64, rng: &mut Rng) {
    let code = language.code;
    let (id, speaker) = (rng.u64(..), rng.u8(1..=4));
    // Spellings a parser would change if it wrote the row again: 1.50, 1e3, spaces, escapes.
    let colon = if rng.u8(..32) == 0 { " : " } else { ":" };
    print_to(body, format_args!(r#"{{"id"{colon}"seg-{id:016x}","video_id":"vid-{video:07}","language":"{code}""#));
    print_to(body, format_args!(r#","start":{from_s:.2},"end":{to_s:.2},"speaker":"S{speaker}","text":""#));
    for sentence in 0..rng.u8(1..=4) {
        if sentence > 0 {
            body.extend_from_slice(language.space().as_bytes());
        }
        language.sentence(rng, body);
    }
    body.extend_from_slice(
        match rng.u8(..64) {
            0 => r#" \"...\""#,
            1 => r"\n",
            2 => r" caf\u00e9",
            3 => r" \/ ",
            4 => r" \ud83d\ude00",
            5 => r"\t\\",
            _ => "",
        }
        .as_bytes(),
    );
    print_to(body, format_args!(r#"","avg_logprob":-0.{:04}"#, rng.u16(..10_000)));
    body.extend_from_slice(
        match rng.u8(..64) {
            0 => r#","gain":1.50"#,
            1 => r#","gain":1e3"#,
            2 => r#","gain":-0.0"#,
            3 => r#","gain":12345678901234567890"#,
            _ => "",
        }
        .as_bytes(),
    );
    push_tokens(body, rng);
    body.extend_from_slice(b"}\n");
}

/// Token numbers, as speech recognisers write them beside the text.
fn push_tokens(body: &mut Vec<u8>, rng: &mut Rng) {
    body.extend_from_slice(br#","tokens":["#);
    for token in 0..rng.u8(6..=22) {
        let comma = if token > 0 { "," } else { "" };
        print_to(body, format_args!("{comma}{}", rng.u16(..51_865)));
    }
    body.push(b']');
}

#[expect(clippy::expect_used, reason = "a Vec takes every byte")]
fn print_to(body: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    body.write_fmt(text).expect("a Vec takes every byte");
}
