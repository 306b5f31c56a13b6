// Fetches a range of a file: its bytes, the length of the whole file, and its ETag. `null` if the
// server has no such file. With an ETag, the range must be of the version that has it.
export async function fetchRange(url, start, end, etag) {
  const headers = { Range: `bytes=${start}-${end - 1}` };
  // A weak ETag matches nothing there (RFC 9110, 13.1.1). It is compared below.
  if (etag && !etag.startsWith("W/")) headers["If-Match"] = etag;
  const response = await fetch(url, { headers });
  if (response.status === 404) return null;
  const found = response.headers.get("ETag") ?? undefined;
  if (response.status === 412 || (response.ok && etag && found !== etag)) {
    throw new Error("the file has changed since it was opened");
  }
  const range = /^bytes (\d+)-(\d+)\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "");
  if (response.status !== 206 || !range || Number(range[1]) !== start) {
    throw new Error(`expected a range (206), found status ${response.status}`);
  }
  const bytes = new Uint8Array(await response.arrayBuffer());
  return { bytes, length: Number(range[3]), etag: found };
}
