//! DeleteTopics 1–6: deletes topics by name or by id.
//!
//! KIP-4 (the API), KIP-516 (by id, version 6), KIP-599 (messages, from version 5).
//!
//! The answer leaves once the deletion is durable; from then on the name is free. Files and group
//! commits go in the background.
//!
//! Deliberate gap: internal topics can't be deleted, because the coordinators keep their state in
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse, TopicName};
use uuid::Uuid;

use super::answers::{Refusal, text};
use super::{Connection, Reply};
use crate::catalog::{CatalogError, Image, Topic};
use crate::protocol::error::ErrorCode;
use crate::types::Position;

/// Deletes each topic; one topic's error does not touch the others.
pub async fn handle(
    cx: &Arc<Connection>,
    request: DeleteTopicsRequest,
    version: i16,
) -> Reply<DeleteTopicsResponse> {
    let asked = if version >= 6 {
        request.topics
    } else {
        let by_name = |name| DeleteTopicState::default().with_name(Some(name));
        request.topic_names.into_iter().map(by_name).collect()
    };
    let image = cx.broker.catalog.image();
    let mut after = Position(0);
    let mut gone = Vec::new();
    let mut results = Vec::with_capacity(asked.len());
    for item in plan(asked, &image) {
        let outcome = item.outcome.and_then(|topic| {
            let deleted = delete(cx, topic, version);
            // A refusal may rest on a change that is not durable yet: another client's deletion.
            let shown = deleted.as_ref().map_or_else(|_| cx.broker.journal.appended(), |at| *at);
            after = after.max(shown);
            deleted.map(|_| gone.push(topic.id))
        });
        results.push(result(item.name, item.id, outcome, version));
    }
    if !gone.is_empty() {
        // Behind the deletions in the journal, so that no crash keeps a topic without its commits.
        cx.broker.groups.forget_topics(&gone);
    }
    Reply::after(DeleteTopicsResponse::default().with_responses(results), after)
}

fn delete(cx: &Connection, topic: &Topic, version: i16) -> Result<Position, Refusal> {
    if !cx.broker.config.delete_topics {
        let code = match version {
            ..3 => ErrorCode::InvalidRequest,
            _ => ErrorCode::TopicDeletionDisabled,
        };
        return Err(Refusal::new(code, "delete.topic.enable is false on this server"));
    }
    if topic.internal {
        return Err(Refusal::new(
            ErrorCode::PolicyViolation,
            format!("{} is internal: a coordinator keeps its state in it", topic.name),
        ));
    }
    let broker = &cx.broker;
    broker
        .catalog
        .propose(|image| {
            let change = image.delete_topic(topic.no)?;
            // As it stands in the sequenced image: it may have grown since.
            if let Some(topic) = image.topic_by_no(topic.no) {
                broker.partitions.seal_topic(topic);
            }
            Ok(change)
        })
        .map_err(|error: CatalogError| error.into())
}

/// One line of the answer: how the topic was named, and what is to be deleted.
#[derive(Debug)]
struct Item<'a> {
    name: Option<TopicName>,
    id: Uuid,
    outcome: Result<&'a Topic, Refusal>,
}

impl<'a> Item<'a> {
    fn refused(name: Option<TopicName>, id: Uuid, refusal: Refusal) -> Self {
        Self { name, id, outcome: Err(refusal) }
    }
}

/// Sorts out what was asked: each topic is deleted once or not at all, and something named twice,
/// in whatever way, is not deleted.
fn plan(asked: Vec<DeleteTopicState>, image: &Image) -> Vec<Item<'_>> {
    let mut items = Vec::new();
    let mut names: BTreeMap<TopicName, u32> = BTreeMap::new();
    let mut ids: BTreeMap<Uuid, u32> = BTreeMap::new();
    for topic in asked {
        match (topic.name, topic.topic_id.is_nil()) {
            (Some(name), true) => *names.entry(name).or_default() += 1,
            (None, false) => *ids.entry(topic.topic_id).or_default() += 1,
            (Some(name), false) => {
                let refusal = Refusal::invalid("give a topic's name or its id, not both");
                items.push(Item::refused(Some(name), topic.topic_id, refusal));
            }
            (None, true) => {
                let refusal = Refusal::invalid("neither a topic's name nor its id was given");
                items.push(Item::refused(None, Uuid::nil(), refusal));
            }
        }
    }
    let twice = || Refusal::invalid("the topic is named more than once in the request");
    // Named by id and by name: one refusal for both.
    let mut clashing = BTreeSet::new();
    for (name, times) in names {
        let found = image.topic(name.as_str()).map(AsRef::as_ref);
        let (id, outcome) = match found {
            _ if times > 1 => (Uuid::nil(), Err(twice())),
            None => (Uuid::nil(), Err(unknown(ErrorCode::UnknownTopicOrPartition))),
            Some(topic) if ids.contains_key(&topic.id) => {
                clashing.insert(topic.id);
                (topic.id, Err(twice()))
            }
            Some(topic) => (topic.id, Ok(topic)),
        };
        items.push(Item { name: Some(name), id, outcome });
    }
    for (id, times) in ids {
        let (name, outcome) = match image.topic_by_id(id).map(AsRef::as_ref) {
            _ if clashing.contains(&id) => continue,
            _ if times > 1 => (None, Err(twice())),
            None => (None, Err(unknown(ErrorCode::UnknownTopicId))),
            Some(topic) => (Some(TopicName(text(&topic.name))), Ok(topic)),
        };
        items.push(Item { name, id, outcome });
    }
    items
}

