//! Tables, checks and layers of configs.
