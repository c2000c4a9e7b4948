//! What clients may rely on, one module per topic.
