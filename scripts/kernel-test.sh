#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a static posthaste, the tests of the eBPF programs, some of Multipath TCP, and those of routers
# with VRFs and flowtables and of network cards, on Debian 12's Linux 6.1, the oldest kernel that a
# node supports, in an emulated machine without disk, whose cards are connected in pairs: an older
# verifier reads the programs there, and tc filters hold them.
#
#   scripts/kernel-test.sh POSTHASTE
#
# KERNEL_DEB names another kernel package; without it the one of this
# distribution is fetched.
set -euo pipefail
readonly HERE=$(cd "$(dirname "$0")" && pwd)
readonly CACHE=${CARGO_TARGET_DIR:-$HERE/../target}/kernel-test
readonly SECONDS_MAX=1800
# What iproute2, the node and the tests have the kernel load by itself.
readonly MODULES='drivers/net/(veth|tun|dummy|vrf|virtio_net|net_failover)|net/core/failover|net/(ipv4|ipv6|sched|netfilter)/[^/]*|net/ipv[46]/netfilter/nf_[^/]*|net/ipv4/[^/]*diag|lib/libcrc32c|crypto/crc32c[^/]*|arch/x86/crypto/crc32c[^/]*'

main() {
    (($# == 1)) || die "usage: $0 POSTHASTE"
    require qemu-system-x86_64 qemu-system-x86
    require ethtool ethtool
    ((EUID == 0)) || die "only root can make bridges for the cards of the machine"
    mkdir -p "$CACHE"
    fetch_packages
    build_image "$1" "$(test_binary -p posthaste-bpf --test programs)" "$(test_binary -p posthaste --test e2e)"
    boot
    judge
}

say() { printf 'kernel-test: %s\n' "$*"; }
die() {
    printf 'kernel-test: %s\n' "$*" >&2
    exit 1
}

require() {
    command -v "$1" >/dev/null || die "$1 is missing: apt-get install --no-install-recommends $2"
}

fetch_packages() {
    local kernel=${KERNEL_DEB:-}
    if [[ -z $kernel ]]; then
        kernel=$(newest_kernel)
        kernel=$(package "$kernel")
    fi
    unpack "$kernel" kernel
    unpack "$(package busybox-static)" busybox
}

newest_kernel() {
    local name
    name=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-6\.1\..*\)/\1/p' | head -n1)
    [[ -n $name ]] || die "this distribution has no Linux 6.1: set KERNEL_DEB to a package of it"
    echo "$name"
}

# The file of a package, from the cache if it is there.
package() {
    local file
    file=$(find "$CACHE" -maxdepth 1 -name "$1_*.deb" | head -n1)
    if [[ -z $file ]]; then
        (cd "$CACHE" && apt-get download -q "$1" >&2)
        file=$(find "$CACHE" -maxdepth 1 -name "$1_*.deb" | head -n1)
    fi
    echo "$file"
}

unpack() {
    rm -rf "${CACHE:?}/$2"
    dpkg-deb -x "$1" "$CACHE/$2"
}

# test_binary WHICH...: the program with some tests, built.
test_binary() {
    local build=(cargo test --locked "$@" --no-run)
    "${build[@]}" >&2
    # The second time it only says where it is.
    realpath "$("${build[@]}" 2>&1 | sed -n 's/.*Executable.*(\(.*\))$/\1/p')"
}

# build_image POSTHASTE PROGRAMS E2E
build_image() {
    local root=$CACHE/root busybox=$CACHE/busybox/bin/busybox
    rm -rf "$root"
    mkdir -p "$root"/{bin,sbin,proc,sys,dev,run,tmp,lib/modules}
    cp "$busybox" "$root/bin/"
    cp "$HERE/kernel-test/init" "$root/init"
    strip -o "$root/bin/posthaste" "$1"
    strip -o "$root/bin/programs" "$2"
    strip -o "$root/bin/e2e" "$3"
    # Where its tests expect the program: there they were built.
    echo "$(dirname "$(dirname "$3")")/posthaste" >"$root/expected"
    for program in ip tc nft ethtool; do
        add_program "$root" "$(command -v $program)"
    done
    add_pass "$root/pass.o"
    add_modules "$root"
    (cd "$root" && find . | "$busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$CACHE/image.gz"
}

# An XDP program that passes all packets.
add_pass() {
    clang -target bpf -O2 -x c -c -o "$1" - <<-END
	__attribute__((section("xdp"), used)) int pass(void *packet) { return 2; }
	char terms[] __attribute__((section("license"), used)) = "GPL";
	END
}

# A program and the libraries it is linked with.
add_program() {
    cp "$2" "$1/bin/"
    ldd "$2" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$1$(dirname "$library")"
        cp -Ln "$library" "$1$library"
    done
}

add_modules() {
    local from=$CACHE/kernel/lib/modules file
    (cd "$from" && find . -regextype posix-extended -regex ".*/kernel/($MODULES)\.ko(\.xz)?") | while read -r file; do
        mkdir -p "$1/lib/modules/$(dirname "$file")"
        cp "$from/$file" "$1/lib/modules/$file"
    done
    # Busybox loads only plain ones.
    find "$1/lib/modules" -name '*.ko.xz' -exec unxz {} +
    cp "$from"/*/modules.{builtin,order} "$1/lib/modules/"*/
}

boot() {
    local kernels=("$CACHE"/kernel/boot/vmlinuz-*)
    say "booting ${kernels[0]##*vmlinuz-}"
    # In one thread: QEMU 7.2 emulates neither cmpxchg16b nor changes of code that another CPU runs as
    # Linux needs them from 6.4 on.
    with_cables timeout --foreground "$SECONDS_MAX" qemu-system-x86_64 -accel tcg,thread=single -cpu max,-cx16 -smp 2 -m 1024 -nographic -no-reboot \
        $(card 0) $(card 1) $(card 2) $(card 3) \
        -kernel "${kernels[0]}" -initrd "$CACHE/image.gz" \
        -append "console=ttyS0 quiet panic=-1 net.ifnames=0" </dev/null | tee "$CACHE/log"
}

# card NUMBER: what QEMU needs for a card. A tap device passes on what is joined or has no checksum
# yet, which cables inside QEMU do not.
card() {
    echo "-netdev tap,id=card$1,ifname=tap$1,script=no,downscript=no -device virtio-net-pci,netdev=card$1"
}

# Runs a command where the taps 0 and 1, and 2 and 3, are connected. They end with it.
with_cables() {
    unshare --net bash -c '
        for cable in 0 1; do
            ip link add cable$cable type bridge mcast_snooping 0
            ip link set cable$cable up
            for tap in $((2 * cable)) $((2 * cable + 1)); do
                ip tuntap add tap$tap mode tap vnet_hdr
                ip link set tap$tap master cable$cable up
            done
        done
        exec "$@"' cables "$@"
}

# The guest's last words. A guest that crashed or hung has not said them.
judge() {
    grep -q '^guest: passed' "$CACHE/log" || die "failed; the whole output is in $CACHE/log"
    say "passed"
}

main "$@"
