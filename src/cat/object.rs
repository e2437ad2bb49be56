//! One object, read in parts as a user waits: passing trouble is tried again, from where reading had come; all parts are
//! of the version that the first one was of, or reading ends with an error.

use std::io::{self, Read};
use std::ops::Range;

use crate::patience::Patience;
use crate::shown::shown_uri;
use crate::store::{self, ObjectStore, Part, RangeOptions, Result, StoreError, Trouble, Version};

/// A smaller object is taken whole where its server knows no ranges.
const WHOLE_MAX: u64 = 4 << 20;

/// An object that is being read.
pub struct Object<'a> {
    store: &'a dyn ObjectStore,
    key: &'a str,
    patience: &'a Patience,
    notice: &'a dyn Fn(&str),
    version: Option<Version>,
    /// Where `tail` begins, which holds the end of the object or all of it.
    tail_offset: u64,
    tail: Option<Vec<u8>>,
    comes_whole: bool,
}

/// What was answered to whom asked for the end.
enum End {
    /// Where it begins, and all of it.
    Bytes(u64, Vec<u8>),
    /// The whole object would come, of this size where it is known.
    RangesIgnored(Option<u64>),
}

impl<'a> Object<'a> {
    /// Asks for nothing yet. `notice` is told what is waited for, and what works but badly.
    pub fn new(
        store: &'a dyn ObjectStore,
        key: &'a str,
        patience: &'a Patience,
        notice: &'a dyn Fn(&str),
    ) -> Object<'a> {
        Object { store, key, patience, notice, version: None, tail_offset: 0, tail: None, comes_whole: false }
    }

    /// Its size, once a part of it was read.
    pub fn bytes(&self) -> Option<u64> {
        self.version.as_ref()?.bytes
    }

    /// Whether its server knows no ranges, and it is not small: what is not wanted of it is read, too.
    pub fn comes_whole(&self) -> bool {
        self.comes_whole
    }

    /// The last `bytes` of it, or all where there are fewer, kept for what is read later; `None` where its server knows no
    /// ranges and it is not small.
    pub fn tail(&mut self, bytes: u64) -> Result<Option<&[u8]>> {
        let mut end = self.end(store::Range::Last(bytes))?;
        // Some stores know ranges, but none that count from the end.
        if let End::RangesIgnored(Some(size)) = end {
            end = self.end(store::Range::At { offset: size.saturating_sub(bytes), bytes: bytes.min(size) })?;
        }
        match end {
            End::Bytes(offset, tail) => (self.tail_offset, self.tail) = (offset, Some(tail)),
            End::RangesIgnored(_) => self.comes_whole = true,
        }
        Ok(self.tail.as_deref())
    }

    fn end(&mut self, range: store::Range) -> Result<End> {
        let (version, end) = self.patiently(|fresh| {
            let Part { version, offset, mut body } = self.open(range, fresh)?;
            let size = version.bytes;
            let asked = size.and_then(|size| range.within(size)).map(|(offset, _)| offset);
            let Some(size) = size.filter(|size| asked == Some(offset) || *size <= WHOLE_MAX) else {
                return Ok((version, End::RangesIgnored(size)));
            };
            let mut bytes = Vec::new();
            (&mut body).take(size - offset).read_to_end(&mut bytes).map_err(|error| self.store_error(error))?;
            Ok((version, End::Bytes(offset, bytes)))
        })?;
        self.version.get_or_insert(version);
        Ok(end)
    }

    /// Reads these bytes, which must be there, in one request unless they are in the tail.
    pub fn read(&self, bytes: Range<u64>) -> Box<dyn Read + '_> {
        match self.in_tail(&bytes) {
            Some(bytes) => Box::new(bytes),
            None => {
                Box::new(ObjectReader { object: self, at: bytes.start, end: Some(bytes.end), body: None, tries: 0 })
            }
        }
    }

    /// Reads all of it.
    pub fn read_whole(&self) -> Box<dyn Read + '_> {
        if self.comes_whole {
            (self.notice)("the server ignores ranges: reading the shard from its start");
        }
        match &self.tail {
            Some(tail) if self.tail_offset == 0 => Box::new(&tail[..]),
            _ => Box::new(ObjectReader { object: self, at: 0, end: None, body: None, tries: 0 }),
        }
    }

    fn in_tail(&self, bytes: &Range<u64>) -> Option<&[u8]> {
        let at = |offset: u64| usize::try_from(offset.checked_sub(self.tail_offset)?).ok();
        self.tail.as_deref()?.get(at(bytes.start)?..at(bytes.end)?)
    }

    fn open(&self, range: store::Range, fresh: bool) -> Result<Part> {
        self.store.get_range(self.key, range, RangeOptions { expected: self.version.as_ref(), fresh })
    }

    fn patiently<T>(&self, attempt: impl Fn(bool) -> Result<T>) -> Result<T> {
        let mut tries = 0;
        loop {
            match attempt(tries > 0) {
                Ok(done) => return Ok(done),
                Err(error) => self.wait(&mut tries, error)?,
            }
        }
    }

    /// Waits before the next try, or ends with `error` where none may help.
    fn wait(&self, tries: &mut u32, error: StoreError) -> Result<()> {
        *tries += 1;
        if !error.trouble.is_passing() {
            return Err(error);
        }
        if *tries >= self.patience.tries_max {
            return Err(StoreError { cause: format!("{} ({tries} tries)", error.cause), ..error });
        }
        let wait = self.patience.repeat(*tries, error.trouble);
        (self.notice)(&format!("{error}; trying again in {:.1} s", wait.as_secs_f64()));
        std::thread::sleep(wait);
        Ok(())
    }

    fn name(&self) -> String {
        shown_uri(&format!("{}/{}", self.store.base().trim_end_matches('/'), self.key))
    }

    fn store_error(&self, error: io::Error) -> StoreError {
        match error.downcast() {
            Ok(error) => error,
            Err(error) => StoreError::local("get", self.name(), error),
        }
    }
}

