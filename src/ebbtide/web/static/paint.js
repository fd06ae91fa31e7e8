// @ts-check
/** Draw bars, strips, hatching and marks on a uPlot panel. */

/** @typedef {import("./timeline.js").Model} Model */
/** @typedef {{at: number, left: number, width: number, from: number, to: number}} Column
 *  The batches, by index, that share a pixel of the canvas, and their bar. */
/** @typedef {(column: Column) => [number, number]|null} Ends  Top and bottom of a bar. */

import { age } from "./format.js";

export const STRIP = 18; // a row of the head
export const FONT = "11px system-ui, sans-serif";
const [THIN, WIDE, PLANNED] = [1, 26, 7]; // widths of bars; an uncommitted one has at least the last
const KEEPERS = { checkpoint: "Checkpoint", kafka: "Kafka", delta: "Delta" };
const DASHES = { rewind: [], undo: [6, 3], fork: [2, 3] };

/** @type {Record<string, string>} The colors of the current scheme. */
export const colours = {};

export function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["bar", "dim", "broken", "span", "line", "mark", "grid", "axis"]) {
    colours[name] = style.getPropertyValue(`--chart-${name}`).trim();
  }
}

/** Draw inside the panel; the labels of the head are beside it. */
export function clipped({ ctx, bbox }, isHead, draw) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(isHead ? 0 : bbox.left, bbox.top, (isHead ? bbox.left : 0) + bbox.width, bbox.height);
  ctx.clip();
  draw();
  ctx.restore();
}

let kept = { x: null, key: "", columns: /** @type {Column[]} */ ([]) };

/** The visible bars, computed once for all panels. */
function columnsOf(plot, model) {
  const [{ left, width }, { min, max }, [first, last]] = [plot.bbox, plot.scales.x, plot.series[0].idxs];
  const key = String([min, max, left, width]);
  if (kept.x === model.x && kept.key === key) return kept.columns;
  const columns = [];
  for (let i = first; i <= last; i++) {
    const at = Math.round(left + ((model.x[i] - min) * width) / (max - min));
    if (columns.at(-1)?.at === at) columns.at(-1).to = i;
    else columns.push({ at, left: at, width: 0, from: i, to: i });
  }
  columns.forEach((column, i) => {
    const gap = Math.min(column.at - (columns[i - 1]?.at ?? -Infinity), (columns[i + 1]?.at ?? Infinity) - column.at);
    column.width = Math.min(Math.max(Math.round(gap * 0.8), THIN * devicePixelRatio), WIDE * devicePixelRatio);
    column.left = column.at - Math.floor(column.width / 2);
  });
  kept = { x: model.x, key, columns };
  return columns;
}

/** The maximum of a column, or with -1 the minimum; null without values. */
function most(values, column, sign = 1) {
  let found = null;
  for (let i = column.from; i <= column.to; i++) {
    const value = values[i];
    if (value != null && (found === null || value * sign > found * sign)) found = value;
  }
  return found;
}

/** Bars as one path, because thousands of single ones are slow. @param {Column[]} columns @param {Ends} ends */
function fillBars(plot, columns, colour, ends) {
  const { ctx } = plot;
  ctx.fillStyle = colour;
  ctx.beginPath();
  for (const column of columns) {
    const found = ends(column);
    if (!found) continue;
    const [top, bottom] = found.map((value) => Math.round(plot.valToPos(value, "y", true)));
    const height = Math.max(bottom - top, 2 * devicePixelRatio);
    ctx.rect(column.left, Math.min(top, bottom - height), column.width, height);
  }
  ctx.fill();
}

/** Bars, gray where no batch can run again. @param {Ends} ends */
function fillDimmed(plot, model, colour, ends) {
  const columns = columnsOf(plot, model);
  const canRun = (column) => most(model.batches.replayable, column) === 1;
  fillBars(plot, columns.filter((column) => !canRun(column)), colours.dim, ends);
  fillBars(plot, columns.filter(canRun), colour, ends);
}

export function paintRows(plot, model) {
  const { rows, broken } = model.batches;
  const top = (column) => Math.max(most(rows, column) ?? 0, most(broken, column) ?? 0);
  fillDimmed(plot, model, colours.bar, (column) => (top(column) ? [top(column), 0] : null));
  fillBars(plot, columnsOf(plot, model), colours.broken, (column) => {
    const wrong = most(broken, column);
    return wrong ? [top(column), top(column) - wrong] : null;
  });
}

export function paintDurations(plot, model) {
  fillDimmed(plot, model, colours.bar, (column) => {
    const took = most(model.batches.duration, column);
    return took === null ? null : [took, 0];
  });
}