fn unknown(code: ErrorCode) -> Refusal {
    Refusal::new(code, "there is no such topic here")
}

fn result(
    name: Option<TopicName>,
    id: Uuid,
    outcome: Result<(), Refusal>,
    version: i16,
) -> DeletableTopicResult {
    let result = DeletableTopicResult::default()
        // Before version 6 a name can't be null.
        .with_name(if version >= 6 { name } else { Some(name.unwrap_or_default()) })
        .with_topic_id(if version >= 6 { id } else { Uuid::nil() });
    match outcome {
        Ok(()) => result,
        Err(refusal) => result
            .with_error_code(refusal.code.code())
            .with_error_message(refusal.text().filter(|_| version >= 5)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::ApiKey;
    use kafka_protocol::protocol::StrBytes;

    use crate::catalog::{Environment, NewTopic};
    use crate::protocol::response::encode_response;

    /// An image with topics `a` and `b`, whose ids are 1 and 2.
    fn image() -> Image {
        let image = Image::empty(Environment {
            node_id: 1,
            ..Environment::default()
        });
        [("a", 1), ("b", 2)].into_iter().fold(image, |image, (name, id)| {
            let new = NewTopic {
                name: name.into(),
                id: Uuid::from_u128(id),
                ..NewTopic::default()
            };
            let change = image.create_topic(&new).unwrap();
            let at = u64::try_from(id).unwrap();
            image.apply(&change, Position(at)).unwrap()
        })
    }

    fn asked(name: Option<&'static str>, id: u128) -> DeleteTopicState {
        DeleteTopicState::default()
            .with_name(name.map(|name| TopicName(StrBytes::from_static_str(name))))
            .with_topic_id(Uuid::from_u128(id))
    }

    /// Name, id and error code of each line of the answer.
    fn lines(asked: Vec<DeleteTopicState>) -> Vec<(Option<String>, u128, i16)> {
        let image = image();
        let line = |item: Item<'_>| {
            let code = item.outcome.map_or_else(|refusal| refusal.code.code(), |_| 0);
            (item.name.map(|name| name.to_string()), item.id.as_u128(), code)
        };
        plan(asked, &image).into_iter().map(line).collect()
    }

    fn line(name: Option<&str>, id: u128, code: i16) -> (Option<String>, u128, i16) {
        (name.map(str::to_owned), id, code)
    }

    #[test]
    fn topics_are_found_by_name_and_by_id() {
        let got = lines(vec![asked(Some("a"), 0), asked(None, 2)]);
        assert_eq!(got, [line(Some("a"), 1, 0), line(Some("b"), 2, 0)]);
        let got = lines(vec![asked(Some("x"), 0), asked(None, 9)]);
        assert_eq!(got, [line(Some("x"), 0, 3), line(None, 9, 100)]);
    }

    #[test]
    fn what_is_named_twice_stays() {
        let got = lines(vec![asked(Some("a"), 0), asked(Some("a"), 0)]);
        assert_eq!(got, [line(Some("a"), 0, 42)]);
        let got = lines(vec![asked(None, 1), asked(None, 1)]);
        assert_eq!(got, [line(None, 1, 42)]);
        let got = lines(vec![asked(Some("b"), 0), asked(None, 2)]);
        assert_eq!(got, [line(Some("b"), 2, 42)]);
    }

    #[test]
    fn a_topic_needs_one_name_or_one_id() {
        let got = lines(vec![asked(Some("a"), 1), asked(None, 0)]);
        assert_eq!(got, [line(Some("a"), 1, 42), line(None, 0, 42)]);
    }

    #[test]
    fn answers_fit_every_version() {
        for version in 1..=6 {
            let refusal = Err(Refusal::invalid("no"));
            let bad = result(None, Uuid::from_u128(7), refusal, version);
            let good = result(Some(TopicName::default()), Uuid::from_u128(7), Ok(()), version);
            let answer = DeleteTopicsResponse::default().with_responses(vec![bad, good]);
            assert!(encode_response(1, ApiKey::DeleteTopics, version, &answer).is_ok());
        }
    }
}
