//! `nearhop controller` at work: nodes, pods and Services are moved about in an embedded API, and
//! what the controller publishes is judged by what it must mean.

mod adoption;
mod common;
mod gates;
mod labelled;
mod locators;
mod modes;
mod nodes;
mod once;
mod restart;
mod rollout;
mod scenarios;
mod status;
mod switching;
