//! The channels into a guest carry their data unchanged.

use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

const PORT: u16 = 700;

#[test]
fn vsock_carries_all_bytes() {
    let guest = need!(shared());
    echoes_by_vsock(&guest);
    let refused = guest.connect_vsock(9).map(drop);
    assert!(refused.is_err(), "nobody listens there");
}

/// Starts an echo in the guest, writes to it and reads back.
pub(super) fn echoes_by_vsock(guest: &Guest) {
    let echo = guest.start(&format!("/test/echo vsock {PORT}"));
    echo.wait_for_line(|line| line == "ready");
    let stream = guest.connect_vsock(u32::from(PORT)).unwrap();
    stream
        .set_read_timeout(Some(beeline_e2e::PATIENCE))
        .unwrap();
    echoes(stream.try_clone().unwrap(), stream);
    echo.signal("TERM");
    echo.wait();
}

#[test]
fn forwarded_tcp_carries_all_bytes() {
    let guest = need!(shared());
    let echo = guest.start(&format!("/test/echo tcp {PORT}"));
    echo.wait_for_line(|line| line == "ready");
    let stream = TcpStream::connect(guest.forward_tcp(PORT)).unwrap();
    stream
        .set_read_timeout(Some(beeline_e2e::PATIENCE))
        .unwrap();
    echoes(stream.try_clone().unwrap(), stream);
    echo.signal("TERM");
    echo.wait();
}

#[test]
fn the_serial_port_carries_all_bytes() {
    let guest = need!(shared());
    let stream = UnixStream::connect(guest.virtio_serial()).unwrap();
    stream
        .set_read_timeout(Some(beeline_e2e::PATIENCE))
        .unwrap();
    let echo = guest.start("/test/echo /dev/virtio-ports/beeline");
    echo.wait_for_line(|line| line == "ready");
    echoes(stream.try_clone().unwrap(), stream);
    echo.signal("TERM");
    echo.wait();
}

/// Sends pieces of many sizes without waiting, and reads them back.
fn echoes(mut from: impl Read, mut to: impl Write + Send + 'static) {
    const SIZES: [usize; 6] = [1, 64, 4096, 65536, 300_000, 7];
    let sent: Vec<u8> = (0..SIZES.iter().sum::<usize>())
        .map(|at| ((at * 31) >> 3) as u8)
        .collect();
    let all = sent.clone();
    let writer = std::thread::spawn(move || {
        let mut rest = &all[..];
        for size in SIZES {
            let (piece, after) = rest.split_at(size);
            to.write_all(piece).unwrap();
            rest = after;
        }
        to // closed by whoever has read all
    });
    let mut got = vec![0; sent.len()];
    from.read_exact(&mut got).unwrap();
    assert!(got == sent, "not what was sent");
    drop(writer.join().unwrap());
}
