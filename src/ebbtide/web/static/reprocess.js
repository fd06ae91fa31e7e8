// @ts-check
/** Plot the results before and after a reprocess over event time. */

import * as format from "./format.js";

/* global uPlot */

const HEIGHT = 260;
const FEW = 120; // up to this number, each point is a dot
const drawn = new WeakSet();
const dark = matchMedia("(prefers-color-scheme: dark)");

/** @typedef {{at: number[], old: (number|null)[], new: (number|null)[]}} Points */

/** @param {Element} place */
function colours(place) {
  const style = getComputedStyle(place);
  const of = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  return {
    old: of("--chart-broken"), new: of("--chart-bar"), ground: of("--surface"),
    axis: of("--chart-axis"), grid: of("--chart-grid"),
  };
}

/** @param {number} width @param {Points} points @param {Element} place */
function options(width, points, place) {
  const colour = colours(place);
  const few = points.at.length <= FEW;
  const dots = (/** @type {number} */ size) => ({ show: few, size });
  const axis = { stroke: colour.axis, grid: { stroke: colour.grid, width: 1 }, ticks: { stroke: colour.grid, width: 1 } };
  return {
    width,
    height: HEIGHT,
    ms: 1,
    tzDate: (/** @type {number} */ ms) => uPlot.tzDate(new Date(ms), "Etc/UTC"),
    scales: { x: { time: true } },
    axes: [{ ...axis, values: times }, { ...axis, size: 64, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map(format.compact) }],
    series: [
      { label: "starts", value: (/** @type {any} */ _, /** @type {number|null} */ ms) => format.moment(ms) },
      // old points are larger and below, so that an unchanged one shows as a ring
      { label: "before", stroke: colour.old, width: 2, dash: [6, 4], points: { ...dots(11), fill: colour.ground }, spanGaps: false, value: number },
      { label: "after", stroke: colour.new, width: 2, points: { ...dots(6), fill: colour.new }, spanGaps: false, value: number },
    ],
  };
}

/** Labels with the date below the time where it changes. @param {any} _ @param {number[]} ticks */
const times = (_, ticks) => ticks.map((ms, index) => {
  const [day, time] = format.moment(ms).split(" ");
  const same = index > 0 && format.moment(ticks[index - 1]).startsWith(day);
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : 0;
  return time.slice(0, step < 60_000 ? 8 : 5) + (same ? "" : `\n${day}`);
});

/** @param {any} _ @param {number|null} value */
const number = (_, value) => format.number(value);

/** @param {HTMLElement} place */
async function draw(place) {
  if (drawn.has(place)) return;
  drawn.add(place);
  const answer = await fetch(place.dataset.url ?? "");
  if (!answer.ok) return;
  const { points } = await answer.json();
  if (!points?.at.length) return;
  /** @type {any} */
  let plot;
  const paint = () => {
    plot?.destroy();
    plot = new uPlot(options(place.clientWidth, points, place), [points.at, points.old, points.new], place);
  };
  paint();
  new ResizeObserver(() => {
    if (plot.width !== place.clientWidth) plot.setSize({ width: place.clientWidth, height: HEIGHT });
  }).observe(place);
  dark.addEventListener("change", paint);
}

function look() {
  const place = document.getElementById("diff-plot");
  if (place) draw(place);
}

document.addEventListener("htmx:load", look); // also when the page of the task replaces itself at the end
look();
