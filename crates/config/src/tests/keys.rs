// SPDX-License-Identifier: Apache-2.0
//! Keys of peers: where they stand, and that no message contains them.

use super::super::host::KeyFile;
use super::*;

/// No message about a wrong key contains it.
// promise: C2
#[test]
fn no_key_in_messages() {
    let digits = "c0ffee".repeat(10);
    let key = format!("{digits}dead");
    let (short, other) = (&key[..63], format!("{key}x"));
    for line in [
        format!("key = \"{short}\""),
        format!("key = \"{other}\""),
        format!("key = [\"{key}\"]"),
        format!("key = {key}"),
        format!("key = \"{key}\"\nkey_file = \"/x\""),
        format!("key_file = \"{key}\""),
        format!("key = \"{key}\"\nkey = \"{key}\""),
        format!("key = \"{key}"),
        format!("ky = \"{key}\""),
        format!("key = {}", "31337".repeat(7)),
    ] {
        let error = error_of(&format!("{NODE}[[peer]]\nname = \"a\"\n{line}"));
        let is_hidden = !error.contains("c0ffee") && !error.contains("31337");
        assert!(is_hidden, "{line}: {error}");
        assert!(error.starts_with("node.toml:"), "{error}");
    }
    let config = parse(&format!("version = 1\n{NODE}{PEER}")).unwrap();
    for shown in [
        config.to_string(),
        config.to_json().unwrap(),
        format!("{config:?}"),
    ] {
        assert!(!shown.contains("0101010101"), "{shown}");
    }
    assert!(config.to_string().contains("key = \"(hidden)\""));
}

#[test]
fn no_cookie_in_messages() {
    for line in ["cookie = \"open sesame\"", "cookie = [\"sesame\"]"] {
        let error = error_of(&format!("[access]\n{line}\n"));
        assert!(
            error.contains("access.cookie = (hidden): expected a text"),
            "{error}"
        );
        assert!(!error.contains("sesame"), "{error}");
    }
    let error = error_of("[[access]]\ncookie = \"sesame\"\n");
    assert!(error.contains("expected a section, [access]"), "{error}");
    assert!(!error.contains("sesame"), "{error}");
    let config = parse("version = 1\n[access]\ncookie = \"sesame\"\n").unwrap();
    assert!(
        config
            .policy
            .access
            .cookie
            .as_ref()
            .is_some_and(|cookie| cookie.is_sent_as(b"sesame\0\0"))
    );
    for shown in [config.to_string(), format!("{config:?}")] {
        assert!(!shown.contains("sesame"), "{shown}");
    }
    assert!(config.to_string().contains("cookie = \"(hidden)\""));
}

#[test]
fn wrong_key_files() {
    type Read = fn(&Path) -> std::io::Result<KeyFile>;
    let files: [(Read, &str); 2] = [
        (
            |_| {
                Ok(KeyFile {
                    text: "5a".into(),
                    for_all: false,
                })
            },
            "64 hexadecimal digits in it",
        ),
        (
            |_| Err(std::io::ErrorKind::PermissionDenied.into()),
            "cannot be read: permission denied",
        ),
    ];
    let file = PEER.replace("key = \"", "key_file = \"/");
    let parse = |key_file| {
        let host = Capacity { key_file, ..HOST };
        Config::parse(
            Path::new("node.toml"),
            &format!("version = 1\n{NODE}{file}"),
            &host,
        )
    };
    for (key_file, message) in files {
        let error = parse(key_file).unwrap_err().to_string();
        assert!(
            error.starts_with("node.toml:8:12: peer \"a\": key_file = \"/01")
                && error.contains(message),
            "{error}"
        );
    }
    let open = |_: &Path| {
        Ok(KeyFile {
            text: "5a".repeat(32),
            for_all: true,
        })
    };
    let warnings = parse(open).unwrap().warnings;
    assert!(
        warnings[0].contains("others may read or write it: chmod o= /01"),
        "{warnings:?}"
    );
}
