//! Values of configuration keys, and errors that say what would have been right.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Why a configuration is refused. Each message names the key, its value and what is allowed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// A value does not fit its key.
    #[error("{key}={value} (from {origin}): {allowed}")]
    Value {
        /// The key as written.
        key: String,
        /// The value as written.
        value: String,
        /// Where it was set.
        origin: String,
        /// What is allowed.
        allowed: String,
    },
    /// A file, an argument or a line cannot be read.
    #[error("{0}")]
    Source(String),
}

/// One value with its origin, ready to be parsed.
#[derive(Clone, Copy, Debug)]
pub struct Raw<'a> {
    /// The key as written.
    pub key: &'a str,
    /// The value as written.
    pub value: &'a str,
    /// Where it was set.
    pub origin: &'a str,
}

impl Raw<'_> {
    /// An error about this value.
    pub fn error(&self, allowed: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            key: self.key.to_owned(),
            value: self.value.to_owned(),
            origin: self.origin.to_owned(),
            allowed: allowed.into(),
        }
    }

    /// A whole number within a range.
    pub fn number<T>(&self, range: RangeInclusive<T>) -> Result<T, ConfigError>
    where
        T: FromStr + PartialOrd + Display,
    {
        match self.value.trim().parse::<T>() {
            Ok(n) if range.contains(&n) => Ok(n),
            _ => Err(self.error(format!(
                "a whole number from {} to {} is allowed",
                range.start(),
                range.end()
            ))),
        }
    }

    /// `true` or `false`, in any case as Kafka takes it.
    pub fn boolean(&self) -> Result<bool, ConfigError> {
        let value = self.value.trim();
        if value.eq_ignore_ascii_case("true") {
            Ok(true)
        } else if value.eq_ignore_ascii_case("false") {
            Ok(false)
        } else {
            Err(self.error("true or false is allowed"))
        }
    }

    /// The parts between commas, trimmed, without empty ones.
    pub fn list(&self) -> Vec<&str> {
        split_list(self.value)
    }

    /// One of a set of words.
    pub fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T, ConfigError> {
        let value = self.value.trim();
        choices
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(value))
            .map(|(_, t)| *t)
            .ok_or_else(|| {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                self.error(format!("one of {} is allowed", words.join(", ")))
            })
    }
}

/// The parts between commas, trimmed, without empty ones.
pub fn split_list(value: &str) -> Vec<&str> {
    value
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw<'a>(key: &'a str, value: &'a str) -> Raw<'a> {
        Raw {
            key,
            value,
            origin: "test",
        }
    }

    #[test]
    fn a_refused_number_names_key_value_and_range() {
        let error = raw("num.partitions", "many").number(1..=9).unwrap_err();
        let text = error.to_string();
        for part in ["num.partitions", "many", "1", "9", "test"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(raw("k", "10").number(1..=9).is_err());
        assert_eq!(raw("k", " 9 ").number(1..=9), Ok(9));
    }

    #[test]
    fn a_refused_choice_lists_the_choices() {
        let choices = [("accept", 1), ("strict", 2)];
        assert_eq!(raw("k", "Strict").choice(&choices), Ok(2));
        let text = raw("k", "maybe").choice(&choices).unwrap_err().to_string();
        assert!(text.contains("accept, strict"), "{text}");
    }
}
