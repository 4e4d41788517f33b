// SPDX-License-Identifier: Apache-2.0
//! What a peer may make of a stream with repair symbols. For fuzzing; not part of the product.

use bytes::{Buf, Bytes};

use super::{Assembly, Repair};

/// Repair symbols, pieces, reads and pieces forgotten, as the input has them.
pub fn drive_assembly(input: &[u8]) {
    let mut input = Bytes::copy_from_slice(input);
    let mut assembly = Assembly::new(0);
    while input.remaining() >= 5 {
        let (kind, offset, length) = (input.get_u8(), input.get_u16(), input.get_u16());
        match kind % 4 {
            0 => {
                let datagram = input.split_to(input.len().min(length.into()));
                if let Some(repair) = Repair::parse(&datagram) {
                    assembly.on_repair(&repair);
                }
            }
            1 => {
                let piece = input.split_to(input.len().min(length.into()));
                let _beyond = assembly.insert(offset.into(), &piece);
            }
            2 => {
                let mut buffer = vec![0; length.into()];
                let count = assembly.read(&mut buffer);
                assert!(count <= buffer.len());
            }
            _ => assembly.forget(offset.into()),
        }
        assembly.check();
    }
    let _less = assembly.on_end();
}
