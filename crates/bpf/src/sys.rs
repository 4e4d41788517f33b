// SPDX-License-Identifier: Apache-2.0
//! The commands of bpf(2) that this crate uses. The structures are prefixes of the kernel's `union
//! bpf_attr`, cut after the last used field.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{fs, io};

/// Commands.
const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP: libc::c_long = 1;
const MAP_UPDATE: libc::c_long = 2;
const MAP_DELETE: libc::c_long = 3;
const MAP_NEXT_KEY: libc::c_long = 4;
const PROG_LOAD: libc::c_long = 5;
const OBJ_PIN: libc::c_long = 6;
const OBJ_GET: libc::c_long = 7;
const PROG_RUN: libc::c_long = 10;
const BTF_LOAD: libc::c_long = 18;
const MAP_LOOKUP_BATCH: libc::c_long = 24;
const LINK_CREATE: libc::c_long = 28;
const LINK_UPDATE: libc::c_long = 29;
const LINK_DETACH: libc::c_long = 34;

/// Bytes of a name, including its NUL.
const NAME_BYTES: usize = 16;

/// The parameters of a map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapLayout {
    pub(crate) kind: u32,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    pub(crate) entries: u32,
    pub(crate) flags: u32,
}

#[repr(C)]
struct MapCreate {
    layout: [u32; 5],
    inner: i32,
    numa_node: u32,
    name: [u8; NAME_BYTES],
    interface: u32,
    btf: i32,
    /// BTF types of key and value.
    types: [u32; 2],
    /// The type of the kernel that the value has.
    kernel_type: u32,
    padding: u32,
}

/// Creates a map. `inner` is a template for the values of a map of maps.
pub(crate) fn create_map(
    name: &str,
    layout: MapLayout,
    inner: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let mut attributes = map_create(name, layout);
    attributes.inner = inner.map_or(0, |inner| inner.as_raw_fd());
    // SAFETY: nothing in the attributes is a pointer.
    unsafe { descriptor(MAP_CREATE, &mut attributes) }
}

/// Creates a map whose key and value have these types of `btf`.
pub(crate) fn create_map_of(
    name: &str,
    layout: MapLayout,
    btf: BorrowedFd<'_>,
    types: [u32; 2],
) -> io::Result<OwnedFd> {
    let mut attributes = map_create(name, layout);
    (attributes.btf, attributes.types) = (btf.as_raw_fd(), types);
    // SAFETY: nothing in the attributes is a pointer.
    unsafe { descriptor(MAP_CREATE, &mut attributes) }
}

/// Creates a map whose value has a type of the kernel. `btf` is type information of any kind.
pub(crate) fn create_map_of_kernel(
    name: &str,
    layout: MapLayout,
    btf: BorrowedFd<'_>,
    kernel_type: u32,
) -> io::Result<OwnedFd> {
    let mut attributes = map_create(name, layout);
    (attributes.btf, attributes.kernel_type) = (btf.as_raw_fd(), kernel_type);
    // SAFETY: nothing in the attributes is a pointer.
    unsafe { descriptor(MAP_CREATE, &mut attributes) }
}

fn map_create(name: &str, layout: MapLayout) -> MapCreate {
    MapCreate {
        layout: [
            layout.kind,
            layout.key_bytes,
            layout.value_bytes,
            layout.entries,
            layout.flags,
        ],
        inner: 0,
        numa_node: 0,
        name: short(name),
        interface: 0,
        btf: 0,
        types: [0; 2],
        kernel_type: 0,
        padding: 0,
    }
}

