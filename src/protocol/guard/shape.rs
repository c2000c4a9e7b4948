//! How a request layout is written down. Public for tests that make requests out of the layouts.

/// The end of a range of versions that has none.
pub const LAST: i16 = i16::MAX;

/// One API's request layout, for all its versions.
#[derive(Debug)]
pub struct Shape {
    /// The API's number.
    pub key: i16,
    /// First version with compact lengths and tagged fields.
    pub flexible: i16,
    /// The body's fields.
    pub fields: &'static [Field],
}

/// One field.
#[derive(Debug)]
pub struct Field {
    /// Kafka's name of it.
    pub name: &'static str,
    /// What it, or each of its elements, is made of.
    pub kind: Kind,
    /// Whether it is an array.
    pub array: bool,
    /// The versions that have it.
    pub versions: Versions,
    /// The versions in which it may be null.
    pub nullable: Versions,
    /// Its tag, and the versions in which it lies behind that.
    pub tag: Option<(u32, Versions)>,
}

/// What a field, or each element of an array, is made of.
#[derive(Debug)]
pub enum Kind {
    /// So many bytes.
    Fixed(usize),
    /// A string: a short length.
    Str,
    /// Bytes or records: a long length.
    Blob,
    /// Fields.
    Struct(&'static [Field]),
}

/// A range of versions, both ends included; empty if they are the wrong way round.
#[derive(Clone, Copy, Debug)]
pub struct Versions(pub i16, pub i16);

impl Versions {
    /// Whether `version` is in it.
    pub fn has(self, version: i16) -> bool {
        self.0 <= version && version <= self.1
    }
}

/// A field that is neither an array nor nullable nor tagged.
pub const fn field(name: &'static str, kind: Kind, first: i16, last: i16) -> Field {
    let versions = Versions(first, last);
    Field {
        name,
        kind,
        array: false,
        versions,
        nullable: Versions(1, 0),
        tag: None,
    }
}

impl Field {
    /// The same as an array.
    pub const fn array(mut self) -> Self {
        self.array = true;
        self
    }

    /// The same, but nullable in these versions.
    pub const fn nullable(mut self, first: i16, last: i16) -> Self {
        self.nullable = Versions(first, last);
        self
    }

    /// The same, but behind a tag in these versions.
    pub const fn tagged(mut self, tag: u32, first: i16, last: i16) -> Self {
        self.tag = Some((tag, Versions(first, last)));
        self
    }

    /// Whether the field lies in the body itself, and not among the tagged fields.
    pub fn in_body(&self, version: i16) -> bool {
        self.versions.has(version) && !self.tag.is_some_and(|(_, tagged)| tagged.has(version))
    }

    /// Whether the field is the one behind `tag`.
    pub fn behind_tag(&self, tag: u32, version: i16) -> bool {
        self.tag
            .is_some_and(|(own, tagged)| own == tag && tagged.has(version))
    }
}

impl Kind {
    /// Fewest bytes that one value takes, which bounds how many there can be.
    pub fn min_bytes(&self, version: i16, flexible: bool) -> usize {
        match self {
            Self::Fixed(n) => *n,
            Self::Str => {
                if flexible {
                    1
                } else {
                    2
                }
            }
            Self::Blob => {
                if flexible {
                    1
                } else {
                    4
                }
            }
            Self::Struct(fields) => {
                let body = fields.iter().filter(|f| f.in_body(version));
                body.map(|f| f.min_bytes(version, flexible)).sum::<usize>() + usize::from(flexible)
            }
        }
    }
}

impl Field {
    fn min_bytes(&self, version: i16, flexible: bool) -> usize {
        match &self.kind {
            _ if self.array => {
                if flexible {
                    1
                } else {
                    4
                }
            }
            Kind::Struct(_) if self.nullable.has(version) => 1,
            kind => kind.min_bytes(version, flexible),
        }
    }
}
