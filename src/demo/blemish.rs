//! What is wrong with some microshards of the demo, and what is merely odd about others. Pure. Size and sha256 in the
//! manifest are those of the stored object where the fault is in its contents: else every fault would look like one.

/// What is wrong with a microshard on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The manifest names it, the origin does not have it.
    Missing,
    /// Its zstd frame ends in the middle; size and sha256 are those of the cut object.
    TruncatedZstd,
    /// One row less than the manifest's `segment_count`.
    RowsDiffer,
    /// Its last line ends in the middle of the JSON object.
    BrokenLastLine,
    /// A byte 0xFF inside a text.
    InvalidUtf8,
    /// Sound rows of the right size, but not those whose sha256 the manifest has.
    DigestDiffers,
}

impl Fault {
    /// All kinds, in the order in which they are spread.
    pub const ALL: [Fault; 6] = [
        Fault::Missing,
        Fault::TruncatedZstd,
        Fault::RowsDiffer,
        Fault::BrokenLastLine,
        Fault::InvalidUtf8,
        Fault::DigestDiffers,
    ];
}

/// What is unusual about a microshard, and must be repaired rather than refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Oddity {
    /// A UTF-8 byte order mark at the start.
    Bom,
    /// Lines end in `\r\n`.
    Crlf,
    /// Blank lines between the rows.
    BlankLines,
    /// No `\n` after the last row.
    NoFinalNewline,
    /// No rows at all.
    Empty,
    /// Two gzip members, the first ending in the middle of a row.
    MultiMemberGzip,
}

impl Oddity {
    /// All kinds, in the order in which they are spread.
    pub const ALL: [Oddity; 6] =
        [Oddity::Bom, Oddity::Crlf, Oddity::BlankLines, Oddity::NoFinalNewline, Oddity::Empty, Oddity::MultiMemberGzip];
}

/// Makes a sound body unusual.
pub(super) fn make_odd(oddity: Oddity, body: &mut Vec<u8>) {
    match oddity {
        Oddity::Bom => drop(body.splice(0..0, *b"\xEF\xBB\xBF")),
        Oddity::Crlf => *body = replaced_newlines(body, |_| b"\r\n"),
        Oddity::BlankLines => *body = replaced_newlines(body, |line| if line % 10 == 0 { b"\n\n\n" } else { b"\n" }),
        Oddity::NoFinalNewline => drop(body.pop()),
        // These two are made when the body is: without rows, and compressed in two halves.
        Oddity::Empty | Oddity::MultiMemberGzip => {}
    }
}

fn replaced_newlines(body: &[u8], newline: impl Fn(usize) -> &'static [u8]) -> Vec<u8> {
    let lines = body.split_inclusive(|byte| *byte == b'\n').enumerate();
    lines.flat_map(|(index, line)| [&line[..line.len() - 1], newline(index)]).flatten().copied().collect()
}

/// Makes a sound body faulty. It has 20 rows at least, so every place that is spoiled is there.
pub(super) fn spoil(fault: Fault, body: &mut Vec<u8>) {
    let last_line = memchr::memrchr(b'\n', &body[..body.len() - 1]).map_or(0, |newline| newline + 1);
    match fault {
        Fault::RowsDiffer => body.truncate(last_line),
        Fault::BrokenLastLine => body.truncate(last_line + (body.len() - last_line) / 2),
        Fault::InvalidUtf8 => {
            let text = find_after(body, body.len() / 2, b"\"text\":\"");
            body[text] = 0xFF;
        }
        Fault::DigestDiffers => {
            let start = find_after(body, 0, b"\"start\":");
            let decimal = find_after(body, start, b".");
            body[decimal] = b'0' + (body[decimal] - b'0' + 1) % 10;
        }
        // These two befall the object, not its body.
        Fault::Missing | Fault::TruncatedZstd => {}
    }
}

/// The offset just behind `what`, looked for from `from` on.
fn find_after(body: &[u8], from: usize, what: &[u8]) -> usize {
    memchr::memmem::find(&body[from..], what).map_or(0, |found| from + found + what.len())
}
