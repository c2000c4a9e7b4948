//! The bounds check that a request body passes before the typed decoder sees it.
//!
//! The decoders of `kafka_protocol` reserve memory for whatever length an array claims, so five
//! bytes could end the process. This walk follows the layout of the request and lets a length pass
//! only if the bytes that remain could hold it. Since every element also costs memory beyond its
//! bytes, all arrays and tagged fields of one request share a budget of elements.
//!
//! Bytes behind the last field are let through, as Kafka does. `table.rs` is printed by
//! `generate.py`.

pub mod shape;
mod table;
#[cfg(test)]
mod tests;

use super::api::ApiRow;
use super::wire::{Reader, WireError};
use shape::{Field, Kind, Shape};

/// Elements of arrays, and tagged fields, that one request may hold.
pub const MAX_ELEMENTS: usize = 100_000;

/// What a decoded element costs at most beyond its wire bytes: the largest struct of the decoded
/// types, or the node that keeps one unknown tagged field. A test holds the decoder to it.
const ELEMENT_BYTES: usize = 448;

/// A body that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Elements of arrays, and tagged fields, in it.
    pub elements: usize,
    /// It holds what Kafka takes and the typed decoder does not: decode what [`plain`] makes of it.
    pub odd: bool,
}

impl Checked {
    /// Memory that decoding allocates at most, the frame itself not counted: strings and records
    /// stay slices of it.
    pub fn decoded_bytes(&self) -> usize {
        self.elements * ELEMENT_BYTES
    }
}

/// Why a body was refused. There is no answer to it: the connection ends, as in Kafka.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field {field}: {reason}")]
pub struct GuardError {
    /// Kafka's name of the field.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: GuardReason,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardReason {
    /// The bytes end within it.
    #[error("the bytes end within it")]
    Truncated,
    /// A variable-length number does not end.
    #[error("its length is not a number")]
    Varint,
    /// A length is larger than what remains.
    #[error("its length {0} is larger than the bytes that remain")]
    Length(u32),
    /// Null where the protocol has none.
    #[error("it may not be null")]
    Null,
    /// The presence byte of an optional struct is neither of the two that exist.
    #[error("its presence byte makes no sense")]
    Presence,
    /// A tagged field is not as long as it says.
    #[error("its tag says another length than it has")]
    TagLength,
    /// Too many elements in one request.
    #[error("the request holds more than {MAX_ELEMENTS} elements")]
    Budget,
    /// There is no layout for the API.
    #[error("the API has no layout")]
    NoLayout,
}

/// Checks the body of a request whose version the row decodes.
pub fn check(row: &ApiRow, version: i16, body: &[u8]) -> Result<Checked, GuardError> {
    let mut odd = false;
    let elements = walk(row, version, body, &mut |_| odd = true)?;
    Ok(Checked { elements, odd })
}

/// The same body with every null written as -1 and every text in UTF-8. It must have passed the
/// check. Kafka's own decoder puts U+FFFD where text is broken; a question mark leaves all lengths
/// as they are.
pub fn plain(row: &ApiRow, version: i16, body: &[u8]) -> Result<Vec<u8>, GuardError> {
    let mut plain = body.to_vec();
    walk(row, version, body, &mut |odd| {
        let end = body.len().saturating_sub(odd.behind);
        let Some(bytes) = plain.get_mut(end.saturating_sub(odd.bytes)..end) else {
            return;
        };
        match odd.kind {
            OddKind::Null => bytes.fill(0xff),
            OddKind::Text => mend(bytes),
        }
    })?;
    Ok(plain)
}

/// Puts question marks where text is not UTF-8.
fn mend(mut text: &mut [u8]) {
    while let Err(error) = str::from_utf8(text) {
        let (_, rest) = text.split_at_mut(error.valid_up_to());
        let length = error.error_len().unwrap_or(rest.len());
        let (broken, rest) = rest.split_at_mut(length);
        broken.fill(b'?');
        text = rest;
    }
}

/// A piece of a body that Kafka takes and the typed decoder does not.
struct Odd {
    kind: OddKind,
    /// Its length.
    bytes: usize,
    /// The bytes of the body that lie behind it.
    behind: usize,
}

enum OddKind {
    /// A negative length other than -1.
    Null,
    /// Text that is not UTF-8.
    Text,
}

/// Returns the number of elements. `odd` hears of each odd piece.
fn walk(
    row: &ApiRow,
    version: i16,
    body: &[u8],
    odd: &mut dyn FnMut(Odd),
) -> Result<usize, GuardError> {
    let shape = shape_of(row.key).ok_or(GuardError {
        field: row.name,
        reason: GuardReason::NoLayout,
    })?;
    let mut walk = Walk {
        version,
        flexible: version >= shape.flexible,
        left: MAX_ELEMENTS,
        field: row.name,
        behind: 0,
        odd,
    };
    let mut reader = Reader::new(body);
    match walk.fields(&mut reader, shape.fields) {
        Ok(()) => Ok(MAX_ELEMENTS - walk.left),
        Err(reason) => Err(GuardError {
            field: walk.field,
            reason,
        }),
    }
}

