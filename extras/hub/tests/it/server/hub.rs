//! The Hub: the files of a repository, and their addresses.

use std::collections::BTreeMap;

use super::http::{Answer, Request};
use super::repo::{Access, File, Repo};
use super::{State, TOKEN, cdn};

pub(super) fn answer(state: &mut State, request: &Request) -> Answer {
    let path = request.path.trim_start_matches('/').to_owned();
    let answer = if let Some(rest) = path.strip_prefix("api/resolve-cache/") {
        small(state, request, rest)
    } else if let Some(rest) = path.strip_prefix("api/buckets/") {
        tree(state, request, rest)
    } else if let Some(rest) = path.strip_prefix("api/") {
        api(state, request, rest)
    } else if path.starts_with("buckets/") {
        object(state, request, &path)
    } else {
        file(state, request, &path)
    };
    answer.unwrap_or_else(|| Answer::new(404))
}

/// Returns the name of a repository in the tests, and the rest, given `KIND/OWNER/NAME/…`.
fn repo_and_rest(path: &str) -> Option<(String, Option<&str>)> {
    let mut parts = path.splitn(4, '/');
    let (kind, owner, name) = (parts.next()?, parts.next()?, parts.next()?);
    let kind = if kind == "models" { String::new() } else { format!("{kind}/") };
    Some((format!("{kind}{owner}/{name}"), parts.next()))
}

/// Returns the files of a bucket.
fn files_of<'a>(
    state: &'a State,
    request: &Request,
    bucket: &str,
) -> Result<&'a BTreeMap<String, File>, Answer> {
    let bucket = find(state, request, bucket, false)?;
    Ok(&bucket.commits[bucket.resolve("main").unwrap()])
}

/// `OWNER/NAME[/tree[/PREFIX]]`: two entries a page. The prefix is one of the text.
fn tree(state: &State, request: &Request, rest: &str) -> Option<Answer> {
    let mut parts = rest.splitn(4, '/');
    let bucket = format!("buckets/{}/{}", parts.next()?, parts.next()?);
    let (is_tree, prefix) = (parts.next() == Some("tree"), parts.next().unwrap_or_default());
    let files = match files_of(state, request, &bucket) {
        Ok(files) => files,
        Err(answer) => return Some(answer),
    };
    if !is_tree {
        let info = serde_json::json!({
            "id": bucket.trim_start_matches("buckets/"), "private": false, "size": 0,
            "createdAt": "2026-01-01T00:00:00.000Z", "totalFiles": files.len(),
        });
        return Some(Answer::new(200).body(info.to_string()));
    }
    let mut entries = BTreeMap::new();
    for (path, file) in files.iter().filter(|(path, _)| path.starts_with(prefix)) {
        let below = if prefix.is_empty() { 0 } else { prefix.len() + 1 };
        let child = path.get(below..).and_then(|rest| rest.find('/')).map(|end| below + end);
        let entry = match child {
            Some(end) => (&path[..end], serde_json::json!({ "type": "directory" })),
            None => {
                let (len, hash) = (file.bytes.len(), &file.etag);
                (&**path, serde_json::json!({ "type": "file", "size": len, "xetHash": hash }))
            }
        };
        entries.insert(entry.0, entry.1);
    }
    let start: usize = match request.query.rsplit_once("cursor=") {
        Some((_, cursor)) => cursor.parse().ok()?,
        None => 0,
    };
    let total = entries.len();
    let page = entries.into_iter().skip(start).take(2).map(|(path, mut entry)| {
        entry["path"] = path.into();
        entry
    });
    let answer = Answer::new(200).body(serde_json::Value::from_iter(page).to_string());
    if start + 2 >= total {
        return Some(answer);
    }
    let host = request.header("host").unwrap_or_default();
    let next = format!("http://{host}/api/{bucket}/tree/{}", prefix.replace('/', "%2F"));
    Some(
        answer
            .header("Link", format!("<{next}?recursive=false&cursor={}>; rel=\"next\"", start + 2)),
    )
}

/// `buckets/OWNER/NAME/resolve/FILE`: no commit, and of the ETag only Xet's hash.
fn object(state: &mut State, request: &Request, path: &str) -> Option<Answer> {
    let (bucket, file) = path.split_once("/resolve/")?;
    let (etag, len) = match files_of(state, request, bucket) {
        Ok(files) => match files.get(file) {
            Some(file) => (file.etag.clone(), file.bytes.len()),
            None => return Some(error(404, "EntryNotFound")),
        },
        Err(answer) => return Some(answer),
    };
    let answer = signed(state, &etag).header("X-Linked-Size", len);
    Some(answer.header("X-Xet-Hash", etag))
}

/// A redirect to a signed address at the CDN.
fn signed(state: &mut State, etag: &str) -> Answer {
    let signature = format!("secret-signature-{}", state.signatures.len());
    state.signatures.insert(signature.clone(), state.uses);
    let location = format!("{}/xet/{etag}?Signature={signature}", state.cdn);
    Answer::new(302).header("Location", location)
}

fn error(status: u16, code: &str) -> Answer {
    Answer::new(status).header("X-Error-Code", code).header("X-Error-Message", "the Hub says no")
}

/// Whether the request has the right token, a wrong one, or none.
fn token(request: &Request) -> Option<bool> {
    request.header("authorization").map(|it| it == format!("Bearer {TOKEN}"))
}

