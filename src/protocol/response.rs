//! Frames ready to send.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, ResponseHeader};
use kafka_protocol::protocol::{Encodable, HeaderVersion};

/// One answer as it goes to the socket, its length in front: parts for a vectored write.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The parts, in order; none of them is empty.
    pub parts: Vec<Bytes>,
}

impl Frame {
    /// Bytes on the wire, length prefix included.
    pub fn len(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Bytes::is_empty)
    }
}

/// Why a response could not be encoded: a handler filled a field that the version lacks, or the
/// answer is larger than a frame can say. Both are faults of this server, not of the client.
#[derive(Debug, thiserror::Error)]
#[error("the answer to {api:?} version {version} cannot be encoded: {reason}")]
pub struct EncodeError {
    /// The API.
    pub api: ApiKey,
    /// Its version.
    pub version: i16,
    /// What the encoder said.
    pub reason: String,
}

/// Encodes a response with its header and length.
pub fn encode_response<R: Encodable + HeaderVersion>(
    correlation_id: i32,
    api: ApiKey,
    version: i16,
    response: &R,
) -> Result<Frame, EncodeError> {
    let fail = |reason: String| EncodeError {
        api,
        version,
        reason,
    };
    let header_version = R::header_version(version);
    let header = ResponseHeader::default().with_correlation_id(correlation_id);
    let size = response
        .compute_size(version)
        .map_err(|e| fail(e.to_string()))?;
    let mut out = BytesMut::with_capacity(size.saturating_add(16));
    out.put_i32(0);
    header
        .encode(&mut out, header_version)
        .map_err(|e| fail(e.to_string()))?;
    response
        .encode(&mut out, version)
        .map_err(|e| fail(e.to_string()))?;
    let length = i32::try_from(out.len() - 4).map_err(|_| fail("it exceeds 2 GiB".into()))?;
    if let Some(prefix) = out.first_chunk_mut() {
        *prefix = length.to_be_bytes();
    }
    Ok(Frame {
        parts: vec![out.freeze()],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::{ApiVersionsResponse, HeartbeatResponse};

    #[test]
    fn frames_carry_length_header_and_body() {
        let heartbeat = HeartbeatResponse::default().with_error_code(27);
        let v0 = encode_response(9, ApiKey::Heartbeat, 0, &heartbeat).unwrap();
        assert_eq!(
            v0.parts,
            [Bytes::from_static(&[0, 0, 0, 6, 0, 0, 0, 9, 0, 27])]
        );
        let v4 = encode_response(9, ApiKey::Heartbeat, 4, &heartbeat).unwrap();
        // Flexible: tagged fields after the header and after the body.
        let wanted: &[u8] = &[0, 0, 0, 12, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 27, 0];
        assert_eq!(v4.parts, [Bytes::from_static(wanted)]);
        assert_eq!((v4.len(), v4.is_empty()), (16, false));
    }

    #[test]
    fn api_versions_always_has_the_oldest_header() {
        let frame = encode_response(1, ApiKey::ApiVersions, 3, &ApiVersionsResponse::default());
        let bytes = frame.unwrap().parts[0].clone();
        assert_eq!(&bytes[4..10], &[0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn a_field_the_version_lacks_is_an_error() {
        let response = HeartbeatResponse::default().with_error_code(1);
        assert!(encode_response(1, ApiKey::Heartbeat, 99, &response).is_err());
    }
}