export function paintSpans(plot, model) {
  fillDimmed(plot, model, colours.span, (column) => {
    const [low, high] = [most(model.drawn.earliest, column, -1), most(model.drawn.latest, column)];
    return low === null || high === null ? null : [high, low];
  });
}

/** A band for each idle gap that is drawn short; in the first panel with how long it was. */
export function paintGaps(plot, model, isFirst) {
  if (model.byNumber) return;
  const [{ ctx, bbox }, ratio] = [plot, devicePixelRatio];
  for (const { from, to } of model.axis.gaps) {
    const [left, right] = [from, to].map((time) => plot.valToPos(model.axis.at(time), "x", true));
    const room = Math.min(6 * ratio, (right - left) / 4);
    ctx.fillStyle = `${colours.axis}1c`;
    ctx.fillRect(left + room, bbox.top, right - left - 2 * room, bbox.height);
    ctx.strokeStyle = colours.axis;
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    for (const x of [left + room, right - room]) {
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.font = FONT.replace("11", String(11 * ratio));
    if (!isFirst || ctx.measureText(age(to - from)).width > right - left) continue;
    ctx.fillStyle = colours.axis;
    ctx.textBaseline = "top";
    ctx.textAlign = "center";
    ctx.fillText(age(to - from), (left + right) / 2, bbox.top + 2 * ratio);
  }
}

/** Hatching over uncommitted batches, and a line for each mark. */
export function paintOver(plot, model) {
  const { ctx, bbox } = plot;
  ctx.strokeStyle = colours.axis;
  ctx.lineWidth = devicePixelRatio;
  for (const column of columnsOf(plot, model)) {
    if (most(model.batches.committed, column, -1) === 0) hatch(ctx, bbox, column);
  }
  ctx.strokeStyle = colours.mark;
  ctx.lineWidth = 1.5 * devicePixelRatio;
  for (const mark of model.marks) {
    const x = plot.valToPos(mark.x, "x", true);
    ctx.setLineDash((DASHES[mark.kind] ?? []).map((length) => length * devicePixelRatio));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
}

function hatch(ctx, { top, height }, column) {
  const width = Math.max(column.width, PLANNED * devicePixelRatio);
  const left = column.at - width / 2;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.stroke();
  ctx.clip();
  for (let y = top - width; y < top + height; y += 5 * devicePixelRatio) {
    ctx.moveTo(left, y + width);
    ctx.lineTo(left + width, y);
  }
  ctx.stroke();
  ctx.restore();
}

/** A strip per keeper from the oldest batch that it retains; below, the flags. */
export function paintHead(plot, model) {
  const [{ ctx, bbox }, ratio] = [plot, devicePixelRatio];
  const right = bbox.left + bbox.width;
  ctx.font = FONT.replace("11", String(11 * ratio));
  ctx.textBaseline = "middle";
  model.retained.forEach((strip, row) => {
    const [top, height] = [bbox.top + (row * STRIP + 2) * ratio, (STRIP - 4) * ratio];
    const start = plot.valToPos(strip.x, "x", true);
    const left = Math.min(right, Math.max(bbox.left, start));
    ctx.fillStyle = `${colours.bar}40`;
    ctx.fillRect(left, top, right - left, height);
    ctx.fillStyle = colours.bar;
    if (start >= bbox.left) ctx.fillRect(start, top, 2 * ratio, height);
    ctx.fillStyle = colours.axis;
    ctx.textAlign = "right";
    ctx.fillText(KEEPERS[strip.keeper] ?? strip.keeper, bbox.left - 6 * ratio, top + height / 2);
    const width = ctx.measureText(strip.text).width + 12 * ratio;
    const fits = width < right - left;
    ctx.textAlign = fits ? "left" : "right";
    if (fits || width < left - bbox.left) ctx.fillText(strip.text, left + (fits ? 7 : -6) * ratio, top + height / 2);
  });
  paintFlags(plot, model, bbox.top + (model.retained.length + 0.5) * STRIP * ratio);
}

/** The name of each mark beside its line, if the previous one leaves room. */
function paintFlags({ ctx, bbox, valToPos }, model, y) {
  const gap = 5 * devicePixelRatio;
  let free = bbox.left;
  ctx.fillStyle = colours.mark;
  ctx.textAlign = "left";
  for (const mark of model.marks) {
    const [x, { width }] = [valToPos(mark.x, "x", true), ctx.measureText(mark.label)];
    const left = x + width + gap > bbox.left + bbox.width ? x - width - gap : x + gap;
    if (x < bbox.left || x > bbox.left + bbox.width || left < free) continue;
    ctx.fillText(mark.label, left, y);
    free = left + width + gap;
  }
}
