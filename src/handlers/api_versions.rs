//! ApiVersions 0–4: which APIs and versions work here.
//!
//! KIP-35 (the API), KIP-511 (client name and version, checked as there), KIP-584 (features).
//!
//! Deliberate gaps: no feature is listed, finalized or supported. A feature promises a protocol
//! (`transaction.version`, `group.version`, …) or a metadata format, and none of those is served.

use std::sync::Arc;

use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse};

use super::{Connection, Reply};
use crate::protocol::api::{ApiRow, ROWS};
use crate::protocol::error::ErrorCode;

/// Longest client name or version that is remembered.
const MAX_REMEMBERED: usize = 256;

/// Answers with the table of APIs, and remembers what the client says it is.
pub async fn handle(
    cx: &Arc<Connection>,
    request: ApiVersionsRequest,
    version: i16,
) -> Reply<ApiVersionsResponse> {
    if version >= 3 {
        let name = request.client_software_name.as_str();
        let software = request.client_software_version.as_str();
        if !is_software_name(name) || !is_software_name(software) {
            return refused(ErrorCode::InvalidRequest).into();
        }
        let mut client = cx.client.lock();
        client.software_name = Some(cut(name));
        client.software_version = Some(cut(software));
    }
    ApiVersionsResponse::default().with_api_keys(served().map(entry).collect()).into()
}

/// The answer to a version that is not served, to be sent in the layout of version 0: the client
/// learns the range of ApiVersions itself and asks again.
pub fn unsupported() -> ApiVersionsResponse {
    let own = served().filter(|row| row.api == ApiKey::ApiVersions).map(entry).collect();
    refused(ErrorCode::UnsupportedVersion).with_api_keys(own)
}

fn refused(code: ErrorCode) -> ApiVersionsResponse {
    ApiVersionsResponse::default().with_error_code(code.code())
}

fn served() -> impl Iterator<Item = &'static ApiRow> {
    ROWS.iter().filter(|row| super::handles(row.api))
}

fn entry(row: &ApiRow) -> ApiVersion {
    ApiVersion::default()
        .with_api_key(row.key)
        .with_min_version(row.min)
        .with_max_version(row.max)
}

/// Letters, digits, `.` and `-`, with a letter or digit at both ends.
fn is_software_name(name: &str) -> bool {
    let name = name.as_bytes();
    let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    end(name.first())
        && end(name.last())
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(byte))
}

fn cut(ascii: &str) -> String {
    ascii.get(..MAX_REMEMBERED).unwrap_or(ascii).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::response::encode_response;

    #[test]
    fn software_names_follow_kip_511() {
        for good in ["a", "edges", "apache-kafka-java", "1.0", "librdkafka"] {
            assert!(is_software_name(good), "{good}");
        }
        for bad in ["", "bad name!", "-a", "a-", ".", "ä"] {
            assert!(!is_software_name(bad), "{bad}");
        }
    }

    #[test]
    fn an_unknown_version_learns_the_range_of_this_api_only() {
        let answer = unsupported();
        assert_eq!(answer.error_code, 35);
        assert!(answer.api_keys.iter().all(|key| key.api_key == 18 && key.min_version == 0));
        assert!(encode_response(1, ApiKey::ApiVersions, 0, &answer).is_ok());
    }
}
