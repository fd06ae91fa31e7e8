// @ts-check
/** Format values for people, in the same way as the filters of the templates. */

const NUMBER = new Intl.NumberFormat("en-US");
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export const NOTHING = "-";

/** @param {number|null|undefined} value */
export const number = (value) => (value == null ? NOTHING : NUMBER.format(value));

/** @param {number} value */
export const compact = (value) => COMPACT.format(value);

/** @param {number|null|undefined} bytes @param {number} digits */
export function size(bytes, digits = 1) {
  if (bytes == null) return NOTHING;
  const power = bytes < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(bytes) / 10));
  return `${(bytes / 1024 ** power).toFixed(power ? digits : 0)} ${UNITS[power]}`;
}

/** @param {number|null|undefined} ms */
export function duration(ms) {
  if (ms == null) return NOTHING;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${(ms / 1000).toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${number(Math.floor(seconds / 3600))} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** A long time in its largest unit. @param {number} ms */
export function age(ms) {
  const minutes = ms / 60_000;
  if (minutes < 120) return minutes < 2 ? duration(ms) : `${Math.round(minutes)} min`;
  return minutes < 2880 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} d`;
}

/** For the axes. @param {number} ms */
export const shortDuration = (ms) => (ms === 0 ? "0" : duration(ms).replace(".0 s", " s").replace(" 0 s", ""));

/** @param {number} bytes */
export const shortSize = (bytes) => (bytes === 0 ? "0" : size(bytes, 0));

/** A time in UTC as ISO-8601, as short as possible; empty if it is out of range. @param {number} ms */
export function iso(ms) {
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? "" : at.toISOString().replace(".000Z", "Z");
}

/** A time in UTC to the second. @param {number|null|undefined} ms */
export const moment = (ms) =>
  ms == null ? NOTHING : iso(ms).slice(0, 19).replace("T", " ") || `${ms} ms`;

/** @param {number|null|undefined} ms */
export const minute = (ms) => moment(ms).slice(0, 16);

/** Two times; the date is shown once if it is the same. @param {number|null} from @param {number|null} to */
export function span(from, to) {
  if (from == null || to == null) return NOTHING;
  const [start, end] = [moment(from), moment(to)];
  return `${start} to ${start.slice(0, 10) === end.slice(0, 10) ? end.slice(11) : end}`;
}
