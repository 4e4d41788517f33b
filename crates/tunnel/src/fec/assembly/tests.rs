// SPDX-License-Identifier: Apache-2.0
use posthaste_testkit::{Rng, simulate};

use super::super::SourceBlock;
use super::super::symbol::HEADER_BYTES;
use super::*;

fn contents(length: usize) -> Bytes {
    let byte = |at| u8::try_from(at * 7 % 251).unwrap();
    (0..length).map(byte).collect()
}

/// The repair symbols of a stream with these contents.
fn repairs(contents: &[u8], symbol_bytes: usize, permille: u64) -> Vec<Repair> {
    cut_repairs(contents, symbol_bytes, permille, symbol_bytes)
}

/// The same in parts of so many bytes.
fn cut_repairs(contents: &[u8], symbol_bytes: usize, permille: u64, each: usize) -> Vec<Repair> {
    let mut repairs = Vec::new();
    let mut at = 0;
    while at < contents.len() {
        let mut block = SourceBlock::new(at as u64, symbol_bytes);
        at += block.add(&contents[at..]);
        let of_block = block.repairs(4, at == contents.len(), permille, each + HEADER_BYTES);
        repairs.extend(of_block.iter().map(|bytes| Repair::parse(bytes).unwrap()));
    }
    repairs
}

fn read_all(assembly: &mut Assembly) -> Vec<u8> {
    let mut buffer = vec![0; 1 << 20];
    let count = assembly.read(&mut buffer);
    buffer.truncate(count);
    buffer
}

#[test]
fn a_lost_packet_costs_one_repair_symbol() {
    let contents = contents(5000);
    let repairs = repairs(&contents, 1000, 1);
    assert_eq!(repairs.len(), 1);
    let mut assembly = Assembly::new(0);
    // As long as a symbol, and in two of them.
    assembly.insert(0, &contents.slice(..1700)).unwrap();
    assembly.insert(2700, &contents.slice(2700..)).unwrap();
    assert_eq!(read_all(&mut assembly), contents[..1700]);
    assembly.on_repair(&repairs[0]);
    assert_eq!(read_all(&mut assembly), contents[1700..]);
    assert!(assembly.is_over());
    assert_eq!(assembly.take_added(), (5000, 5000, 1000));
}

#[test]
fn too_many_lost_bytes_wait_for_the_sender() {
    let contents = contents(5000);
    let mut assembly = Assembly::new(0);
    assembly.insert(2000, &contents.slice(2000..)).unwrap();
    assembly.on_repair(&repairs(&contents, 1000, 1)[0]);
    assert_eq!(read_all(&mut assembly), []);
    // One of the two is sent again.
    assembly.insert(1000, &contents.slice(1000..2000)).unwrap();
    assert_eq!(read_all(&mut assembly), contents);
    assembly.insert(0, &contents.slice(..1000)).unwrap();
    assert_eq!(read_all(&mut assembly), []);
}

/// A part of the repair symbols that is lost costs one of them too.
#[test]
fn lost_parts_of_repair_symbols() {
    let contents = contents(10_000);
    let mut repairs = cut_repairs(&contents, 1000, 100, 900);
    assert_eq!(repairs.len(), 4, "3 symbols");
    repairs.remove(1);
    let mut assembly = Assembly::new(0);
    assembly.insert(0, &contents.slice(..1500)).unwrap();
    assembly.insert(2500, &contents.slice(2500..6000)).unwrap();
    assembly.insert(7000, &contents.slice(7000..)).unwrap();
    repairs.iter().for_each(|repair| assembly.on_repair(repair));
    assert_eq!(read_all(&mut assembly), contents);
}

/// What is known of a column is enough for it.
#[test]
fn some_columns_are_repaired_before_others() {
    let contents = contents(3000);
    let mut assembly = Assembly::new(0);
    assembly.insert(600, &contents.slice(600..1900)).unwrap();
    assembly.on_repair(&repairs(&contents, 1000, 1)[0]);
    // Columns 0 to 599 lack symbols 0 and 2; the others only what follows.
    assert_eq!(read_all(&mut assembly), []);
    assembly.insert(0, &contents.slice(..500)).unwrap();
    assert_eq!(read_all(&mut assembly), contents[..500]);
    assembly.insert(2500, &contents.slice(2500..2600)).unwrap();
    assert_eq!(read_all(&mut assembly), contents[500..1900]);
}

#[test]
fn stream_from_the_middle_is_repaired() {
    let contents = contents(3000);
    let mut assembly = Assembly::new(1200);
    assembly.insert(1200, &contents.slice(1200..2000)).unwrap();
    // The first symbol of its block is not here.
    for repair in &repairs(&contents, 1500, 500)[..2] {
        assembly.on_repair(repair);
    }
    assembly.insert(2100, &contents.slice(2100..)).unwrap();
    assert_eq!(read_all(&mut assembly), contents[1200..]);
}

