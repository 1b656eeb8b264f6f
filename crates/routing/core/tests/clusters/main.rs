//! Whole clusters, said in the fixture language: what the controller writes and what nodes choose.

mod common;
mod dns;
mod intent;
mod kep_2433;
mod kep_536;
mod load_plan;
mod plans;
mod routes;
mod world;
