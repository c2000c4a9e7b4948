//! InitProducerId 0–5: ids for idempotent producers.
//!
//! KIP-98 (the API). From version 3 on a producer may send the id and epoch it has (KIP-360);
//! without a transactional id that changes nothing: it gets a fresh id with epoch 0.
//!
//! Deliberate gap: transactions are not served, so a transactional id is refused with
//! TRANSACTIONAL_ID_AUTHORIZATION_FAILED. It is the answer that the Java client and librdkafka both
//! take as final at once; with others they retry until their time-out, or report a bug.

use std::sync::Arc;

use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};

use super::{Connection, Reply};
use crate::protocol::error::ErrorCode;
use crate::repeats::LINES;

/// `transaction.max.timeout.ms` of a broker that was not told otherwise.
const MAX_TRANSACTION_TIMEOUT_MS: i32 = 900_000;

/// Answers with an id that no producer had before; it is reserved durably before it is sent.
pub async fn handle(
    cx: &Arc<Connection>,
    request: InitProducerIdRequest,
    _version: i16,
) -> Reply<InitProducerIdResponse> {
    if let Some(code) = refusal(&request) {
        let transactional = code == ErrorCode::TransactionalIdAuthorizationFailed;
        if transactional && LINES.allow("transactional producer", Some(cx.peer.ip())) {
            tracing::warn!(
                peer = %cx.peer,
                transactional_id = request.transactional_id.as_ref().map(|id| id.as_str()),
                "a transactional producer was refused, because transactions are not served; \
                 unset transactional.id to produce with idempotence alone"
            );
        }
        return refused(code).into();
    }
    let (id, after) = cx.broker.catalog.allocate_producer_id();
    let response = InitProducerIdResponse::default()
        .with_producer_id(ProducerId(id))
        .with_producer_epoch(0);
    Reply::after(response, after)
}

fn refusal(request: &InitProducerIdRequest) -> Option<ErrorCode> {
    if (request.producer_id.0 == -1) != (request.producer_epoch == -1) {
        return Some(ErrorCode::InvalidRequest);
    }
    let id = request.transactional_id.as_ref()?;
    if id.is_empty() {
        return Some(ErrorCode::InvalidRequest);
    }
    if !(1..=MAX_TRANSACTION_TIMEOUT_MS).contains(&request.transaction_timeout_ms) {
        return Some(ErrorCode::InvalidTransactionTimeout);
    }
    Some(ErrorCode::TransactionalIdAuthorizationFailed)
}

fn refused(code: ErrorCode) -> InitProducerIdResponse {
    InitProducerIdResponse::default()
        .with_error_code(code.code())
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::{ApiKey, TransactionalId};
    use kafka_protocol::protocol::StrBytes;

    use crate::protocol::response::encode_response;

    fn request(id: Option<&'static str>, timeout: i32, pid: i64, epoch: i16) -> Option<i16> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(id.map(|id| TransactionalId(StrBytes::from_static_str(id))))
            .with_transaction_timeout_ms(timeout)
            .with_producer_id(ProducerId(pid))
            .with_producer_epoch(epoch);
        refusal(&request).map(|code| code.code())
    }

    #[test]
    fn idempotent_producers_are_served_whatever_they_had() {
        assert_eq!(request(None, 60_000, -1, -1), None);
        assert_eq!(request(None, 0, -1, -1), None);
        assert_eq!(request(None, 60_000, 7, 3), None);
    }

    #[test]
    fn malformed_requests_come_before_the_missing_transactions() {
        assert_eq!(request(None, 0, 7, -1), Some(42));
        assert_eq!(request(Some("x"), 60_000, 7, -1), Some(42));
        assert_eq!(request(Some("x"), 60_000, -1, 3), Some(42));
        assert_eq!(request(Some(""), 60_000, -1, -1), Some(42));
        assert_eq!(request(Some("x"), 0, -1, -1), Some(50));
        assert_eq!(request(Some("x"), -1, -1, -1), Some(50));
        assert_eq!(request(Some("x"), 900_001, -1, -1), Some(50));
        assert_eq!(request(Some("x"), 60_000, -1, -1), Some(53));
    }

    #[test]
    fn a_refusal_fits_every_version() {
        let answer = refused(ErrorCode::InvalidRequest);
        for version in 0..=5 {
            assert!(encode_response(1, ApiKey::InitProducerId, version, &answer).is_ok());
        }
    }
}