#[repr(C)]
struct Element {
    map: i32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Writes the value of a key. Key and value are as long as the map's are.
pub(crate) fn update(map: BorrowedFd<'_>, key: &[u8], value: &[u8]) -> io::Result<()> {
    let mut attributes = element(map, key, value.as_ptr());
    // SAFETY: key and value live through the call, which reads them only.
    unsafe { command(MAP_UPDATE, &mut attributes) }.map(drop)
}

/// Reads the value of a key into `value`; false when there is none. Key and value are as long as
/// the map's are.
pub(crate) fn look_up(map: BorrowedFd<'_>, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
    let mut attributes = element(map, key, value.as_mut_ptr());
    // SAFETY: key and value live through the call, which writes to the latter.
    absent_is_false(unsafe { command(MAP_LOOKUP, &mut attributes) })
}

/// Removes a key; false when it did not exist.
pub(crate) fn delete(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<bool> {
    let mut attributes = element(map, key, std::ptr::null());
    // SAFETY: the key lives through the call, which reads it only.
    absent_is_false(unsafe { command(MAP_DELETE, &mut attributes) })
}

/// Writes the key after `key`; false when that was the last.
pub(crate) fn next_key(
    map: BorrowedFd<'_>,
    key: Option<&[u8]>,
    next: &mut [u8],
) -> io::Result<bool> {
    let mut attributes = element(map, key.unwrap_or_default(), next.as_mut_ptr());
    if key.is_none() {
        attributes.key = 0;
    }
    // SAFETY: both keys live through the call, which writes to the latter.
    absent_is_false(unsafe { command(MAP_NEXT_KEY, &mut attributes) })
}

fn element(map: BorrowedFd<'_>, key: &[u8], value: *const u8) -> Element {
    Element {
        map: map.as_raw_fd(),
        padding: 0,
        key: address(key.as_ptr()),
        value: address(value),
        flags: 0,
    }
}

fn absent_is_false(result: io::Result<i32>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

#[repr(C)]
struct Batch {
    from: u64,
    next: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: i32,
    element_flags: u64,
    flags: u64,
}

/// The most elements that a map may have.
pub(crate) fn entries(map: BorrowedFd<'_>) -> io::Result<u32> {
    described(map, "max_entries:")
}

/// A number that the kernel shows about a descriptor.
pub(crate) fn described(object: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", object.as_raw_fd()))?;
    let mut lines = text.lines();
    let number = lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    number.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("no {name} in fdinfo")))
}

/// Elements that were read at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elements {
    pub(crate) count: usize,
    /// Where to go on; `None` at the end.
    pub(crate) next: Option<u32>,
}

/// Reads up to `most` keys and values of a hash map (Linux 5.6), from its start or from where an
/// earlier call ended. Misses what is added meanwhile, and may read an element twice. Both buffers
/// have room for `most`.
pub(crate) fn look_up_batch(
    map: BorrowedFd<'_>,
    from: Option<u32>,
    keys: &mut [u8],
    values: &mut [u8],
    most: usize,
) -> io::Result<Elements> {
    let mut next = 0_u32;
    let mut attributes = Batch {
        from: from.as_ref().map_or(0, |from| address(&raw const *from)),
        next: address(&raw mut next),
        keys: address(keys.as_mut_ptr()),
        values: address(values.as_mut_ptr()),
        count: u32::try_from(most).unwrap_or(u32::MAX),
        map: map.as_raw_fd(),
        element_flags: 0,
        flags: 0,
    };
    // SAFETY: all buffers live through the call, which writes no more than `most` elements.
    let read = absent_is_false(unsafe { command(MAP_LOOKUP_BATCH, &mut attributes) })?;
    let count = usize::try_from(attributes.count).expect("no more than requested");
    // At the end the kernel returns ENOENT, with the last elements.
    let next = read.then_some(next);
    Ok(Elements { count, next })
}

#[repr(C)]
struct BtfLoad {
    btf: u64,
    log: u64,
    btf_bytes: u32,
    log_bytes: u32,
    log_level: u32,
    padding: u32,
}

/// Loads type information into the kernel.
pub(crate) fn load_btf(btf: &[u8]) -> io::Result<OwnedFd> {
    let mut attributes = BtfLoad {
        btf: address(btf.as_ptr()),
        log: 0,
        btf_bytes: length(btf),
        log_bytes: 0,
        log_level: 0,
        padding: 0,
    };
    // SAFETY: the bytes live through the call, which reads them only.
    unsafe { descriptor(BTF_LOAD, &mut attributes) }
}

/// A program to load.
#[derive(Debug)]
pub(crate) struct Code<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: u32,
    pub(crate) attach: u32,
    pub(crate) license: &'a CStr,
    pub(crate) instructions: &'a [u64],
    pub(crate) btf: BorrowedFd<'a>,
    /// Offsets of the functions, and their types in `btf`.
    pub(crate) functions: &'a [[u32; 2]],
    /// The type of the kernel that it belongs to; 0 for none.
    pub(crate) kernel_type: u32,
}

