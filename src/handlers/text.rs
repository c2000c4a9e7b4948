//! Between the wire's strings, which are slices of frames, and names that are kept.

use std::sync::Arc;

use kafka_protocol::protocol::StrBytes;

/// A name in memory of its own: what is kept must not hold the frame it came in.
pub fn name(text: &StrBytes) -> Arc<str> {
    match text.is_empty() {
        // Shared: most texts that may be left out are.
        true => Arc::default(),
        false => Arc::from(text.as_str()),
    }
}

/// A name that may be absent.
pub fn some_name(text: &Option<StrBytes>) -> Option<Arc<str>> {
    text.as_ref().map(name)
}

/// A kept name for an answer.
pub fn text(name: &str) -> StrBytes {
    StrBytes::from_string(name.to_owned())
}

/// A kept name for an answer, or none.
pub fn some_text(name: &Option<Arc<str>>) -> Option<StrBytes> {
    name.as_deref().map(text)
}
