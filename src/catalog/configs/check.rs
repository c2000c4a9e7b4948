//! What values may be, with messages as Kafka words them.

use super::table::{Check, ConfigDef, ConfigType, Scope, table};
use crate::catalog::codec::Configs;
use crate::catalog::error::CatalogError;

/// Checks every config of a set by itself and the set as a whole.
pub fn validate_all(scope: Scope, configs: &Configs) -> Result<(), CatalogError> {
    for (name, value) in configs {
        let def = table(scope).get(name).ok_or_else(|| unknown(scope, name))?;
        validate(def, value)?;
    }
    if scope == Scope::Topic {
        between_topic_configs(configs)
    } else {
        Ok(())
    }
}

fn unknown(scope: Scope, name: &str) -> CatalogError {
    CatalogError::InvalidConfig(format!("Unknown {} config name: {name}", scope.word()))
}

/// Checks one value against its type and rule.
pub fn validate(def: &ConfigDef, value: &str) -> Result<(), CatalogError> {
    let number = match typed(def.kind, value.trim()) {
        Ok(number) => number,
        Err(reason) => return Err(invalid(def, value, &reason)),
    };
    if let Check::ListOf(words) = &def.check {
        return check_list(def, words, value);
    }
    check(&def.check, number, value.trim()).map_err(|reason| invalid(def, value.trim(), &reason))
}

fn invalid(def: &ConfigDef, value: &str, reason: &str) -> CatalogError {
    let name = def.name;
    CatalogError::InvalidConfig(format!(
        "Invalid value {value} for configuration {name}: {reason}"
    ))
}

/// The value as a number, where the type is one.
fn typed(kind: ConfigType, value: &str) -> Result<Option<f64>, String> {
    let not_a_number = || format!("Not a number of type {}", kind.name());
    let whole = |low: i64, high: i64| match value.parse::<i64>() {
        Ok(n) if (low..=high).contains(&n) => Ok(Some(n as f64)),
        _ => Err(not_a_number()),
    };
    match kind {
        ConfigType::Boolean => {
            let known = ["true", "false"]
                .iter()
                .any(|b| value.eq_ignore_ascii_case(b));
            let reason = "Expected value to be either true or false";
            if known {
                Ok(None)
            } else {
                Err(reason.to_owned())
            }
        }
        ConfigType::Short => whole(i64::from(i16::MIN), i64::from(i16::MAX)),
        ConfigType::Int => whole(i64::from(i32::MIN), i64::from(i32::MAX)),
        ConfigType::Long => whole(i64::MIN, i64::MAX),
        ConfigType::Double => value.parse().map(Some).map_err(|_| not_a_number()),
        ConfigType::String | ConfigType::List | ConfigType::Class | ConfigType::Password => {
            Ok(None)
        }
    }
}

fn check(rule: &Check, number: Option<f64>, value: &str) -> Result<(), String> {
    let number = number.unwrap_or(0.0);
    match rule {
        Check::Any | Check::ListOf(_) => Ok(()),
        Check::AtLeast(low) => at_least(number, *low),
        Check::Between(low, high) => {
            at_least(number, *low)?;
            // Written so that NaN is refused.
            if number <= *high as f64 {
                return Ok(());
            }
            Err(format!("Value must be no more than {high}"))
        }
        Check::Level(low, high) => {
            if number == -1.0 || (*low as f64..=*high as f64).contains(&number) {
                return Ok(());
            }
            Err(format!(
                "Value must be between {low} and {high} or equal to -1"
            ))
        }
        Check::OneOf(words) => one_of(words, value),
        Check::ThrottledReplicas => check_throttled(value),
        Check::OffsetReset => check_reset(value),
    }
}

fn at_least(number: f64, low: i64) -> Result<(), String> {
    if number >= low as f64 {
        Ok(())
    } else {
        Err(format!("Value must be at least {low}"))
    }
}

fn one_of(words: &[&str], value: &str) -> Result<(), String> {
    if words.contains(&value) {
        return Ok(());
    }
    Err(format!("String must be one of: {}", words.join(", ")))
}

fn check_list(def: &ConfigDef, words: &[&str], value: &str) -> Result<(), CatalogError> {
    let items = items(value);
    for (i, item) in items.iter().enumerate() {
        let fault = match item {
            &"" => "empty",
            item if items[..i].contains(item) => "duplicated",
            item => {
                one_of(words, item).map_err(|reason| invalid(def, item, &reason))?;
                continue;
            }
        };
        let text = format!("Configuration '{}' values must not be {fault}.", def.name);
        return Err(CatalogError::InvalidConfig(text));
    }
    Ok(())
}

fn check_throttled(value: &str) -> Result<(), String> {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let pair = |item: &&str| {
        item.split_once(':')
            .is_some_and(|(p, b)| number(p) && number(b))
    };
    if value == "*" || items(value).iter().all(pair) {
        return Ok(());
    }
    Err(
        "Must be the literal '*' or a list of replicas in the following format: \
         [partitionId]:[brokerId],[partitionId]:[brokerId],..."
            .to_owned(),
    )
}

