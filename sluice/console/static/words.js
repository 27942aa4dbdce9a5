// How numbers and times are said, everywhere the same.

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FRACTION = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];

export const NOTHING = "–";

export function number(value) {
  return value === null || value === undefined ? NOTHING : NUMBER.format(value);
}

export function fraction(value) {
  return value === null || value === undefined ? NOTHING : FRACTION.format(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return NOTHING;
  for (const [unit, size] of [["MiB", 1_048_576], ["KiB", 1_024]]) {
    if (value >= size) return `${FRACTION.format(value / size)} ${unit}`;
  }
  return `${NUMBER.format(value)} bytes`;
}

/** Says how long, in the largest unit that fits. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  const [unit, size] = UNITS.find(([, each]) => Math.abs(seconds) >= each) ?? UNITS.at(-1);
  return `${FRACTION.format(Math.round((seconds / size) * 10) / 10)} ${unit}`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return NOTHING;
  return value < 1_000 ? `${NUMBER.format(value)} ms` : duration(value / 1_000);
}

/** Says how long ago, or nothing. */
export function ago(atMs, nowMs = Date.now()) {
  return atMs === null || atMs === undefined || atMs === 0 ? NOTHING : `${duration(Math.max(0, nowMs - atMs) / 1_000)} ago`;
}

/** Says when, in UTC as the commands do. */
export function clock(atMs) {
  return atMs === null || atMs === undefined || atMs === 0 ? NOTHING : `${new Date(atMs).toISOString().slice(0, 19).replace("T", " ")}Z`;
}

/** Gives the id of a trace's header: all that a message meets on its way has it. */
export function traceOf(header) {
  return /Root=([^;]+)/.exec(header)?.[1] ?? header;
}
