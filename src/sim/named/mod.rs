//! One history for each fault that a careless store would have.
