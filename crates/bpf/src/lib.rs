// SPDX-License-Identifier: Apache-2.0
mod skel { include!(concat!(env!("OUT_DIR"), "/redirect.skel.rs")); }
