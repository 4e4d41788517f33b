#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the file trees from which the tests boot systemd: of Debian 12 and 13, in DIRECTORY, each
# once. A tree names the script that made it, so a changed script makes it anew, and
# crates/lab/src/machine.rs refuses one of another script.
set -euo pipefail
cd "$(dirname "$0")"

readonly DIRECTORY=/var/cache/posthaste/roots
readonly RELEASES=(bookworm trixie)
# systemctl works without a bus; README's commands need sudo.
readonly PACKAGES=systemd,iproute2,sudo
# What would change the host, looks for hardware, or only takes time.
readonly MASKED=(
    systemd-modules-load.service systemd-sysctl.service systemd-random-seed.service
    systemd-remount-fs.service systemd-firstboot.service systemd-pcrphase.service
    systemd-update-utmp.service systemd-update-utmp-runlevel.service systemd-logind.service
    systemd-networkd.service systemd-timesyncd.service getty.target
    dev-hugepages.mount sys-kernel-debug.mount sys-kernel-tracing.mount
    sys-kernel-config.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer
    e2scrub_all.timer systemd-tmpfiles-clean.timer
)

main() {
    local release making=()
    mkdir -p "$DIRECTORY"
    for release in "${RELEASES[@]}"; do
        is_current "$release" && continue
        printf 'setup: making the tree of %s\n' "$release"
        make_tree "$release" &
        making+=($!)
    done
    for release in "${making[@]}"; do
        wait "$release"
    done
}

is_current() {
    cmp --silent setup-systemd.sh "$DIRECTORY/$1/setup-systemd.sh"
}

make_tree() {
    local release=$1 tree
    tree=$(mktemp -d "$DIRECTORY/.$release-XXXXXX")
    if ! debootstrap --variant=minbase --include="$PACKAGES" "$release" "$tree" >"$tree.log" 2>&1; then
        tail -n 5 "$tree.log" >&2
        rm -rf "$tree" "$tree.log"
        printf 'setup: the packages of Debian %s could not be fetched\n' "$release" >&2
        return 1
    fi
    rm -rf "$tree.log" "$tree"/var/cache/apt/archives/*.deb "$tree"/var/lib/apt/lists/*
    prepare "$tree"
    rm -rf "${DIRECTORY:?}/$release"
    chmod 755 "$tree"
    mv "$tree" "$DIRECTORY/$release"
}

prepare() {
    local tree=$1 unit
    for unit in "${MASKED[@]}"; do
        ln -sf /dev/null "$tree/etc/systemd/system/$unit"
    done
    # Every boot has an id of its own.
    : >"$tree/etc/machine-id"
    cp setup-systemd.sh "$tree/"
}

main
