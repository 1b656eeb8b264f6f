//! The service proxy of one node.
