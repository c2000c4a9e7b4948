//! Changes of configs, shared by IncrementalAlterConfigs and AlterConfigs: from what was asked to
//! one catalog change per resource. A resource changes as a whole or not at all.

use std::collections::BTreeSet;

use super::Connection;
use super::answers::{Refusal, canonical, if_room};
use crate::catalog::codec::Configs;
use crate::catalog::configs::{Scope, table};
use crate::catalog::{AlterOp, Alteration, CatalogError, Change, Image, Topic, names};
use crate::protocol::error::ErrorCode;
use crate::types::Position;

/// Resource types on the wire.
pub mod resource {
    /// A topic, by name.
    pub const TOPIC: i8 = 2;
    /// A broker, by id; all brokers, by the empty name.
    pub const BROKER: i8 = 4;
    /// The log levels of a broker, by id.
    pub const BROKER_LOGGER: i8 = 8;
    /// A client metrics subscription.
    pub const CLIENT_METRICS: i8 = 16;
    /// A group, by id.
    pub const GROUP: i8 = 32;
}

/// A change of one config as the client sent it.
#[derive(Clone, Debug)]
pub struct Edit<'a> {
    /// The config.
    pub name: &'a str,
    /// The number of an operation.
    pub operation: i8,
    /// The value; a deletion needs none.
    pub value: Option<&'a str>,
}

/// All changes of one resource.
#[derive(Clone, Debug)]
pub struct Edits<'a> {
    /// The type of the resource, see [`resource`].
    pub kind: i8,
    /// Its name.
    pub name: &'a str,
    /// In the order of the request.
    pub edits: Vec<Edit<'a>>,
    /// Whether configs that are not named go back to what they inherit. Then every operation is
    /// "set".
    pub replace: bool,
}

/// Changes each resource, where one resource's error does not touch the others. Gives what became
/// of each, in their order, and the position that the answer waits for.
pub fn alter_each(
    cx: &Connection,
    resources: &[Edits<'_>],
    validate_only: bool,
) -> (Vec<Option<Refusal>>, Position) {
    let twice = named_twice(resources.iter().map(|edits| (edits.kind, edits.name)));
    let mut after = Position(0);
    let outcomes = resources.iter().map(|edits| {
        let altered = match twice.contains(&(edits.kind, edits.name)) {
            true => Err(Refusal::invalid(
                "the resource is named more than once in the request",
            )),
            false => alter(cx, edits, validate_only),
        };
        // A refusal may rest on a change that is not durable yet.
        let shown = altered
            .as_ref()
            .map_or_else(|_| cx.broker.journal.appended(), |at| *at);
        after = after.max(shown);
        altered.err()
    });
    (outcomes.collect(), after)
}

fn alter(cx: &Connection, edits: &Edits<'_>, validate_only: bool) -> Result<Position, Refusal> {
    if edits.replace && edits.kind == resource::BROKER_LOGGER {
        return Err(Refusal::invalid("log levels can't be replaced as a whole"));
    }
    let catalog = &cx.broker.catalog;
    let node = cx.broker.node_id;
    let decide = |image: &Image| if_room(cx, image, decide(image, node, edits)?);
    if validate_only {
        return decide(&catalog.sequenced()).map(|_| Position(0));
    }
    catalog.propose(decide)
}

fn decide(image: &Image, node: i32, edits: &Edits<'_>) -> Result<Change, Refusal> {
    let target = target(image, node, edits.kind, edits.name)?;
    let changes = changes(edits, target.scope())?;
    let altered = match (&target, edits.replace) {
        (Target::Topic(topic), false) => image.alter_topic_configs(topic, &changes),
        (Target::Topic(topic), true) => image.set_topic_configs(topic.no, whole(changes)?),
        (Target::Broker(broker), false) => image.alter_broker_configs(*broker, &changes),
        (Target::Broker(broker), true) => image.set_broker_configs(*broker, whole(changes)?),
        (Target::Group(group), false) => image.alter_group_configs(group, &changes),
        (Target::Group(group), true) => image.set_group_configs(group, whole(changes)?),
    };
    altered.map_err(|error| match (&target, error) {
        // Of a broker, Kafka reports a bad value as a bad request.
        (Target::Broker(_), CatalogError::InvalidConfig(text)) => Refusal::invalid(text),
        (_, error) => error.into(),
    })
}

/// The changes with values in the form they are kept in.
fn changes(edits: &Edits<'_>, scope: Scope) -> Result<Vec<Alteration>, Refusal> {
    let change = |edit: &Edit<'_>| {
        let op = AlterOp::from_wire(edit.operation).ok_or_else(|| {
            let text = format!("the operation on {} does not exist; use 0 to 3", edit.name);
            Refusal::invalid(text)
        })?;
        let def = table(scope).get(edit.name);
        let value = edit.value.map(|value| match op {
            AlterOp::Set => canonical(def, value),
            _ => value.to_owned(),
        });
        Ok(Alteration {
            name: edit.name.to_owned(),
            op,
            value,
        })
    };
    edits.edits.iter().map(change).collect()
}

