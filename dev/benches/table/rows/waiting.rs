//! Loading from a file system with reads that wait: FUSE, where each read is answered after 5 ms.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation,
    INodeNo, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, Request,
};

use super::load::{mapped, ours};
use super::{Spec, limits};
use harness::data::{Data, TestFile};
use harness::files::matrices;
use harness::sample::{Contender, Goal, Row};

/// The number of reads that the file system answers at the same time.
const AT_ONCE: usize = 64;

const LIMIT: &str = "pread by 16 threads into reused buffers";

pub(super) fn rows() -> Vec<Spec> {
    vec![Spec::new("load 256 MiB into candle from FUSE, 5 ms a read", |data| {
        let (file, mounted) =
            behind_fuse(data, &data.file("behind-fuse.safetensors", &matrices(32))?)?;
        let path = file.path.clone();
        let limit = Contender::limit(LIMIT, move |watch| {
            // Unmounted with the row.
            let _mounted = &mounted;
            watch.time(|| limits::read_into_reused_buffers(&path, 16))
        });
        let contenders = vec![ours(&file), mapped(&file), limit];
        let goals = vec![Goal::AtLeast(LIMIT, 0.8)];
        Ok(Row { goals, bytes: Some(file.data_len()?), samples: 3, ..Row::new(contenders) })
    })]
}

/// Returns the file in a file system that waits before each read.
fn behind_fuse(data: &Data, file: &TestFile) -> Result<(TestFile, BackgroundSession)> {
    let directory = data.path().join("fuse");
    std::fs::create_dir_all(&directory)?;
    let stored = File::open(&file.path)?;
    let mut config = Config::default();
    config.n_threads = Some(AT_ONCE);
    config.clone_fd = true;
    let mounted = fuser::spawn_mount(Slow { stored }, &directory, &config);
    let mounted = mounted.context("FUSE needs /dev/fuse, and root or fusermount3")?;
    Ok((TestFile { path: directory.join(NAME), sums: file.sums }, mounted))
}

const NAME: &str = "model.safetensors";

/// A file system with one file.
struct Slow {
    stored: File,
}

impl Slow {
    fn attributes(&self, number: INodeNo) -> FileAttr {
        let (kind, perm) = match number {
            FILE => (FileType::RegularFile, 0o444),
            _ => (FileType::Directory, 0o755),
        };
        FileAttr {
            ino: number,
            size: self.stored.metadata().map_or(0, |metadata| metadata.len()),
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
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
        // Twelve by default, which is less than any network file system has.
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
