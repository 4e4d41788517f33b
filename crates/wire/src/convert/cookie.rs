// SPDX-License-Identifier: Apache-2.0
//! The cookie of a converter (RFC 8803 §6.2.7), by which a client shows that
//! it receives what is sent to its address.

use std::net::IpAddr;

use crate::seal::{Key, MAC_BYTES};

/// What a cookie begins with, so that it can be taken for no seal.
const DOMAIN: &[u8; 16] = b"posthaste cookie";

/// The cookie of the client at `address`. `key` is the converter's own secret.
pub fn cookie(key: &Key, address: IpAddr) -> [u8; MAC_BYTES] {
    key.mac(&[DOMAIN, &octets(address)])
}

/// Whether `cookie` is that of the client at `address`. Takes the same time
/// wherever it is wrong.
pub fn is_cookie_of(key: &Key, address: IpAddr, cookie: &[u8]) -> bool {
    let Ok(cookie) = <&[u8; MAC_BYTES]>::try_from(cookie) else {
        return false;
    };
    key.matches(&[DOMAIN, &octets(address)], cookie)
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_for_one_address_of_one_converter() {
        let key = Key::new([7; 32]);
        let addresses: [IpAddr; 3] =
            ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|text| text.parse().expect("an address"));
        for one in addresses {
            let bytes = cookie(&key, one);
            for other in addresses {
                assert_eq!(is_cookie_of(&key, other, &bytes), one == other);
            }
            assert!(!is_cookie_of(&Key::new([8; 32]), one, &bytes));
            assert!(!is_cookie_of(&key, one, &bytes[..12]));
            assert!(!is_cookie_of(&key, one, b""));
        }
    }
}
