// @ts-check
/** A time axis on which idle gaps between batches are short, so that they do not crush the batches. */

/** @typedef {object} Gap  An idle time, and how long it is drawn; all in milliseconds.
 *  @property {number} from @property {number} to @property {number} width */
/** @typedef {object} Axis
 *  @property {Gap[]} gaps  Ascending.
 *  @property {(time: number) => number} at  The place of a time.
 *  @property {(place: number) => number} timeAt  The time at a place. */

const LONG = 20; // times the usual pause between two batches
const LARGE = 0.05; // of all that is drawn; so there are few gaps
const DRAWN = 8; // usual pauses

/** @type {Axis} */
export const STRAIGHT = { gaps: [], at: (time) => time, timeAt: (place) => place };

/** The axis for batches at these times. @param {number[]} times Ascending. @returns {Axis} */
export function makeAxis(times) {
  const pauses = times.slice(1).map((to, i) => ({ from: times[i], to, length: to - times[i] }));
  const longest = pauses.toSorted((a, b) => b.length - a.length);
  const usual = longest[Math.floor(longest.length / 2)]?.length ?? 0;
  let left = times.length ? times[times.length - 1] - times[0] : 0;
  const found = [];
  for (const pause of longest) {
    if (pause.length <= Math.max(LONG * usual, LARGE * left)) break;
    left -= pause.length;
    found.push(pause);
  }
  if (!found.length) return STRAIGHT;
  const width = Math.max(DRAWN * usual, left / 30, 1000);
  const gaps = found.filter(({ length }) => length > width)
    .map(({ from, to }) => ({ from, to, width })).sort((a, b) => a.from - b.from);
  return {
    gaps,
    at: (time) => gaps.reduce((place, gap) => place - removed(gap, time), time),
    timeAt: (place) => gaps.reduce((time, gap) => time + added(gap, time), place),
  };
}

/** How much of a gap is left out before a time. @param {Gap} gap @param {number} time */
function removed({ from, to, width }, time) {
  const into = Math.min(Math.max(time - from, 0), to - from);
  return into * (1 - width / (to - from));
}

/** How much was left out of a gap, if `time` counts all gaps before it. @param {Gap} gap @param {number} time */
function added({ from, to, width }, time) {
  const into = Math.min(Math.max(time - from, 0), width);
  return into * ((to - from) / width - 1);
}

/** Round times for the labels of the axis: between gaps as usual, and none that touch each other.
 * @param {Axis} axis @param {number} min @param {number} max @param {number} step */
export function splitsOf({ gaps, at, timeAt }, min, max, step) {
  const [first, last] = [timeAt(min), timeAt(max)];
  const edges = [first, ...gaps.flatMap(({ from, to }) => [from, to]), last];
  const splits = /** @type {number[]} */ ([]);
  for (let i = 0; i < edges.length; i += 2) {
    const [start, end] = [Math.max(edges[i], first), Math.min(edges[i + 1], last)];
    for (let time = Math.ceil(start / step) * step; time <= end; time += step) {
      const place = at(time);
      if (!splits.length || place - splits[splits.length - 1] >= step * 0.8) splits.push(place);
    }
  }
  return splits;
}
