//! Names of topics: what is allowed, and what would collide in metric names.

use super::error::CatalogError;

/// Longest allowed name, in bytes.
pub const MAX_NAME: usize = 249;

/// The internal topic of group offsets.
pub const CONSUMER_OFFSETS: &str = "__consumer_offsets";
/// The internal topic of transactions.
pub const TRANSACTION_STATE: &str = "__transaction_state";
/// The internal topic of share groups.
pub const SHARE_GROUP_STATE: &str = "__share_group_state";

/// Whether clients may not write to or remove the topic of that name.
pub fn is_internal(name: &str) -> bool {
    [CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE].contains(&name)
}

/// Whether names of topics may look like that.
pub fn validate(name: &str) -> Result<(), CatalogError> {
    let invalid = |text: String| Err(CatalogError::InvalidTopic(text));
    if name.is_empty() {
        return invalid("Topic name is invalid: the empty string is not allowed".to_owned());
    }
    if name == "." || name == ".." {
        return invalid(format!("Topic name is invalid: '{name}' is not allowed"));
    }
    if name.len() > MAX_NAME {
        return invalid(format!(
            "Topic name is invalid: the length of '{name}' is longer than the max allowed length \
             {MAX_NAME}"
        ));
    }
    if !name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    {
        return invalid(format!(
            "Topic name is invalid: '{name}' contains one or more characters other than ASCII \
             alphanumerics, '.', '_' and '-'"
        ));
    }
    Ok(())
}

/// The name as it stands in metrics, where '.' and '_' can't be told apart. Two topics must not
/// share it.
pub fn metric_name(name: &str) -> String {
    name.replace('.', "_")
}
