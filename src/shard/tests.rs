//! Rules of layouts, under random histories.
