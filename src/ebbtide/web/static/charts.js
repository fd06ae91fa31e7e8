// @ts-check
/** Stacked uPlot panels that share the x axis, the cursor and the zoom. */

import {
  FONT, STRIP, clipped, colours, paintDurations, paintGaps, paintHead, paintOver, paintRows, paintSpans, readColours,
} from "./paint.js";
import * as format from "./format.js";
import { splitsOf } from "./gaps.js";

/* global uPlot */
/** @typedef {import("./timeline.js").Model} Model */

const GUTTER = 72; // for the y axis
const AXIS = 40; // for the x axis below the last panel
const DAY = 86_400_000;
const COUNTS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((n) => n * 10 ** power)).flat();
const SIZES = Array.from({ length: 50 }, (_, power) => 2 ** power);
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400];
const DURATIONS = [...COUNTS.slice(0, 9), ...SECONDS.map((seconds) => seconds * 1000)];

const count = { height: 66, steps: COUNTS, tick: format.compact };
/** From top to bottom; a panel without values is left out. uPlot draws the lines, `paint` the rest. */
const PANELS = [
  { ...count, title: "Rows", height: 104, columns: ["rows", "broken"], paint: paintRows,
    swatches: { bar: "rows", broken: "broken" } },
  { ...count, title: "Duration", columns: ["duration"], paint: paintDurations,
    steps: DURATIONS, tick: format.shortDuration },
  { title: "Event time", height: 98, columns: ["earliest", "latest", "watermark"], paint: paintSpans,
    line: "watermark", swatches: { span: "earliest to latest", line: "watermark" } },
  { ...count, title: "Lag, in records", columns: ["lag"], line: "lag" },
  { ...count, title: "State, in rows", columns: ["state_rows"], line: "state_rows" },
  { ...count, title: "State, in bytes", columns: ["state_bytes"], line: "state_bytes",
    steps: SIZES, tick: format.shortSize },
];
/** Always has values: uPlot omits the axis of a panel without any. */
const HEAD = { title: "", height: 0, columns: ["committed"], paint: paintHead };

/** The panels of a timeline in an element.
 * @param {HTMLElement} root @param {Model} model
 * @param {{hover(i: number|null): void, click(i: number): void, select(from: number, to: number): void}} handlers */
export function makeCharts(root, model, handlers) {
  /** @type {any[]} */
  let plots = [];
  let panels = [HEAD];
  // uPlot reports the events of one panel to all: where the pointer went down, what it was last over
  let [source, hovered] = [null, null];
  const has = (name) => model.batches[name].some((value) => value != null);
  const filled = () => [HEAD, ...PANELS.filter((panel) => panel.columns.some(has))];

  function clear() {
    for (const plot of plots) plot.destroy();
    plots = [];
    root.replaceChildren();
  }

  function build() {
    clear();
    readColours();
    panels = filled();
    plots = panels.map((panel, i) => make(panel, i === panels.length - 1));
  }

  function make(panel, isLast) {
    const options = { ...optionsOf(panel, isLast, model), width: root.clientWidth };
    Object.assign(options.hooks, { setSelect: [selected], setCursor: [hover] });
    const plot = new uPlot(options, dataOf(panel, model), hostOf(root, panel));
    for (const name of ["tl-range", "tl-chosen"]) plot.over.appendChild(document.createElement("div")).className = name;
    plot.over.addEventListener("mousedown", () => { source = plot; }, true);
    plot.over.addEventListener("click", () => plot.cursor.idx != null && handlers.click(plot.cursor.idx));
    placeLines(plot, model);
    return plot;
  }

  function hover({ cursor }) {
    if ((cursor.idx ?? null) !== hovered) handlers.hover((hovered = cursor.idx ?? null));
  }

  /** A drag has ended. */
  function selected(plot) {
    const { left, width } = plot.select;
    if (width && plot === source) handlers.select(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
    if (width) plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  const zoom = (plot) => plot.setScale("x", { min: model.view[0], max: model.view[1] });
  new ResizeObserver(() => {
    const width = root.clientWidth;
    for (const plot of plots) if (plot.width !== width) plot.setSize({ width, height: plot.height });
  }).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readColours();
    for (const plot of plots) plot.redraw(false);
  });

  return {
    build,
    clear,
    zoom: () => plots.forEach(zoom),
    place: () => plots.forEach((plot) => placeLines(plot, model)),
    /** Set new values; if other panels get values, all are built again. */
    refresh() {
      if (String(filled().map(sizeOf)) !== String(panels.map(sizeOf))) return build();
      plots.forEach((plot, i) => plot.batch(() => { plot.setData(dataOf(panels[i], model), false); zoom(plot); }));
    },
    /** The x value under a point of the screen. @param {number} clientX */
    valueAt: (clientX) => plots[0].posToVal(clientX - plots[0].over.getBoundingClientRect().left, "x"),
  };

  function sizeOf(panel) {
    return panel.title || `${headRows(model)} ${model.axis.gaps.length > 0}`;
  }
}

const dataOf = (panel, model) => [model.x, ...panel.columns.map((name) => model.drawn[name])];

/** Create the element of a panel, with its title. */
function hostOf(root, panel) {
  const host = root.appendChild(document.createElement("div"));
  host.className = "panel";
  const add = (className, textContent) =>
    Object.assign(host.appendChild(document.createElement("span")), { className, textContent });
  if (panel.title) add("panel-title", panel.title);
  for (const [kind, text] of Object.entries(panel.swatches ?? {})) add(`swatch swatch-${kind}`, text);
  return host;
}

