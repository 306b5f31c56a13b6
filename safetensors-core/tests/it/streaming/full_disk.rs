//! A disk without room for the file.

use std::io;
use std::process::Command;

use safetensors_testing::process::command_of;
use safetensors_testing::tensors::unread;

use crate::support::*;

/// A full disk is found before the first tensor is asked for its bytes, and leaves the old file.
///
/// The test runs itself again in a separate namespace, where it may mount a small file system. It
/// does nothing if the system forbids that.
#[test]
fn a_full_disk_is_reported_before_any_work() {
    const MOUNTED: &str = "SAFETENSORS_TEST_SMALL_DISK";
    if let Some(disk) = std::env::var_os(MOUNTED) {
        let path = write(disk.as_ref(), "model.safetensors", "the old file");
        let error = save(&path, [("a", unread(4 << 20))], &SaveOptions::new()).unwrap_err();
        let full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
        assert!(matches!(error.kind(), ErrorKind::Io(error) if full(error)), "{error}");
        assert_eq!(names_in(disk.as_ref()), ["model.safetensors"]);
        assert_eq!(fs::read(&path).unwrap(), b"the old file");
        return;
    }
    const CANNOT_MOUNT: i32 = 77;
    let directory = tempdir().unwrap();
    let script = format!(
        r#"mount -t tmpfs -o size=1m tmpfs "${MOUNTED}" || exit {CANNOT_MOUNT}
        exec "$0" "$@""#
    );
    let itself = command_of(a_full_disk_is_reported_before_any_work);
    let run = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
        .arg(itself.get_program())
        .args(itself.get_args())
        .env(MOUNTED, directory.path())
        .output();
    match run {
        Ok(run) if run.status.success() => {
            assert!(String::from_utf8_lossy(&run.stdout).contains("1 passed"))
        }
        Ok(run) if !String::from_utf8_lossy(&run.stdout).contains("running 1 test") => {
            eprintln!("skipped: {}", String::from_utf8_lossy(&run.stderr));
        }
        Ok(run) => assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout)),
        Err(error) => eprintln!("skipped: {error}"),
    }
}