#[repr(C)]
struct ProgLoad {
    kind: u32,
    instructions_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; NAME_BYTES],
    interface: u32,
    attach: u32,
    btf: i32,
    function_bytes: u32,
    functions: u64,
    functions_count: u32,
    line_bytes: u32,
    lines: u64,
    lines_count: u32,
    kernel_type: u32,
}

/// Attempts after the verifier returned EAGAIN because of a signal.
const ATTEMPTS: u32 = 5;

/// Verifies and loads a program. With `log`, the kernel writes the verifier's log there,
/// NUL-terminated; the error is `ENOSPC` if it does not fit.
pub(crate) fn load(code: &Code<'_>, log: Option<&mut [u8]>) -> io::Result<OwnedFd> {
    let (log_level, log_bytes, log) = match log {
        Some(log) => (1, length(log), address(log.as_mut_ptr())),
        None => (0, 0, 0),
    };
    let mut attributes = ProgLoad {
        kind: code.kind,
        instructions_count: length(code.instructions),
        instructions: address(code.instructions.as_ptr()),
        license: address(code.license.as_ptr()),
        log_level,
        log_bytes,
        log,
        kernel_version: 0,
        flags: 0,
        name: short(code.name),
        interface: 0,
        attach: code.attach,
        btf: code.btf.as_raw_fd(),
        function_bytes: length(&[0_u8; size_of::<[u32; 2]>()]),
        functions: address(code.functions.as_ptr()),
        functions_count: length(code.functions),
        line_bytes: 0,
        lines: 0,
        lines_count: 0,
        kernel_type: code.kernel_type,
    };
    for _ in 1..ATTEMPTS {
        // SAFETY: all that the attributes point to lives through the call, which
        // writes to nothing but the log.
        match unsafe { descriptor(PROG_LOAD, &mut attributes) } {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            loaded => return loaded,
        }
    }
    // SAFETY: as above.
    unsafe { descriptor(PROG_LOAD, &mut attributes) }
}

#[repr(C)]
struct LinkCreate {
    program: i32,
    target: u32,
    attach: u32,
    flags: u32,
}

/// Whether this network namespace has an interface of this index.
pub(crate) fn has_interface(index: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: if_indextoname(3) writes at most as many bytes.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    !found.is_null()
}

/// Attaches a program to an interface (by its index) or to the object of a descriptor, for as long
/// as the returned descriptor is open.
pub(crate) fn link(program: BorrowedFd<'_>, target: u32, attach: u32) -> io::Result<OwnedFd> {
    link_at(program, target, attach, 0)
}

/// Attaches a program to an interface in front of all that are there (Linux 6.6).
pub(crate) fn link_first(
    program: BorrowedFd<'_>,
    ifindex: u32,
    attach: u32,
) -> io::Result<OwnedFd> {
    /// `BPF_F_BEFORE`; without a program that it names, in front of all.
    const BEFORE: u32 = 1 << 3;
    link_at(program, ifindex, attach, BEFORE)
}

fn link_at(program: BorrowedFd<'_>, target: u32, attach: u32, flags: u32) -> io::Result<OwnedFd> {
    let mut attributes = LinkCreate {
        program: program.as_raw_fd(),
        target,
        attach,
        flags,
    };
    // SAFETY: nothing in the attributes is a pointer.
    unsafe { descriptor(LINK_CREATE, &mut attributes) }
}

#[repr(C)]
struct LinkUpdate {
    link: i32,
    program: i32,
    flags: u32,
    old_program: i32,
}

/// Puts a program in the place of that of a link. Fails if what it was attached to is gone.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attributes = LinkUpdate {
        link: link.as_raw_fd(),
        program: program.as_raw_fd(),
        flags: 0,
        old_program: 0,
    };
    // SAFETY: nothing in the attributes is a pointer.
    unsafe { command(LINK_UPDATE, &mut attributes) }.map(drop)
}

/// Detaches a link at once.
pub(crate) fn detach_link(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the attributes are a descriptor.
    unsafe { command(LINK_DETACH, &mut link.as_raw_fd()) }.map(drop)
}

