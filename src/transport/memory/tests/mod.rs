//! The broker's rules, one file per idea.