/// Reads on where it was cut off; `tries` counts those since the last byte.
struct ObjectReader<'a> {
    object: &'a Object<'a>,
    at: u64,
    end: Option<u64>,
    body: Option<Box<dyn Read>>,
    tries: u32,
}

impl ObjectReader<'_> {
    fn read_once(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let failed = |error| self.object.store_error(error);
        let shorter = || {
            let cause = "it is shorter than it was: read it again";
            StoreError::new("get", self.object.name(), Trouble::Conflict, cause)
        };
        let body = match &mut self.body {
            Some(body) => body,
            None => {
                let range = match self.end {
                    Some(end) => store::Range::At { offset: self.at, bytes: end - self.at },
                    None => store::Range::From(self.at),
                };
                let Part { offset, mut body, .. } = self.object.open(range, self.tries > 0)?;
                // The whole comes from a server that knows no ranges: what lies before is passed over.
                let before = self.at.saturating_sub(offset);
                if io::copy(&mut (&mut body).take(before), &mut io::sink()).map_err(failed)? < before {
                    return Err(shorter());
                }
                self.body.insert(body)
            }
        };
        match body.read(buffer).map_err(failed)? {
            // Where an answer does not tell how long it is, nobody else sees that.
            0 if self.end.is_some() => Err(shorter()),
            read => Ok(read),
        }
    }
}

impl Read for ObjectReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.end.map_or(u64::MAX, |end| end - self.at);
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let Some(buffer) = buffer.get_mut(..most).filter(|buffer| !buffer.is_empty()) else { return Ok(0) };
        loop {
            match self.read_once(buffer) {
                Ok(read) => {
                    (self.at, self.tries) = (self.at + read as u64, 0);
                    return Ok(read);
                }
                Err(error) => {
                    self.body = None;
                    self.object.wait(&mut self.tries, error).map_err(io::Error::other)?;
                }
            }
        }
    }
}
