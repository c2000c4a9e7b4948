//! Request headers. The crate's own reader panics on frames under four bytes, so this one is ours.

use bytes::Bytes;
use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::StrBytes;

use super::api::{self, ApiRow};
use super::wire::{Reader, WireError};

/// What a request says about itself before its body.
#[derive(Clone, Debug)]
pub struct Header {
    /// The API's row.
    pub row: &'static ApiRow,
    /// The API's number.
    pub api_key: i16,
    /// The version the client chose. For ApiVersions it may be one we do not offer.
    pub version: i16,
    /// Echoed in the answer.
    pub correlation_id: i32,
    /// The client's name for itself: a slice of the frame, so copy what must outlive it.
    pub client_id: Option<StrBytes>,
    /// Where the body starts in the frame.
    pub body_offset: usize,
}

/// Why a request's header cannot be served. Each one ends the connection, as in Kafka: without a
/// known API and version there is no layout for an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The frame ends within the header.
    #[error("a frame of {0} bytes ends within its header")]
    TooShort(usize),
    /// No such API here.
    #[error("{name} (API key {key}, asked for by client {client}) is not served here{hint}")]
    UnknownApi {
        /// Kafka's name for it, if it has one.
        name: String,
        /// The API's number.
        key: i16,
        /// The client's name for itself, as far as it had come.
        client: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// The API is served, this version of it is not.
    #[error(
        "{name} version {version} (asked for by client {client}) is not served here, versions \
         {min} to {max} are: let the client ask for them with ApiVersions"
    )]
    UnsupportedVersion {
        /// The API's name.
        name: &'static str,
        /// The version asked for.
        version: i16,
        /// The first one served.
        min: i16,
        /// The last one served.
        max: i16,
        /// The client's name for itself.
        client: String,
    },
    /// Lengths in the header make no sense.
    #[error("the header's {0} is malformed")]
    Malformed(&'static str),
}

impl HeaderError {
    /// An API that is not served; `begun` is the frame as far as it has come.
    pub fn unknown_api(key: i16, begun: &[u8]) -> Self {
        let known = ApiKey::try_from(key);
        let hint = match known {
            Ok(ApiKey::SaslHandshake | ApiKey::SaslAuthenticate) => {
                ": no listener here has SASL, set security.protocol=PLAINTEXT in the client"
            }
            Ok(_) => ": see docs/compatibility.md for what is",
            Err(_) => "",
        };
        let name = known.map_or_else(
            |()| "no API of Kafka's".to_owned(),
            |api| format!("{api:?}"),
        );
        Self::UnknownApi {
            name,
            key,
            client: client_of(begun),
            hint,
        }
    }
}

/// The client's name in the first bytes of a frame, whose header has one at the same place in all
/// versions.
fn client_of(begun: &[u8]) -> String {
    let name = || {
        let mut reader = Reader::new(begun.get(8..)?);
        let length = usize::try_from(reader.i16().ok()?).ok()?;
        Some(String::from_utf8_lossy(reader.take(length).ok()?))
    };
    quoted(name().as_deref())
}

/// A client's name for itself as a log line shows it.
pub fn quoted(name: Option<&str>) -> String {
    name.map_or_else(
        || "without a name".to_owned(),
        |name| format!("{:?}", shortened(name)),
    )
}

/// At most 100 characters of a name.
pub fn shortened(name: &str) -> &str {
    name.char_indices()
        .nth(100)
        .map_or(name, |(end, _)| &name[..end])
}

/// Reads a frame's header. `frame` is without the 4 bytes of its length.
///
/// ApiVersions passes in every version, because a client that asks with one that is too new must
/// learn which ones it can use.
pub fn parse(frame: &Bytes) -> Result<Header, HeaderError> {
    let mut reader = Reader::new(frame);
    let short = |_| HeaderError::TooShort(frame.len());
    let api_key = reader.i16().map_err(short)?;
    let version = reader.i16().map_err(short)?;
    let correlation_id = reader.i32().map_err(short)?;
    let row = api::lookup(api_key).ok_or_else(|| HeaderError::unknown_api(api_key, frame))?;
    if !row.decodes(version) && !row.answers_any_version() {
        return Err(HeaderError::UnsupportedVersion {
            name: row.name,
            version,
            min: row.decode_min,
            max: row.max,
            client: client_of(frame),
        });
    }
    let client_id = client_id(frame, &mut reader)?;
    if row.api.request_header_version(version) >= 2 {
        skip_tagged_fields(&mut reader).map_err(|_| HeaderError::Malformed("tagged fields"))?;
    }
    let body_offset = frame.len() - reader.remaining();
    Ok(Header {
        row,
        api_key,
        version,
        correlation_id,
        client_id,
        body_offset,
    })
}

