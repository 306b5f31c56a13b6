//! [`Begun`]: a running upload, and [`abort_uploads`], which ends all.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use object_store::path::Path as Key;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload, PutResult, UploadPart};
use safetensors_core::lock;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::remote::object::Service;
use crate::remote::runtime::{ended_early, run};

/// For a store to forget the parts of an upload.
pub(super) const ABORT: Duration = Duration::from_secs(10);

const STEPS: Duration = Duration::from_secs(5);

struct Uploads {
    parts: BTreeMap<u64, Parts>,
    next: u64,
    /// Of running requests that begin, complete or abort an upload.
    steps: usize,
    is_ending: bool,
}

static UPLOADS: Mutex<Uploads> =
    Mutex::new(Uploads { parts: BTreeMap::new(), next: 0, steps: 0, is_ending: false });

static STEP_ENDED: Condvar = Condvar::new();

struct Parts {
    upload: Box<dyn MultipartUpload>,
    under_way: Vec<AbortHandle>,
}

impl Parts {
    /// A part on its way would stay in the store.
    async fn abort(mut self) {
        self.under_way.iter().for_each(AbortHandle::abort);
        // A failure costs space in the store, not correctness. The waiting thread has an error
        // already.
        let _ = timeout(ABORT, self.upload.abort()).await;
    }
}

pub(super) struct Begun(u64);

impl Begun {
    pub(super) fn new(service: &Arc<Service>, key: Key) -> io::Result<Self> {
        let _step = Step::begin()?;
        let store = Arc::clone(&service.store);
        let upload = service.ask(async move { store.put_multipart(&key).await })?;
        let parts = Parts { upload, under_way: Vec::new() };
        // Also if the process ends now: it waits for this step, and then aborts the upload.
        let mut uploads = lock(&UPLOADS);
        let number = uploads.next;
        uploads.next += 1;
        uploads.parts.insert(number, parts);
        Ok(Self(number))
    }

    pub(super) fn put_part(
        &self,
        payload: PutPayload,
        spawn: impl FnOnce(UploadPart) -> io::Result<AbortHandle>,
    ) -> io::Result<()> {
        let mut uploads = uploads()?;
        let parts = uploads.parts.get_mut(&self.0).ok_or_else(ended_early)?;
        let part = spawn(parts.upload.put_part(payload))?;
        parts.under_way.retain(|task| !task.is_finished());
        parts.under_way.push(part);
        Ok(())
    }

    pub(super) fn complete(self, service: &Arc<Service>) -> io::Result<PutResult> {
        let _step = Step::begin()?;
        // Also if the process ends now: it waits for this step.
        let parts = lock(&UPLOADS).parts.remove(&self.0);
        let mut parts = parts.ok_or_else(ended_early)?;
        service.ask(async move {
            let completed = parts.upload.complete().await;
            if completed.is_err() {
                parts.abort().await;
            }
            completed
        })
    }

    pub(super) fn abort(self) {
        let (_step, parts) = {
            let mut uploads = lock(&UPLOADS);
            // Also if the process ends now: it waits for this step.
            uploads.steps += 1;
            (Step, uploads.parts.remove(&self.0))
        };
        if let Some(parts) = parts {
            let _ = run(parts.abort());
        }
    }
}

/// [`abort_uploads`] waits for a request that begins, completes or aborts an upload.
struct Step;

impl Step {
    fn begin() -> io::Result<Self> {
        uploads()?.steps += 1;
        Ok(Self)
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        lock(&UPLOADS).steps -= 1;
        STEP_ENDED.notify_all();
    }
}

fn uploads() -> io::Result<MutexGuard<'static, Uploads>> {
    let uploads = lock(&UPLOADS);
    if uploads.is_ending {
        Err(io::Error::other("all uploads of this process were aborted, so that it can end"))
    } else {
        Ok(uploads)
    }
}

/// Aborts all running uploads of this process before it ends, so that no unlisted, charged parts
/// stay in a store. Call it in a thread that waits for signals such as `SIGINT`, like core's
/// [`remove_temporaries`], not in a signal handler, because it waits for locks.
///
/// Waits for an object that is becoming visible, then aborts all others, for about ten seconds at
/// most. Afterwards every save of this process to a store fails, so call it only to end the
/// process.
///
/// Saves that succeed, fail or panic leave no parts. A rule of the bucket should remove parts of
/// killed processes.
///
/// ```no_run
/// // In the thread that waits for signals:
/// safetensors_core::save::remove_temporaries();
/// safetensors_hub::remote::abort_uploads();
/// std::process::exit(130);
/// ```
///
/// [`remove_temporaries`]: safetensors_core::save::remove_temporaries
pub fn abort_uploads() {
    let mut uploads = lock(&UPLOADS);
    uploads.is_ending = true;
    let waited = STEP_ENDED.wait_timeout_while(uploads, STEPS, |uploads| uploads.steps > 0);
    let (mut uploads, _) = waited.unwrap_or_else(PoisonError::into_inner);
    let parts = std::mem::take(&mut uploads.parts);
    drop(uploads);
    if !parts.is_empty() {
        let aborted = join_all(parts.into_values().map(Parts::abort));
        let _ = run(async { timeout(ABORT - STEPS, aborted).await });
    }
}