#[test]
fn forgotten_bytes_are_unknown() {
    let contents = contents(4000);
    let mut assembly = Assembly::new(0);
    assembly.insert(0, &contents.slice(..1000)).unwrap();
    assembly.insert(1000, &contents.slice(1000..1100)).unwrap();
    assert_eq!(read_all(&mut assembly), contents[..1100]);
    assembly.forget(1050);
    assembly.insert(2000, &contents.slice(2000..)).unwrap();
    let repairs = repairs(&contents, 1000, 500);
    // Columns from 100 on lack two symbols.
    assembly.on_repair(&repairs[0]);
    assert_eq!(read_all(&mut assembly), []);
    assembly.on_repair(&repairs[1]);
    assert_eq!(read_all(&mut assembly), contents[1100..]);
}

#[test]
fn unread_bytes_are_forgotten_when_read() {
    let mut assembly = Assembly::new(0);
    assembly.insert(0, &contents(1000)).unwrap();
    assembly.forget(1000);
    assert_eq!(read_all(&mut assembly), contents(1000));
    assert!(assembly.pieces.is_empty());
}

#[test]
fn ends_that_differ_are_refused() {
    let contents = contents(3000);
    let mut assembly = Assembly::new(0);
    assembly.on_repair(&repairs(&contents, 1000, 1)[0]);
    let beyond = assembly.insert(2900, &Bytes::from_static(&[0; 101]));
    assert_eq!(beyond, Err(BeyondEnd));
    assembly.insert(0, &contents.slice(..100)).unwrap();
    assert_eq!(assembly.on_end(), Err(BeyondEnd));
    let mut assembly = Assembly::new(0);
    assembly.insert(0, &contents).unwrap();
    assembly.on_end().unwrap();
    // It reports that the stream is longer.
    assembly.on_repair(&repairs(&vec![0; 3001], 1000, 1)[0]);
    assert_eq!(read_all(&mut assembly), contents);
    assert!(assembly.is_over());
}

#[test]
fn repair_symbols_are_bounded() {
    let mut assembly = Assembly::new(0);
    for offset in 0..100_000 {
        assembly.on_repair(&Repair {
            stream: 4,
            offset,
            length: 1,
            symbol_bytes: 1,
            is_last: false,
            start: 0,
            bytes: Bytes::from_static(b"1"),
        });
    }
    assembly.check();
    assert!((1000..6000).contains(&assembly.blocks.len()));
}

/// Pieces of any size, in any order, some twice and some lost, and repair symbols among them: what is
/// read is what was sent, and nothing is missing if no block has lost more than its repair symbols.
#[test]
fn any_order_and_loss() {
    simulate(100, |mut rng: Rng| {
        let contents = contents(1 + rng.below(10_000_usize));
        let symbol_bytes = 1 + rng.below(200_usize);
        let permille = rng.below(150_u64);
        let mut arrivals = Vec::new();
        let mut at = 0;
        while at < contents.len() {
            let end = contents.len().min(at + 1 + rng.below(300_usize));
            arrivals.push((at, end));
            at = end;
        }
        let each = 1 + rng.below(symbol_bytes);
        let mut repairs = cut_repairs(&contents, symbol_bytes, permille, each);
        let mut lost: Vec<(usize, usize)> = Vec::new();
        arrivals.retain(|range| {
            let is_lost = rng.below(1000_u64) < permille;
            if is_lost {
                lost.push(*range);
            }
            !is_lost
        });
        let mut assembly = Assembly::new(0);
        let mut got = Vec::new();
        while !(arrivals.is_empty() && repairs.is_empty() && lost.is_empty()) {
            // What is lost is sent again at the end.
            if arrivals.is_empty() && repairs.is_empty() {
                arrivals.append(&mut lost);
            }
            let next = rng.below(arrivals.len() + repairs.len());
            if let Some(&(start, end)) = arrivals.get(next) {
                assembly
                    .insert(start as u64, &contents.slice(start..end))
                    .unwrap();
                if rng.below(10_u64) > 0 {
                    arrivals.swap_remove(next);
                }
            } else {
                assembly.on_repair(&repairs.swap_remove(next - arrivals.len()));
            }
            assembly.check();
            let mut buffer = vec![0; rng.below(5000_usize)];
            let count = assembly.read(&mut buffer);
            got.extend_from_slice(&buffer[..count]);
            if rng.below(20_u64) == 0 {
                assembly.forget(rng.below(contents.len()) as u64);
            }
        }
        assembly.on_end().unwrap();
        got.extend(read_all(&mut assembly));
        assert_eq!(got, contents);
        assert!(assembly.is_over());
        assert_eq!((assembly.repair_bytes, assembly.blocks.len()), (0, 0));
    });
}