fn client_id(frame: &Bytes, reader: &mut Reader<'_>) -> Result<Option<StrBytes>, HeaderError> {
    let malformed = |_: WireError| HeaderError::Malformed("client id");
    let length = reader.i16().map_err(malformed)?;
    // Any negative length is null to Kafka.
    let Ok(length) = usize::try_from(length) else {
        return Ok(None);
    };
    let raw = reader.take(length).map_err(malformed)?;
    // Kafka replaces what is not UTF-8; a name is no reason to refuse a client.
    Ok(Some(
        StrBytes::from_utf8(frame.slice_ref(raw))
            .unwrap_or_else(|_| StrBytes::from_string(String::from_utf8_lossy(raw).into_owned())),
    ))
}

fn skip_tagged_fields(reader: &mut Reader<'_>) -> Result<(), WireError> {
    for _ in 0..reader.uvarint()? {
        reader.uvarint()?;
        let length = reader.uvarint()? as usize;
        reader.take(length)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: &[u8]) -> Bytes {
        Bytes::copy_from_slice(bytes)
    }

    #[test]
    fn every_prefix_of_a_header_is_refused() {
        let full = [0, 3, 0, 9, 0, 0, 0, 7, 0, 2, b'a', b'b', 1, 5, 2, 9, 9];
        let header = parse(&frame(&full)).unwrap();
        assert_eq!(
            (header.api_key, header.version, header.correlation_id),
            (3, 9, 7)
        );
        assert_eq!(header.client_id.as_deref(), Some("ab"));
        assert_eq!(header.body_offset, full.len());
        for end in 0..full.len() {
            assert!(parse(&frame(&full[..end])).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn a_null_client_id_is_none_and_a_strange_one_is_kept() {
        let null = parse(&frame(&[0, 3, 0, 1, 0, 0, 0, 7, 0xff, 0xff, 1])).unwrap();
        assert_eq!((null.client_id, null.body_offset), (None, 10));
        let strange = parse(&frame(&[0, 3, 0, 1, 0, 0, 0, 7, 0, 1, 0xff])).unwrap();
        assert_eq!(strange.client_id.as_deref(), Some("\u{fffd}"));
        // Any negative length is null to Kafka, and so it is here.
        let negative = parse(&frame(&[0, 3, 0, 1, 0, 0, 0, 7, 0xff, 0xfe])).unwrap();
        assert_eq!(negative.client_id, None);
        let long = parse(&frame(&[0, 3, 0, 1, 0, 0, 0, 7, 0, 9, 1])).unwrap_err();
        assert_eq!(long, HeaderError::Malformed("client id"));
    }

    #[test]
    fn unknown_apis_and_versions_are_told_apart() {
        let text = |bytes: &[u8]| parse(&frame(bytes)).unwrap_err().to_string();
        let unknown = text(&[0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff]);
        assert_eq!(
            unknown,
            "no API of Kafka's (API key 32767, asked for by client without a name) is not served here"
        );
        let sasl = text(&[0, 17, 0, 1, 0, 0, 0, 1, 0, 2, b'a', b'\n']);
        assert!(sasl.starts_with("SaslHandshake (API key 17, asked for by client \"a\\n\")"));
        assert!(
            sasl.ends_with("set security.protocol=PLAINTEXT in the client"),
            "{sasl}"
        );
        let version = text(&[0, 3, 0, 99, 0, 0, 0, 1, 0, 1, b'c']);
        assert!(version.starts_with("Metadata version 99 (asked for by client \"c\")"));
        assert!(version.contains("versions 0 to 13 are"), "{version}");
        let newer = parse(&frame(&[0, 18, 0, 99, 0, 0, 0, 1, 0xff, 0xff, 0])).unwrap();
        assert_eq!((newer.version, newer.row.decodes(99)), (99, false));
    }
}
