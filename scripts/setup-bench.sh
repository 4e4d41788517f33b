#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what `posthaste-lab compare` and `tunnels` compare posthaste with and
# this machine lacks: Debian or Ubuntu packages. Changes nothing when everything is there.
set -euo pipefail

packages=()
services=()

main() {
    ((EUID == 0)) || die "root is needed (packages): run 'sudo make setup-bench'"
    command -v haproxy >/dev/null || missing haproxy
    command -v mptcpize >/dev/null || missing mptcpize
    command -v nginx >/dev/null || missing nginx-light
    command -v c++ >/dev/null || missing g++
    [[ -e /usr/include/udt/udt.h ]] || missing libudt-dev
    [[ -e /usr/lib/nginx/modules/ngx_stream_module.so ]] || missing libnginx-mod-stream
    if ((${#packages[@]} > 0)); then
        install_packages
    fi
    say "ready"
}

say() { printf 'setup-bench: %s\n' "$*"; }
die() {
    printf 'setup-bench: %s\n' "$*" >&2
    exit 1
}

missing() {
    say "missing: $1"
    packages+=("$1")
}

install_packages() {
    command -v apt-get >/dev/null || die "no apt-get here: install the packages above by hand, then run this again"
    keep_services_off
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -q -y --no-install-recommends "${packages[@]}"
}

# The benchmark starts its own, in namespaces. What this script brought in must
# not come up on the host, now or at the next boot.
keep_services_off() {
    local package
    for package in "${packages[@]}"; do
        case $package in
        haproxy) services+=(haproxy.service) ;;
        nginx-light) services+=(nginx.service) ;;
        esac
    done
    if ((${#services[@]} == 0)) || ! command -v systemctl >/dev/null; then
        return 0
    fi
    say "left switched off: ${services[*]}"
    systemctl --quiet --runtime mask "${services[@]}" || true
    trap 'systemctl --quiet --runtime unmask "${services[@]}" && systemctl --quiet disable "${services[@]}" || true' EXIT
}

main
