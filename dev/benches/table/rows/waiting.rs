//! Loading from a file system with reads that wait: FUSE, where each read is answered after 5 ms.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation,
    INodeNo, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, Request,
};

use super::load::{candle_load, data_len, equal, mapped, ours};
use super::{Spec, limits};
use harness::data::{Data, TestFile};
use harness::sample::{Contender, Goal, Row};

/// The number of reads that the file system answers at the same time.
const AT_ONCE: usize = 64;

const LIMIT: &str = "pread by 64 threads into reused buffers";

pub(super) fn rows() -> Vec<Spec> {
    vec![Spec::new("load 1 GiB into candle from FUSE, 5 ms a read", |data| {
        let file = data.file("behind-fuse.safetensors", &equal(128, 4 << 20))?;
        let bytes = data_len(&file)?;
        let behind = behind_fuse(data, &file)?;
        let limit = behind.path.clone();
        let contenders = vec![
            ours(&behind),
            mapped(&behind),
            candle_load(&behind),
            Contender::limit(LIMIT, move |watch| watch.time(|| limits::read_by(AT_ONCE, &limit))),
        ];
        let goals = vec![Goal::AtLeast(LIMIT, 0.8)];
        Ok(Row { goals, bytes: Some(bytes), samples: 3, memory: 2 * bytes, ..Row::new(contenders) })
    })]
}

/// Returns the file in a file system that waits before each read. It stays until the program ends.
fn behind_fuse(data: &Data, file: &TestFile) -> Result<TestFile> {
    let directory = data.path().join("fuse");
    std::fs::create_dir_all(&directory)?;
    let stored = File::open(&file.path)?;
    let mut config = Config::default();
    config.n_threads = Some(AT_ONCE);
    config.clone_fd = true;
    let mounted = fuser::spawn_mount(Slow { stored }, &directory, &config);
    let mounted: BackgroundSession =
        mounted.context("FUSE needs /dev/fuse, and root or fusermount3")?;
    std::mem::forget(mounted);
    Ok(TestFile { path: directory.join(NAME), sums: file.sums.clone() })
}

const NAME: &str = "model.safetensors";

/// A file system with one file.
struct Slow {
    stored: File,
}

impl Slow {
    fn attributes(&self, number: INodeNo) -> FileAttr {
        let is_file = number == FILE;
        FileAttr {
            ino: number,
            size: self.stored.metadata().map_or(0, |metadata| metadata.len()),
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: if is_file { 0o444 } else { 0o755 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

const FILE: INodeNo = INodeNo(2);
const LIFETIME: Duration = Duration::from_secs(3600);

impl Filesystem for Slow {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Twelve by default, as few as no network file system has.
        let _ = config.set_max_background(AT_ONCE as u16);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == NAME {
            true => reply.entry(&LIFETIME, &self.attributes(FILE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&LIFETIME, &self.attributes(number));
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        sleep(Duration::from_millis(5));
        let mut bytes = vec![0; size as usize];
        match self.stored.read_at(&mut bytes, offset) {
            Ok(len) => reply.data(&bytes[..len]),
            Err(_) => reply.error(Errno::EIO),
        }
    }
}
