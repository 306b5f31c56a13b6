// Fetches a range of a file: its bytes, the length of the whole file, and its ETag. `null` if the
// server has no such file. All ranges must be of the version that has this ETag, if there is one.
export async function fetchRange(url, start, end, etag) {
  const headers = { Range: `bytes=${start}-${end - 1}` };
  if (etag) headers["If-Match"] = etag;
  const response = await fetch(url, { headers });
  if (response.status === 404) return null;
  const range = /^bytes (\d+)-(\d+)\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "");
  if (response.status !== 206 || !range || Number(range[1]) !== start) {
    throw new Error(`expected a range (206), found status ${response.status}`);
  }
  const bytes = new Uint8Array(await response.arrayBuffer());
  return { bytes, length: Number(range[3]), etag: response.headers.get("ETag") ?? undefined };
}
