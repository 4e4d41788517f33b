// SPDX-License-Identifier: Apache-2.0
//! Messages on a stream of bytes: a length of four bytes, big-endian, and the message in postcard's
//! encoding (<https://postcard.jamesmunns.com/wire-format>). Pure: the owner of the stream reads and
//! writes.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message, in bytes without its length. All rows of a node among a thousand take less
/// than a tenth of it.
pub const MESSAGE_MAX: usize = 16 << 20;

/// Bytes of the length before each message.
pub const LENGTH_BYTES: usize = 4;

/// Why the other end cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is above [`MESSAGE_MAX`].
    #[error("a message of {0} bytes, and {MESSAGE_MAX} are the most")]
    TooLong(u32),
    /// The bytes are no message of the kind expected here.
    #[error("a message of {0} bytes that cannot be read")]
    Unreadable(usize),
}

/// Appends a message with its length.
///
/// # Errors
/// [`FrameError::TooLong`]; `to` is as it was then.
pub fn write<T: Serialize>(message: &T, to: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = to.len();
    let mut bytes = std::mem::take(to);
    bytes.extend_from_slice(&[0; LENGTH_BYTES]);
    *to = postcard::to_extend(message, bytes).expect("a vector takes every message");
    let length = to.len() - start - LENGTH_BYTES;
    if length > MESSAGE_MAX {
        // The messages before it in the buffer are whole, and go out.
        to.truncate(start);
        return Err(FrameError::TooLong(
            u32::try_from(length).unwrap_or(u32::MAX),
        ));
    }
    let length = u32::try_from(length).expect("below the bound");
    to[start..start + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

/// How long the message behind these first bytes is.
///
/// # Errors
/// [`FrameError::TooLong`].
pub fn length(bytes: [u8; LENGTH_BYTES]) -> Result<usize, FrameError> {
    let length = u32::from_be_bytes(bytes);
    // Checked before the message is read: the length decides how much the receiver stores.
    match usize::try_from(length) {
        Ok(bytes) if bytes <= MESSAGE_MAX => Ok(bytes),
        _ => Err(FrameError::TooLong(length)),
    }
}

/// Reads a whole message, of which nothing may be left over.
///
/// # Errors
/// [`FrameError::Unreadable`].
pub fn read<T: DeserializeOwned>(message: &[u8]) -> Result<T, FrameError> {
    match postcard::take_from_bytes(message) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Unreadable(message.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{PlanVersion, ToController};

    #[test]
    fn message_round_trip() {
        let messages = [
            ToController::Time {
                mark: 1,
                ahead_us: Some(-1),
            },
            ToController::Holds(PlanVersion {
                epoch: 1,
                version: 300,
            }),
        ];
        let mut stream = Vec::new();
        for message in &messages {
            write(message, &mut stream).unwrap();
        }
        for message in messages {
            let (head, rest) = stream.split_first_chunk().unwrap();
            let length = length(*head).unwrap();
            assert_eq!(read::<ToController>(&rest[..length]).unwrap(), message);
            stream.drain(..LENGTH_BYTES + length);
        }
        assert!(stream.is_empty());
    }

    #[test]
    fn oversized_message_refused() {
        let mut stream = vec![7];
        let error = write(&vec![0_u8; MESSAGE_MAX + 1], &mut stream).unwrap_err();
        assert!(matches!(error, FrameError::TooLong(_)), "{error}");
        assert_eq!(stream, [7]);
        let most = u32::try_from(MESSAGE_MAX).unwrap();
        assert_eq!(length(most.to_be_bytes()), Ok(MESSAGE_MAX));
        let more = (most + 1).to_be_bytes();
        assert_eq!(length(more), Err(FrameError::TooLong(most + 1)));
    }

    #[test]
    fn noise_is_no_message() {
        for noise in [&[][..], &[0xff; 3], &[4, 0]] {
            let read = read::<ToController>(noise);
            assert_eq!(read, Err(FrameError::Unreadable(noise.len())));
        }
    }
}
