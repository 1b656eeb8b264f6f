//! A tiny text language for clusters.