/** Number of rows of strips and flags in the head. */
const headRows = (model) => model.retained.length + (model.marks.length ? 1 : 0);

/** The uPlot options of a panel. */
function optionsOf(panel, isLast, model) {
  const isHead = panel === HEAD;
  const isTime = panel.line === "watermark";
  const [min, max] = model.view;
  const height = isHead ? STRIP * headRows(model) + 6 : panel.height;
  return {
    height: height + (isLast ? AXIS : 0), ms: 1, legend: { show: false }, axes: axesOf(panel, isLast, model),
    padding: isHead ? [3, 10, 3, 0] : [5, 10, isLast ? 0 : 6, 0],
    tzDate: (ms) => uPlot.tzDate(new Date(ms), "Etc/UTC"),
    scales: {
      x: { time: !model.byNumber, auto: false, min, max },
      y: { time: isTime, range: isTime ? around : fromZero },
    },
    series: [{}, ...panel.columns.map((name) => seriesOf(name === panel.line, isTime ? "line" : "bar"))],
    cursor: {
      sync: { key: "timeline" }, y: false, points: { show: false }, bind: { dblclick: () => null },
      drag: { x: true, y: false, setScale: false, dist: 4 },
    },
    hooks: {
      drawAxes: [
        (plot) => isHead || clipped(plot, false, () => paintGaps(plot, model, panel.title === "Rows")),
        (plot) => panel.paint && clipped(plot, isHead, () => panel.paint(plot, model)),
      ],
      draw: [(plot) => { clipped(plot, false, () => paintOver(plot, model)); placeLines(plot, model); }],
    },
  };
}

/** The x axis, which only the last panel labels, and the y axis. */
function axesOf(panel, isLast, model) {
  const { byNumber } = model;
  const times = (says) => (_, splits, ...more) => says(_, splits.map(model.axis.timeAt), ...more);
  // read with each drawing, as gaps come while one looks; without any, uPlot knows better
  const gapped = model.axis.gaps.length ? { splits: (_, _axis, min, max, step) => splitsOf(model.axis, min, max, step) } : {};
  const grid = { show: panel !== HEAD, stroke: () => colours.grid, width: 1 };
  const look = { stroke: () => colours.axis, font: FONT, grid };
  const none = () => [];
  const numbers = (_, splits) => splits.map((id) => (Number.isInteger(id) ? String(id) : ""));
  const counted = panel.tick ? (_, splits) => splits.map(panel.tick) : none;
  return [
    { ...look, ticks: { ...grid, size: isLast ? 5 : 0 }, size: isLast ? AXIS : 0, space: 76,
      incrs: byNumber ? COUNTS : undefined, values: isLast ? (byNumber ? numbers : times(sayTimesBelow)) : none,
      ...(byNumber ? {} : gapped) },
    { ...look, ticks: { show: false }, size: GUTTER, gap: 6, space: 26,
      incrs: panel.steps, values: panel.line === "watermark" ? times(sayTimesBeside) : counted,
      ...(panel.line === "watermark" ? gapped : {}) },
  ];
}

/** A line with its area below; or, without a line, values that only `paint` draws. */
function seriesOf(isLine, colour) {
  if (!isLine) return { paths: () => null, points: { show: false } };
  const fill = colour === "bar" ? () => `${colours.bar}2e` : undefined;
  return { stroke: () => colours[colour], width: 1.5, fill, points: { size: 5, fill: () => colours[colour] } };
}

const fromZero = (_, _low, high) => [0, Math.max(high ?? 0, 1) * 1.06];

function around(_, low, high) {
  const room = Math.max((high - low) * 0.06, 1000);
  return low == null ? [0, 1] : [low - room, high + room];
}

/** Labels with the date below the time where it changes. */
function sayTimesBelow(_, splits, _axis, _space, step) {
  let before = "";
  return splits.map((ms) => {
    const [day, time] = format.moment(ms).split(" ");
    const isSame = day === before;
    before = day;
    return step >= DAY ? day : time.slice(0, step < 60_000 ? 8 : 5) + (isSame ? "" : `\n${day}`);
  });
}

function sayTimesBeside(_, splits, _axis, _space, step) {
  const first = splits[splits.length - 1] - splits[0] >= DAY ? 5 : 11;
  const [from, to] = step >= DAY ? [0, 10] : [first, step < 60_000 ? 19 : 16];
  return splits.map((ms) => format.moment(ms).slice(from, to));
}

/** Position the line of the selected batch and the shade of the selected range. */
function placeLines(plot, model) {
  const [range, chosen] = plot.over.querySelectorAll(".tl-range, .tl-chosen");
  if (!chosen) return;
  const width = plot.bbox.width / devicePixelRatio;
  const x = model.chosen === null ? -1 : plot.valToPos(model.x[model.chosen], "x");
  chosen.hidden = x < 0 || x > width;
  chosen.style.left = `${x - 1}px`;
  const [from, to] = (model.range ?? []).map((i) => plot.valToPos(model.x[i], "x"));
  range.hidden = model.range === null || to < 0 || from > width;
  range.style.left = `${Math.max(0, from - 4)}px`;
  range.style.width = `${Math.min(width, to + 4) - Math.max(0, from - 4)}px`;
}

