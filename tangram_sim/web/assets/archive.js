// A folder of text files as one tar archive (POSIX ustar), which every system unpacks.

const BLOCK = 512;

function header(name, size, runs) {
  const field = (value, width) => `${value.toString(8).padStart(width - 1, "0")}\0`;
  const place = name.length > 99 ? name.lastIndexOf("/", 154) : -1;
  const parts = [name.slice(place + 1).padEnd(100, "\0"), field(runs ? 0o755 : 0o644, 8), field(0, 8), field(0, 8), field(size, 12),
    field(Math.floor(Date.now() / 1000), 12), " ".repeat(8), "0", "\0".repeat(100), "ustar\0", "00", "\0".repeat(80),
    name.slice(0, Math.max(place, 0)).padEnd(155, "\0")];
  const sum = new TextEncoder().encode(parts.join("")).reduce((total, byte) => total + byte, 0);
  parts[6] = `${sum.toString(8).padStart(6, "0")}\0 `;
  return new TextEncoder().encode(parts.join("").padEnd(BLOCK, "\0"));
}

/** Bytes of the archive of `files`, text by name; shell scripts can be run. */
export function archive(files) {
  const parts = [];
  for (const [name, text] of Object.entries(files)) {
    const body = new TextEncoder().encode(text);
    parts.push(header(name, body.length, name.endsWith(".sh")), body, new Uint8Array((BLOCK - (body.length % BLOCK)) % BLOCK));
  }
  return new Blob([...parts, new Uint8Array(2 * BLOCK)], { type: "application/x-tar" });
}
