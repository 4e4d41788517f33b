// SPDX-License-Identifier: Apache-2.0
//! The real program in network namespaces: what clients, servers and operators see of a node.
//!
//! Each test builds a network of its own, so tests run side by side. Waiting is on conditions
//! with generous deadlines: a slow machine makes a test slow, not wrong. Needs root.

mod accept_modes;
mod back_pressure;
mod bypass;
mod bystanders;
mod capture;
mod chain_validation;
mod chain_verbs;
mod chains;
mod churn;
mod clients;
mod clock;
mod configuration;
mod controller;
mod convert;
mod cost;
mod documents;
mod ends;
mod fixed;
mod fixes;
mod following;
mod foreign;
mod fragments;
mod hop_congestion;
mod hostile;
mod lab;
mod last_words;
mod loops;
mod low_ports;
mod measuring;
mod multipath;
mod neighbour;
mod observing;
mod odd_clients;
mod operations;
mod order;
mod packet_path;
mod patience;
mod payload;
mod pitfalls;
mod plan;
mod proxy;
mod requests;
mod reuse;
mod routers;
mod rules;
mod run;
mod saved;
mod slow_readers;
mod support;
mod syn_options;
mod systemd;
mod transparency;
mod tryout;
mod tunnels;
mod upgrade;
mod upstream_ports;
mod validation;
mod verbs;
mod warm;
mod watch;
