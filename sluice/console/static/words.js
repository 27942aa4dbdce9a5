// Formats numbers and times, in the same way on all pages.

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FRACTION = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];

export const NOTHING = "–";

export function formatNumber(value) {
  return value === null || value === undefined ? NOTHING : NUMBER.format(value);
}

export function formatFraction(value) {
  return value === null || value === undefined ? NOTHING : FRACTION.format(value);
}

export function formatBytes(value) {
  if (value === null || value === undefined) return NOTHING;
  for (const [unit, size] of [["MiB", 1_048_576], ["KiB", 1_024]]) {
    if (value >= size) return `${FRACTION.format(value / size)} ${unit}`;
  }
  return `${NUMBER.format(value)} bytes`;
}

/** Formats a duration in the largest fitting unit. */
export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  const [unit, size] = UNITS.find(([, unitSize]) => Math.abs(seconds) >= unitSize) ?? UNITS.at(-1);
  return `${FRACTION.format(Math.round((seconds / size) * 10) / 10)} ${unit}`;
}

export function formatMilliseconds(value) {
  if (value === null || value === undefined) return NOTHING;
  return value < 1_000 ? `${NUMBER.format(value)} ms` : formatDuration(value / 1_000);
}

/** Formats how long ago a time was; a dash if there is none. */
export function formatAge(atMs, nowMs = Date.now()) {
  return atMs === null || atMs === undefined || atMs === 0 ? NOTHING : `${formatDuration(Math.max(0, nowMs - atMs) / 1_000)} ago`;
}

/** Formats a time in UTC, as the commands do; a dash if there is none. */
export function formatTime(atMs) {
  return atMs === null || atMs === undefined || atMs === 0 ? NOTHING : `${new Date(atMs).toISOString().slice(0, 19).replace("T", " ")}Z`;
}

/** Returns the trace id of an X-Ray header. Log lines of all functions that handle a message contain this id. */
export function parseTraceId(header) {
  return /Root=([^;]+)/.exec(header)?.[1] ?? header;
}