/// The repository, or why it may not be read.
fn find<'a>(
    state: &'a State,
    request: &Request,
    name: &str,
    is_listing: bool,
) -> Result<&'a Repo, Answer> {
    let token = token(request);
    if token == Some(false) {
        return Err(Answer::new(401)
            .header("X-Error-Message", "Invalid credentials in Authorization header"));
    }
    // A stranger does not learn that a repository exists.
    let unknown = || match token {
        None => error(401, "RepoNotFound"),
        Some(_) => error(404, "RepoNotFound"),
    };
    let repo = state.repos.get(name).ok_or_else(unknown)?;
    match (repo.access, token) {
        (Access::Private, None) => Err(unknown()),
        (Access::Gated, None) if !is_listing => Err(error(401, "GatedRepo")),
        _ => Ok(repo),
    }
}

/// `api/KIND/OWNER/NAME[/revision/REVISION | /tree/REVISION]`.
fn api(state: &mut State, request: &Request, rest: &str) -> Option<Answer> {
    let (name, rest) = repo_and_rest(rest)?;
    let mut parts = rest.unwrap_or_default().splitn(2, '/');
    let (kind, revision) =
        (parts.next().filter(|it| !it.is_empty()), parts.next().unwrap_or("main"));
    let repo = match find(state, request, &name, true) {
        Ok(repo) => repo,
        Err(answer) => return Some(answer),
    };
    if let Some(new) = &repo.renamed_to {
        let kind = kind.map_or_else(String::new, |kind| format!("/{kind}/{revision}"));
        let new = if new.matches('/').count() == 1 { format!("models/{new}") } else { new.clone() };
        return Some(Answer::new(307).header("Location", format!("/api/{new}{kind}")));
    }
    let Some(commit) = repo.resolve(revision) else {
        return Some(error(404, "RevisionNotFound"));
    };
    let files = &repo.commits[commit];
    let json = match kind {
        Some("tree") => serde_json::Value::from_iter(files.iter().map(|(path, file)| {
            let (oid, size) = (&file.etag, file.bytes.len());
            let lfs = serde_json::json!({ "oid": oid, "size": size, "pointerSize": 134 });
            let mut entry = serde_json::json!({
                "type": "file", "oid": oid.get(..40).unwrap_or(oid), "size": size, "path": path,
            });
            if file.is_large {
                entry["lfs"] = lfs;
            }
            entry
        })),
        _ => {
            let siblings: Vec<_> =
                files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
            serde_json::json!({
                "_id": "0", "id": name, "modelId": name, "sha": commit, "siblings": siblings,
                "private": repo.access == Access::Private, "tags": [], "downloads": 0, "likes": 0,
                "gated": if repo.access == Access::Gated { "manual".into() } else {
                    serde_json::Value::from(false)
                },
            })
        }
    };
    if let Some(next) = state.next_commit.take() {
        for repo in state.repos.values_mut() {
            repo.refs.insert("main".into(), next.clone());
        }
    }
    Some(Answer::new(200).header("Content-Type", "application/json").body(json.to_string()))
}

/// `OWNER/NAME/resolve/REVISION/FILE`.
fn file(state: &mut State, request: &Request, path: &str) -> Option<Answer> {
    let (name, rest) = path.split_once("/resolve/")?;
    let repo = match find(state, request, name, false) {
        Ok(repo) => repo.clone(),
        Err(answer) => return Some(answer),
    };
    if let Some(new) = &repo.renamed_to {
        return Some(Answer::new(307).header("Location", format!("/{new}/resolve/{rest}")));
    }
    // The path is decoded already, so a revision with `/` is found by trying.
    let ends = rest.match_indices('/').map(|(end, _)| end);
    let known = ends.map(|end| (&rest[..end], &rest[end + 1..]));
    let Some((commit, file)) =
        known.filter_map(|(revision, file)| Some((repo.resolve(revision)?, file))).next()
    else {
        return Some(error(404, "RevisionNotFound"));
    };
    let Some(found) = repo.commits[commit].get(file) else {
        return Some(error(404, "EntryNotFound").header("X-Repo-Commit", commit));
    };
    if state.is_direct {
        let answer = cdn::ranged(request, &found.bytes).header("X-Repo-Commit", commit);
        return Some(answer.header("ETag", format!("\"{}\"", found.etag)));
    }
    if !found.is_large {
        // Like the Hub: another place on it, which has the ETag.
        let kind = if name.matches('/').count() == 1 { "models/" } else { "" };
        let location = format!("/api/resolve-cache/{kind}{name}/{commit}/{}", encoded(file));
        let answer = Answer::new(307).header("Location", location);
        return Some(answer.header("X-Repo-Commit", commit));
    }
    Some(
        signed(state, &found.etag)
            .header("X-Repo-Commit", commit)
            .header("X-Linked-Size", found.bytes.len())
            .header("X-Linked-Etag", format!("\"{}\"", found.etag)),
    )
}

/// `KIND/OWNER/NAME/COMMIT/FILE`: a small file.
fn small(state: &State, request: &Request, rest: &str) -> Option<Answer> {
    let (name, rest) = repo_and_rest(rest)?;
    let (commit, file) = rest?.split_once('/')?;
    let repo = match find(state, request, &name, false) {
        Ok(repo) => repo,
        Err(answer) => return Some(answer),
    };
    let found = repo.commits.get(commit)?.get(file)?;
    let answer = cdn::ranged(request, &found.bytes);
    Some(answer.header("X-Repo-Commit", commit).header("ETag", format!("\"{}\"", found.etag)))
}

/// Spaces and the like in a path, encoded.
fn encoded(path: &str) -> String {
    path.replace('%', "%25").replace(' ', "%20").replace('?', "%3F").replace('#', "%23")
}
