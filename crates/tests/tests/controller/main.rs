//! `nearhop controller` with an embedded API server: tests change nodes, pods and Services, and check
//! the published slices and the routes that follow from them.

mod adoption;
mod common;
mod gates;
mod ignored;
mod labelled;
mod locators;
mod modes;
mod nodes;
mod once;
mod reach;
mod restart;
mod rollout;
mod scenarios;
mod status;
mod switching;