/// The configs that a resource has from now on.
fn whole(changes: Vec<Alteration>) -> Result<Configs, CatalogError> {
    let mut configs = Configs::new();
    for change in changes {
        let Some(value) = change.value else {
            let text = format!("config {} has no value; leave it out instead", change.name);
            return Err(CatalogError::InvalidRequest(text));
        };
        if configs.insert(change.name, value).is_some() {
            let text = "a config is named more than once for the resource";
            return Err(CatalogError::InvalidRequest(text.to_owned()));
        }
    }
    Ok(configs)
}

/// The resource whose configs change.
enum Target<'a> {
    Topic(&'a Topic),
    Broker(Option<i32>),
    Group(&'a str),
}

impl Target<'_> {
    fn scope(&self) -> Scope {
        match self {
            Self::Topic(_) => Scope::Topic,
            Self::Broker(_) => Scope::Broker,
            Self::Group(_) => Scope::Group,
        }
    }
}

fn target<'a>(
    image: &'a Image,
    node: i32,
    resource_type: i8,
    name: &'a str,
) -> Result<Target<'a>, Refusal> {
    match resource_type {
        resource::TOPIC if name.is_empty() => Err(Refusal::invalid(
            "topics have no defaults of their own; name a topic",
        )),
        resource::TOPIC => {
            names::validate(name)?;
            let topic = image.topic(name).ok_or_else(|| {
                let text = format!("there is no topic {name} here");
                Refusal::new(ErrorCode::UnknownTopicOrPartition, text)
            })?;
            Ok(Target::Topic(topic))
        }
        resource::BROKER if name.is_empty() => Ok(Target::Broker(None)),
        resource::BROKER => {
            check_broker(name, node)?;
            Ok(Target::Broker(Some(node)))
        }
        resource::BROKER_LOGGER => {
            check_broker(name, node)?;
            let text = "log levels can't be changed at run time; set RUST_LOG and restart";
            Err(Refusal::new(ErrorCode::InvalidConfig, text))
        }
        resource::GROUP if name.is_empty() => Err(Refusal::invalid(
            "groups have no defaults of their own; name a group",
        )),
        resource::GROUP => Ok(Target::Group(name)),
        resource::CLIENT_METRICS => Err(Refusal::invalid(
            "client metrics are not collected by this server",
        )),
        other => Err(Refusal::invalid(format!(
            "resource type {other} does not exist"
        ))),
    }
}

/// Whether a resource name is this broker's id.
pub fn check_broker(name: &str, node: i32) -> Result<(), Refusal> {
    match name.parse::<i32>() {
        Err(_) => Err(Refusal::invalid(format!(
            "a broker is named by its id, {name} is no number"
        ))),
        Ok(id) if id == node => Ok(()),
        Ok(id) => Err(Refusal::invalid(format!("this is broker {node}, not {id}"))),
    }
}

