// SPDX-License-Identifier: Apache-2.0
//! Collecting a message that arrives in pieces.

use crate::Progress;

/// The bytes of one message so far. It takes no byte that does not belong to
/// the message, and grows no further than the parser needs: every parser here
/// bounds that by its message's greatest length.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gather(Vec<u8>);

impl Gather {
    /// Takes what `parse` needs from the front of `input`. `consumed` of the
    /// answer counts bytes of `input`. When more is needed, all of `input`
    /// was taken.
    pub(crate) fn feed<T, E>(
        &mut self,
        input: &[u8],
        parse: impl Fn(&[u8]) -> Result<Progress<T>, E>,
    ) -> Result<Progress<T>, E> {
        let mut rest = input;
        // Byte counts come from the parser only: what follows the message is the flow's, and stays
        // with the caller.
        loop {
            match parse(&self.0)? {
                Progress::Done { value, .. } => {
                    self.0.clear();
                    let consumed = input.len() - rest.len();
                    return Ok(Progress::Done { value, consumed });
                }
                Progress::NeedMore(missing) if rest.is_empty() => {
                    return Ok(Progress::NeedMore(missing));
                }
                Progress::NeedMore(missing) => {
                    let (now, later) = rest.split_at(missing.min(rest.len()));
                    self.0.extend_from_slice(now);
                    rest = later;
                }
            }
        }
    }
}