fn check_reset(value: &str) -> Result<(), String> {
    let duration = value
        .to_ascii_lowercase()
        .strip_prefix("by_duration:")
        .map(str::to_owned);
    let known = match duration {
        Some(duration) => duration.starts_with('p') && duration.len() > 2,
        None => ["earliest", "latest"].contains(&value),
    };
    if known {
        return Ok(());
    }
    Err("value should be earliest, latest or by_duration:PnDTnHnMn.nS".to_owned())
}

/// The items of a list value.
fn items(value: &str) -> Vec<&str> {
    if value.trim().is_empty() {
        return Vec::new();
    }
    value.split(',').map(str::trim).collect()
}

/// The list value with the items of `more` that it does not hold yet at its end.
pub fn append(current: &str, more: &str) -> String {
    let mut all = items(current);
    for item in items(more) {
        if !all.contains(&item) {
            all.push(item);
        }
    }
    all.join(",")
}

/// The list value without the items of `less`.
pub fn subtract(current: &str, less: &str) -> String {
    let less = items(less);
    let mut all = items(current);
    all.retain(|item| !less.contains(item));
    all.join(",")
}

/// Rules between the configs of a topic that are set.
fn between_topic_configs(configs: &Configs) -> Result<(), CatalogError> {
    let number = |name: &str| configs.get(name).and_then(|v| v.trim().parse::<i64>().ok());
    if configs
        .get("remote.storage.enable")
        .is_some_and(|v| v.trim().eq_ignore_ascii_case("true"))
    {
        return Err(CatalogError::InvalidConfig(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured \
             with remote log storage."
                .to_owned(),
        ));
    }
    let lags = (
        number("min.compaction.lag.ms"),
        number("max.compaction.lag.ms"),
    );
    if let (Some(min), Some(max)) = lags
        && min > max
    {
        return Err(CatalogError::InvalidConfig(format!(
            "conflict topic config setting min.compaction.lag.ms ({min}) > max.compaction.lag.ms \
             ({max})"
        )));
    }
    Ok(())
}

/// Ranges that a broker's configs set for those of groups: config, least and greatest value.
const GROUP_RANGES: [(&str, Option<&str>, &str); 13] = [
    (
        "consumer.session.timeout.ms",
        Some("group.consumer.min.session.timeout.ms"),
        "group.consumer.max.session.timeout.ms",
    ),
    (
        "consumer.heartbeat.interval.ms",
        Some("group.consumer.min.heartbeat.interval.ms"),
        "group.consumer.max.heartbeat.interval.ms",
    ),
    (
        "consumer.assignment.interval.ms",
        Some("group.consumer.min.assignment.interval.ms"),
        "group.consumer.max.assignment.interval.ms",
    ),
    (
        "share.session.timeout.ms",
        Some("group.share.min.session.timeout.ms"),
        "group.share.max.session.timeout.ms",
    ),
    (
        "share.heartbeat.interval.ms",
        Some("group.share.min.heartbeat.interval.ms"),
        "group.share.max.heartbeat.interval.ms",
    ),
    (
        "share.assignment.interval.ms",
        Some("group.share.min.assignment.interval.ms"),
        "group.share.max.assignment.interval.ms",
    ),
    (
        "share.record.lock.duration.ms",
        Some("group.share.min.record.lock.duration.ms"),
        "group.share.max.record.lock.duration.ms",
    ),
    (
        "share.delivery.count.limit",
        Some("group.share.min.delivery.count.limit"),
        "group.share.max.delivery.count.limit",
    ),
    (
        "share.partition.max.record.locks",
        Some("group.share.min.partition.max.record.locks"),
        "group.share.max.partition.max.record.locks",
    ),
    (
        "streams.session.timeout.ms",
        Some("group.streams.min.session.timeout.ms"),
        "group.streams.max.session.timeout.ms",
    ),
    (
        "streams.heartbeat.interval.ms",
        Some("group.streams.min.heartbeat.interval.ms"),
        "group.streams.max.heartbeat.interval.ms",
    ),
    (
        "streams.assignment.interval.ms",
        Some("group.streams.min.assignment.interval.ms"),
        "group.streams.max.assignment.interval.ms",
    ),
    (
        "streams.num.standby.replicas",
        None,
        "group.streams.max.standby.replicas",
    ),
];

/// Checks the configs of a group, against the ranges that `broker` gives by name too.
pub fn validate_group(
    configs: &Configs,
    broker: &dyn Fn(&str) -> Option<i64>,
) -> Result<(), CatalogError> {
    validate_all(Scope::Group, configs)?;
    for (name, low, high) in GROUP_RANGES {
        let value = configs.get(name).and_then(|v| v.trim().parse::<i64>().ok());
        let Some((value, high)) = value.zip(broker(high)) else {
            continue;
        };
        let low = low.map_or(Some(0), broker).unwrap_or(0);
        if !(low..=high).contains(&value) {
            return Err(CatalogError::InvalidConfig(format!(
                "{name} must be in the range {low} to {high} inclusive."
            )));
        }
    }
    Ok(())
}