/// An API's request layout.
pub fn shape_of(key: i16) -> Option<&'static Shape> {
    let shapes = table::SHAPES;
    shapes
        .binary_search_by_key(&key, |shape| shape.key)
        .ok()
        .and_then(|at| shapes.get(at))
}

impl From<WireError> for GuardReason {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Truncated => Self::Truncated,
            WireError::Varint => Self::Varint,
        }
    }
}

struct Walk<'a> {
    version: i16,
    flexible: bool,
    /// Elements that may still come.
    left: usize,
    /// The field that is being read, for the error.
    field: &'static str,
    /// Bytes of the body behind the slice that is being read.
    behind: usize,
    odd: &'a mut dyn FnMut(Odd),
}

impl Walk<'_> {
    fn fields(&mut self, r: &mut Reader<'_>, fields: &[Field]) -> Result<(), GuardReason> {
        for field in fields {
            if field.in_body(self.version) {
                self.value(r, field)?;
            }
        }
        if self.flexible {
            self.tagged(r, fields)
        } else {
            Ok(())
        }
    }

    fn value(&mut self, r: &mut Reader<'_>, field: &Field) -> Result<(), GuardReason> {
        self.field = field.name;
        let nullable = field.nullable.has(self.version);
        if !field.array {
            return self.single(r, &field.kind, nullable);
        }
        let Some(count) = self.long_length(r)? else {
            return null_if(nullable);
        };
        let min_bytes = field.kind.min_bytes(self.version, self.flexible).max(1);
        if count as usize > r.remaining() / min_bytes {
            return Err(GuardReason::Length(count));
        }
        self.spend(count)?;
        if let Kind::Fixed(width) = field.kind {
            r.take(count as usize * width)?;
            return Ok(());
        }
        for _ in 0..count {
            // Elements of arrays are never null in the schemas, whatever the array itself is.
            self.single(r, &field.kind, false)?;
        }
        Ok(())
    }

    fn single(
        &mut self,
        r: &mut Reader<'_>,
        kind: &Kind,
        nullable: bool,
    ) -> Result<(), GuardReason> {
        let length = match kind {
            Kind::Fixed(width) => Some(*width as u32),
            Kind::Str if !self.flexible => {
                let length = r.i16()?;
                self.plain_length(r, length.into(), size_of::<i16>())
            }
            Kind::Str | Kind::Blob => self.long_length(r)?,
            Kind::Struct(fields) => {
                if nullable {
                    match r.array::<1>()? {
                        [1] => {}
                        [0xff] => return Ok(()),
                        _ => return Err(GuardReason::Presence),
                    }
                }
                return self.fields(r, fields);
            }
        };
        let Some(length) = length else {
            return null_if(nullable);
        };
        let bytes = r
            .take(length as usize)
            .map_err(|_| GuardReason::Length(length))?;
        if matches!(kind, Kind::Str) && str::from_utf8(bytes).is_err() {
            self.odd(r, OddKind::Text, bytes.len());
        }
        Ok(())
    }

    fn odd(&mut self, r: &Reader<'_>, kind: OddKind, bytes: usize) {
        let behind = self.behind + r.remaining();
        (self.odd)(Odd {
            kind,
            bytes,
            behind,
        });
    }

    /// The length of an array, of bytes, or of a compact string; `None` is null. Any negative
    /// length is null to Kafka.
    fn long_length(&mut self, r: &mut Reader<'_>) -> Result<Option<u32>, GuardReason> {
        if self.flexible {
            Ok(r.uvarint()?.checked_sub(1))
        } else {
            let length = r.i32()?;
            Ok(self.plain_length(r, length, size_of::<i32>()))
        }
    }

    fn plain_length(&mut self, r: &Reader<'_>, length: i32, width: usize) -> Option<u32> {
        if length < -1 {
            self.odd(r, OddKind::Null, width);
        }
        u32::try_from(length).ok()
    }

    fn tagged(&mut self, r: &mut Reader<'_>, fields: &[Field]) -> Result<(), GuardReason> {
        self.field = "tagged fields";
        let count = r.uvarint()?;
        // A tag and a length take a byte each.
        if count as usize > r.remaining() / 2 {
            return Err(GuardReason::Length(count));
        }
        self.spend(count)?;
        for _ in 0..count {
            self.field = "tagged fields";
            let tag = r.uvarint()?;
            let length = r.uvarint()?;
            let bytes = r
                .take(length as usize)
                .map_err(|_| GuardReason::Length(length))?;
            let version = self.version;
            if let Some(field) = fields.iter().find(|f| f.behind_tag(tag, version)) {
                // The typed decoder reads a known tag where it stands and ignores its length, so
                // the two must agree or the walks part.
                let mut value = Reader::new(bytes);
                let behind = self.behind;
                self.behind += r.remaining();
                self.value(&mut value, field)?;
                self.behind = behind;
                if value.remaining() != 0 {
                    return Err(GuardReason::TagLength);
                }
            }
        }
        Ok(())
    }

    fn spend(&mut self, elements: u32) -> Result<(), GuardReason> {
        self.left = self
            .left
            .checked_sub(elements as usize)
            .ok_or(GuardReason::Budget)?;
        Ok(())
    }
}

fn null_if(nullable: bool) -> Result<(), GuardReason> {
    if nullable {
        Ok(())
    } else {
        Err(GuardReason::Null)
    }
}
