//! Whole clusters in the fixture language: the slices that the controller writes and the endpoints
//! that nodes choose.

mod common;
mod dns;
mod intent;
mod kep_2433;
mod kep_536;
mod load_plan;
mod plans;
mod routes;
mod world;
