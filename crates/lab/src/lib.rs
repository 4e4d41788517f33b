// SPDX-License-Identifier: Apache-2.0
//! Networks, experiments and records for posthaste.
//!
//! The lab builds networks of namespaces joined by emulated links ([`network`]), runs the product
//! in them as an operator would ([`node`]), times transfers ([`transfer`]) and writes dated records
//! ([`record`]): samples with the model's predictions, targets ([`target`]), and which of the samples
//! a chart shows ([`chart`]). Tables and charts are made from the record alone. It uses the product only as a program; the exception is
//! [`fleet`], which plays a thousand nodes with the product's code. Everything it makes is in its
//! own namespaces and is removed with it, even when it is killed.
//!
//! Most of it needs root.

pub mod boot;
mod chain;
pub mod chart;
pub mod compare;
mod content;
mod controller;
pub mod demo;
pub mod echo;
mod ends;
pub mod fleet;
pub mod flood;
pub mod handover;
mod http;
pub mod link;
pub mod load;
pub mod machine;
mod mesh;
pub mod mix;
mod model;
pub mod multipath;
mod names;
pub mod netns;
pub mod network;
pub mod nginx;
pub mod node;
pub mod planning;
mod poll;
pub mod process;
pub mod record;
mod regions;
pub mod rng;
pub mod router_churn;
pub mod scratch;
pub mod senders;
mod sizes;
mod socket;
pub mod stats;
mod stream;
pub mod synflood;
mod sys;
pub mod table;
pub mod target;
mod threads;
pub mod transfer;
pub mod transfers;
pub mod tunnels;
mod web;