/// Keys of resources that are named more than once in a request: none of them is changed.
fn named_twice<'a>(resources: impl Iterator<Item = (i8, &'a str)>) -> BTreeSet<(i8, &'a str)> {
    let mut seen = BTreeSet::new();
    resources.filter(|key| !seen.insert(*key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Environment, NewTopic};

    const SET: i8 = 0;
    const DELETE: i8 = 1;
    const APPEND: i8 = 2;

    /// An image with one topic, `t`.
    fn image(configs: &[(&str, &str)]) -> Image {
        let image = Image::empty(Environment {
            node_id: 1,
            ..Environment::default()
        });
        let new = NewTopic {
            name: "t".into(),
            id: uuid::Uuid::from_u128(1),
            configs: map(configs),
            ..NewTopic::default()
        };
        let change = image.create_topic(&new).unwrap();
        image.apply(&change, Position(1)).unwrap()
    }

    fn map(pairs: &[(&str, &str)]) -> Configs {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    type Asked<'a> = (i8, &'a str, Option<&'a str>);

    fn run(
        image: &Image,
        key: (i8, &str),
        asked: &[Asked<'_>],
        replace: bool,
    ) -> Result<Configs, i16> {
        let edits = asked.iter().map(|&(operation, name, value)| Edit {
            name,
            operation,
            value,
        });
        let edits = Edits {
            kind: key.0,
            name: key.1,
            edits: edits.collect(),
            replace,
        };
        match decide(image, 1, &edits) {
            Ok(
                Change::TopicConfigsSet { configs, .. }
                | Change::BrokerConfigsSet { configs, .. }
                | Change::GroupConfigsSet { configs, .. },
            ) => Ok(configs),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal.code.code()),
        }
    }

    fn topic(image: &Image, asked: &[Asked<'_>]) -> Result<Configs, i16> {
        run(image, (resource::TOPIC, "t"), asked, false)
    }

    #[test]
    fn values_are_kept_in_one_form() {
        let image = image(&[("segment.bytes", "2000000")]);
        let got = topic(&image, &[(SET, "retention.ms", Some(" 5000 "))]);
        assert_eq!(
            got,
            Ok(map(&[
                ("retention.ms", "5000"),
                ("segment.bytes", "2000000")
            ]))
        );
        let got = topic(&image, &[(APPEND, "cleanup.policy", Some(" compact "))]).unwrap();
        assert_eq!(got["cleanup.policy"], "delete,compact");
        // Deleting what is not set, or not known, changes nothing.
        let got = topic(
            &image,
            &[(DELETE, "segment.ms", None), (DELETE, "no.such", None)],
        );
        assert_eq!(got, Ok(map(&[("segment.bytes", "2000000")])));
    }

    #[test]
    fn a_replacement_resets_the_others() {
        let image = image(&[("segment.bytes", "2000000"), ("retention.ms", "1")]);
        let replace = |asked: &[Asked<'_>]| run(&image, (resource::TOPIC, "t"), asked, true);
        let flush = (SET, "flush.ms", Some("7"));
        assert_eq!(replace(&[flush]), Ok(map(&[("flush.ms", "7")])));
        assert_eq!(replace(&[]), Ok(Configs::new()));
        assert_eq!(replace(&[flush, flush]), Err(42));
        assert_eq!(replace(&[(SET, "flush.ms", None)]), Err(42));
        assert_eq!(replace(&[(SET, "no.such", Some("1"))]), Err(40));
    }

    #[test]
    fn a_bad_edit_spoils_the_whole_resource() {
        let image = image(&[]);
        let good = (SET, "flush.ms", Some("7"));
        assert_eq!(
            topic(&image, &[good, (SET, "retention.ms", Some("abc"))]),
            Err(40)
        );
        assert_eq!(topic(&image, &[good, (SET, "retention.ms", None)]), Err(42));
        assert_eq!(
            topic(&image, &[good, (9, "retention.ms", Some("1"))]),
            Err(42)
        );
        assert_eq!(topic(&image, &[good, good]), Err(42));
        assert_eq!(
            topic(&image, &[good, (APPEND, "retention.ms", Some("1"))]),
            Err(40)
        );
    }

    #[test]
    fn resources_must_exist() {
        let image = image(&[]);
        let code = |key| run(&image, key, &[(SET, "retention.ms", Some("1"))], false).unwrap_err();
        assert_eq!(code((resource::TOPIC, "unknown")), 3);
        assert_eq!(code((resource::TOPIC, "bad name")), 17);
        assert_eq!(code((resource::TOPIC, "")), 42);
        assert_eq!(code((resource::BROKER, "77")), 42);
        assert_eq!(code((resource::BROKER, "abc")), 42);
        assert_eq!(code((resource::BROKER_LOGGER, "1")), 40);
        assert_eq!(code((resource::BROKER_LOGGER, "2")), 42);
        assert_eq!(code((resource::GROUP, "")), 42);
        assert_eq!(code((resource::GROUP, "g")), 40);
        assert_eq!(code((99, "x")), 42);
    }

    #[test]
    fn brokers_report_bad_values_as_bad_requests() {
        let image = image(&[]);
        let one = |name, edit| run(&image, (resource::BROKER, name), &[edit], false);
        let threads = (SET, "log.cleaner.threads", Some("2"));
        assert_eq!(one("1", threads), Ok(map(&[("log.cleaner.threads", "2")])));
        assert_eq!(one("", threads), Ok(map(&[("log.cleaner.threads", "2")])));
        assert_eq!(one("1", (SET, "log.cleaner.threads", Some("abc"))), Err(42));
        assert_eq!(one("1", (SET, "log.dirs", Some("/x"))), Err(42));
        assert_eq!(one("", (SET, "listeners", Some("x"))), Err(42));
    }

    #[test]
    fn resources_named_twice_are_found() {
        let keys = [(2, "a"), (2, "b"), (4, "a"), (2, "a")];
        let twice = named_twice(keys.into_iter());
        assert_eq!(twice.into_iter().collect::<Vec<_>>(), [(2, "a")]);
    }
}