#[repr(C)]
struct Object {
    path: u64,
    descriptor: i32,
    flags: u32,
}

/// Makes a map or link outlive its descriptors, by a name in the BPF file system.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = Object {
        path: address(path.as_ptr()),
        descriptor: object.as_raw_fd(),
        flags: 0,
    };
    // SAFETY: the path lives through the call, which reads it only.
    unsafe { command(OBJ_PIN, &mut attributes) }.map(drop)
}

/// Opens what is pinned by a name.
pub(crate) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = Object {
        path: address(path.as_ptr()),
        descriptor: 0,
        flags: 0,
    };
    // SAFETY: the path lives through the call, which reads it only.
    unsafe { descriptor(OBJ_GET, &mut attributes) }
}

#[repr(C)]
#[derive(Default)]
struct ProgRun {
    program: i32,
    returned: u32,
    data_bytes: u32,
    data_room: u32,
    data: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_bytes: u32,
    context_room: u32,
    context: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    padding: u32,
}

/// Runs a program on a frame. `context` is the start of a `struct __sk_buff`; the kernel writes its
/// final state to `after`, if given. Returns the program's return value.
pub(crate) fn run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    context: &[u32],
    after: Option<&mut [u8]>,
) -> io::Result<u32> {
    let (context_room, context_out) = match after {
        Some(after) => (length(after), address(after.as_mut_ptr())),
        None => (0, 0),
    };
    let mut attributes = ProgRun {
        program: program.as_raw_fd(),
        data: address(frame.as_ptr()),
        data_bytes: length(frame),
        context: address(context.as_ptr()),
        context_bytes: 4 * length(context),
        context_out,
        context_room,
        repeat: 1,
        ..ProgRun::default()
    };
    // SAFETY: the buffers live through the call, which writes to `after` only.
    unsafe { command(PROG_RUN, &mut attributes) }?;
    Ok(attributes.returned)
}

/// The same, for what becomes of the frame and of the structure. Returns also the bytes of the
/// frame, which has room in `frame_out`.
#[cfg(test)]
pub(crate) fn run_frame(
    program: BorrowedFd<'_>,
    frame: &[u8],
    context: &[u32],
    frame_out: &mut [u8],
    after: &mut [u8],
) -> io::Result<(u32, usize)> {
    let mut attributes = ProgRun {
        program: program.as_raw_fd(),
        data: address(frame.as_ptr()),
        data_bytes: length(frame),
        data_out: address(frame_out.as_mut_ptr()),
        data_room: length(frame_out),
        context: address(context.as_ptr()),
        context_bytes: 4 * length(context),
        context_out: address(after.as_mut_ptr()),
        context_room: length(after),
        repeat: 1,
        ..ProgRun::default()
    };
    // SAFETY: the buffers live through the call, which writes to the last two only.
    unsafe { command(PROG_RUN, &mut attributes) }?;
    let bytes = usize::try_from(attributes.data_room).expect("frames are short");
    Ok((attributes.returned, bytes))
}

/// # Safety
/// The attributes are those of the command, which returns a new descriptor;
/// what they point to lives long enough and may be written where it is.
unsafe fn descriptor<T>(number: libc::c_long, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller promises; the descriptor has no other owner.
    unsafe { command(number, attributes).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// # Safety
/// The attributes are those of the command; what they point to lives long
/// enough and may be written where it is.
unsafe fn command<T>(number: libc::c_long, attributes: &mut T) -> io::Result<i32> {
    let attributes = std::ptr::from_mut(attributes);
    // SAFETY: the attributes are valid, as the caller promises.
    let result = unsafe { libc::syscall(libc::SYS_bpf, number, attributes, size_of::<T>()) };
    match i32::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

fn address<T>(of: *const T) -> u64 {
    of.expose_provenance() as u64
}

fn length<T>(of: &[T]) -> u32 {
    u32::try_from(of.len()).expect("what the kernel is given is short")
}

/// A name in the kernel's form, truncated if needed.
fn short(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    let room = &mut bytes[..NAME_BYTES - 1];
    for (to, from) in room.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    bytes
}
