#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what building, testing and showing posthaste needs and this machine
# lacks: Debian or Ubuntu packages, then the Rust toolchain that
# rust-toolchain.toml names, then the trees that setup-systemd.sh makes. Changes nothing when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

# rustup is taken from the distribution where it has one (Ubuntu 24.04). Debian
# 12 has none, and its rustc is too old, so there the Rust project's own
# installer is fetched: this version, checked against these sums.
readonly RUSTUP_VERSION=1.29.0
readonly RUSTUP_SHA256_X86_64=4acc9acc76d5079515b46346a485974457b5a79893cfb01112423c89aeb5aa10
readonly RUSTUP_SHA256_AARCH64=9732d6c5e2a098d3521fca8145d826ae0aaa067ef2385ead08e6feac88fa5792

libraries=/usr/lib/$(uname -m)-linux-gnu
packages=()
services=()

main() {
    require_root
    check_kernel
    find_missing_packages
    if ((${#packages[@]} > 0)); then
        install_packages
    fi
    install_toolchain
    scripts/setup-systemd.sh
    say "ready"
}

say() { printf 'setup: %s\n' "$*"; }
die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

require_root() {
    ((EUID == 0)) || die "root is needed (packages, network namespaces, eBPF): run 'sudo make setup'"
}

# Building works anywhere; running needs sk_lookup, SO_MARK matching and ring
# buffers as Linux 6.1 has them.
check_kernel() {
    local major minor
    IFS=. read -r major minor _ < <(uname -r)
    if ((major * 100 + ${minor%%[!0-9]*} < 601)); then
        say "warning: Linux $(uname -r) is older than 6.1: posthaste will build but not run here"
    fi
}

find_missing_packages() {
    # what must be there, the package that has it, what it is for
    command_in clang clang "compiles the eBPF programs"
    command_in gcc gcc "links"
    command_in make make "runs the verbs"
    file_at "$libraries/libc.a" libc6-dev "static C library, kernel headers"
    file_at /etc/ssl/certs/ca-certificates.crt ca-certificates "downloads"
    command_in curl curl "downloads; web client of tests"
    command_in nginx nginx "web server of demo and tests"
    command_in openssl openssl "TLS in the tests"
    command_in wrk wrk "loads web servers in the tests"
    command_in iperf3 iperf3 "moves much in the tests"
    command_in ssh openssh-client "logs in in the tests"
    command_in sshd openssh-server "is logged in to in the tests"
    command_in ip iproute2 "network namespaces of demo and tests"
    command_in systemd-analyze systemd "checks the units in the tests"
    command_in setpriv util-linux "runs a service as its user in the tests"
    command_in debootstrap debootstrap "makes the files of hosts with systemd in the tests"
    file_at /usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring "verifies their packages"
    command_in nft nftables "firewalls of the tests"
    command_in ethtool ethtool "offloads of interfaces in the tests"
}

command_in() {
    command -v "$1" >/dev/null || missing "$2" "$3"
}

file_at() {
    [[ -e $1 ]] || missing "$2" "$3"
}

missing() {
    say "missing: $1 ($2)"
    packages+=("$1")
}

install_packages() {
    command -v apt-get >/dev/null || die "no apt-get here: install the packages above by hand, then run this again"
    say "installing: ${packages[*]}"
    keep_services_off
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -q -y --no-install-recommends "${packages[@]}"
}

# Some packages bring services. The tests start their own in their own
# namespaces, so a service that this script brought in must not come up on the
# host, now or at the next boot.
keep_services_off() {
    local package
    services=()
    for package in "${packages[@]}"; do
        case $package in
        nginx) services+=(nginx.service) ;;
        openssh-server) services+=(ssh.service ssh.socket) ;;
        esac
    done
    if ((${#services[@]} == 0)) || ! command -v systemctl >/dev/null; then
        return 0
    fi
    say "left switched off: ${services[*]}"
    systemctl --quiet --runtime mask "${services[@]}" || true
    trap 'systemctl --quiet --runtime unmask "${services[@]}" && systemctl --quiet disable "${services[@]}" || true' EXIT
}

wanted_toolchain() {
    sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml
}

install_toolchain() {
    local wanted
    wanted=$(wanted_toolchain)
    export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    if ! command -v rustup >/dev/null; then
        if toolchain_without_rustup "$wanted"; then
            return
        fi
        install_rustup
    fi
    if ! toolchain_complete "$wanted"; then
        say "installing Rust $wanted with rustfmt and clippy"
        rustup toolchain install "$wanted" --no-self-update --profile minimal --component rustfmt,clippy
    fi
}

# A cargo that did not come by rustup will do if it is new enough.
toolchain_without_rustup() {
    local have
    have=$(cargo --version 2>/dev/null | cut -d' ' -f2) || return 1
    [[ $(printf '%s\n' "$1" "$have" | sort -V | head -n1) == "$1" ]] &&
        command -v cargo-fmt >/dev/null && command -v cargo-clippy >/dev/null
}

toolchain_complete() {
    local component
    for component in cargo rustfmt cargo-clippy; do
        rustup which --toolchain "$1" "$component" >/dev/null 2>&1 || return 1
    done
}

install_rustup() {
    if [[ -n $(apt-cache search --names-only '^rustup$' 2>/dev/null) ]]; then
        say "installing rustup (the Rust toolchain installer) from the distribution"
        apt-get install -q -y --no-install-recommends rustup
    else
        install_rustup_from_project
    fi
}

install_rustup_from_project() {
    local machine sum scratch
    machine=$(uname -m)
    case $machine in
    x86_64) sum=$RUSTUP_SHA256_X86_64 ;;
    aarch64) sum=$RUSTUP_SHA256_AARCH64 ;;
    *) die "no Rust installer known for $machine: install rustup by hand, then run this again" ;;
    esac
    say "installing rustup $RUSTUP_VERSION (the Rust toolchain installer) from the Rust project into ${CARGO_HOME:-$HOME/.cargo}"
    scratch=$(mktemp -d)
    curl --proto '=https' --tlsv1.2 -fsS --retry 3 -o "$scratch/rustup-init" \
        "https://static.rust-lang.org/rustup/archive/$RUSTUP_VERSION/$machine-unknown-linux-gnu/rustup-init"
    echo "$sum  $scratch/rustup-init" | sha256sum --check --quiet
    chmod +x "$scratch/rustup-init"
    "$scratch/rustup-init" -y -q --no-modify-path --default-toolchain none
    rm -r "$scratch"
}

main
