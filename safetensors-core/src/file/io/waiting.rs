//! [`waits`]: which files are on a file system with reads that wait.

use std::fs::File;

/// File systems with reads that wait for a network or for another process: the names and numbers
/// of Linux's `statfs`, from its headers and those of the file systems.
#[cfg(any(target_os = "linux", target_os = "android"))]
const WAITING: [(&str, u32); 13] = [
    ("9p", 0x0102_1997),
    ("AFS", 0x5346_414f),
    ("BeeGFS", 0x1983_0326),
    ("Ceph", 0x00c3_6400),
    ("CIFS", 0xff53_4d42),
    ("Coda", 0x7375_7245),
    ("FUSE", 0x6573_5546),
    ("GPFS", 0x4750_4653),
    ("Lustre", 0x0bd0_0bd0),
    ("NFS", 0x0000_6969),
    ("OrangeFS", 0x2003_0528),
    ("SMB", 0x0000_517b),
    ("SMB2", 0xfe53_4d42),
];

/// Returns whether reads of a file wait for a network or for another process, such as the one
/// behind FUSE.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn waits(file: &File) -> bool {
    // The type has another width on each processor, and the number may be negative.
    let kind = rustix::fs::fstatfs(file).map(|about| about.f_type as u32);
    kind.is_ok_and(|kind| WAITING.iter().any(|&(_, waiting)| waiting == kind))
}

/// Other systems are not asked.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn waits(_: &File) -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io;
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::file::io::{ReadRange, Requests};
    use crate::{Checkpoint, LoadOptions, ReadAt, SaveOptions, TensorBuf, serialize};

    #[test]
    fn files_in_memory_and_of_the_kernel_do_not_wait() {
        for path in ["/proc/self/stat", "/dev/null"] {
            assert!(!waits(&File::open(path).unwrap()), "{path}");
        }
        assert!(!waits(&tempfile::tempfile().unwrap()));
    }

    /// Bytes of a file with reads that wait until enough of them are under way.
    struct Waiting {
        bytes: Vec<u8>,
        /// The ranges of each call.
        calls: Mutex<Vec<usize>>,
        expected: Mutex<usize>,
        arrived: Condvar,
    }

    impl ReadAt for Waiting {
        fn byte_len(&self) -> u64 {
            self.bytes.byte_len()
        }

        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
            self.bytes.read_exact_at(buf, offset)
        }

        fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
            self.calls.lock().unwrap().push(ranges.len());
            let mut missing = self.expected.lock().unwrap();
            *missing = missing.saturating_sub(1);
            self.arrived.notify_all();
            let limit = Duration::from_secs(60);
            let waited = self.arrived.wait_timeout_while(missing, limit, |it| *it > 0).unwrap();
            assert!(!waited.1.timed_out(), "too few calls at the same time");
            self.bytes.read_ranges_at(ranges)
        }

        fn requests(&self) -> Option<Requests> {
            Some(Requests::of_waiting_file())
        }
    }

    #[test]
    fn a_load_has_sixteen_reads_under_way_and_reads_distant_tensors_apart() {
        let bytes = |len| TensorBuf::from_vec(vec![len], vec![7_u8; len]).unwrap();
        let (large, small) = (bytes(64 << 20), bytes(8));
        let names = [("a", &small), ("b", &large), ("c", &small), ("d", &small)];
        let bytes = serialize(names, &SaveOptions::new()).unwrap();
        let source = Waiting {
            bytes,
            calls: Mutex::default(),
            expected: Mutex::default(),
            arrived: Condvar::new(),
        };
        let checkpoint = Checkpoint::from_source(source, "far").unwrap();
        let source = checkpoint.files()[0].safetensors().source();
        *source.expected.lock().unwrap() = 16;
        source.calls.lock().unwrap().clear();
        let read = checkpoint.read_named(["b"], &LoadOptions::new()).unwrap();
        assert_eq!(read[0].bytes(), large.bytes());
        assert_eq!(source.calls.lock().unwrap().len(), 16);

        source.calls.lock().unwrap().clear();
        checkpoint.read_named(["a", "c", "d"], &LoadOptions::new()).unwrap();
        let mut calls = source.calls.lock().unwrap().clone();
        calls.sort();
        assert_eq!(calls, [1, 2]);
    }
}
