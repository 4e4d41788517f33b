// SPDX-License-Identifier: Apache-2.0
//! The cookie of a converter (RFC 8803 §6.2.7), by which a client shows that
//! it receives what is sent to its address. It is a text, for clients that keep theirs in one.

use std::net::IpAddr;

use crate::auth::{Key, MAC_BYTES};
use crate::header::mapped;

/// What a cookie begins with, so that it can be taken for no authentication tag.
const DOMAIN: &[u8; 16] = b"posthaste cookie";

/// The cookie of the client at `address`. `key` is the converter's own secret.
pub fn cookie(key: &Key, address: IpAddr) -> String {
    // Computed again for each check: the converter stores nothing for unvalidated clients.
    let code = key.mac(&[DOMAIN, &mapped(address)]);
    code.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether `cookie` is that of the client at `address`. Takes the same time
/// wherever it is wrong.
pub fn is_cookie_of(key: &Key, address: IpAddr, cookie: &[u8]) -> bool {
    let code = std::str::from_utf8(cookie).ok().and_then(bytes_of);
    code.is_some_and(|code| key.matches(&[DOMAIN, &mapped(address)], &code))
}

/// The bytes that a text of lower-case hexadecimal digits stands for.
fn bytes_of(text: &str) -> Option<[u8; MAC_BYTES]> {
    // One spelling for each cookie; `from_str_radix` alone would take upper case and signs, too.
    let digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if text.len() != 2 * MAC_BYTES || !text.as_bytes().iter().all(digit) {
        return None;
    }
    let mut bytes = [0; MAC_BYTES];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_per_address() {
        let key = Key::new([7; 32]);
        let addresses: [IpAddr; 3] =
            ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|text| text.parse().expect("an address"));
        for one in addresses {
            let text = cookie(&key, one);
            assert!(text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()));
            for other in addresses {
                assert_eq!(is_cookie_of(&key, other, text.as_bytes()), one == other);
            }
            assert!(!is_cookie_of(&Key::new([8; 32]), one, text.as_bytes()));
            for wrong in [
                text[..12].to_owned(),
                text.to_uppercase(),
                text.clone() + "00",
                String::new(),
            ] {
                assert!(!is_cookie_of(&key, one, wrong.as_bytes()), "{wrong}");
            }
        }
    }
}
