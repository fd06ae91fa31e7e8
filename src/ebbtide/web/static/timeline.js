// @ts-check
/** The timeline of a checkpoint: show its batches, and let the user select one or a range. */

import { closeBatch, openBatch } from "./batch.js";
import { makeCharts } from "./charts.js";
import * as format from "./format.js";
import { STRAIGHT, makeAxis } from "./gaps.js";

/** @typedef {object} Model
 *  What is shown: columns with one value per batch; `chosen` and `range` are indexes into them.
 *  @property {Record<string, (number|null)[]>} batches
 *  @property {Record<string, (number|null)[]>} drawn  The same, with event times as places on the axis.
 *  @property {import("./gaps.js").Axis} axis
 *  @property {number[]} x  Milliseconds or batch numbers.
 *  @property {boolean} byNumber
 *  @property {[number, number]} whole  The full extent of x.
 *  @property {[number, number]} view  The visible extent of x.
 *  @property {number|null} chosen
 *  @property {[number, number]|null} range
 *  @property {{kind: string, label: string, x: number}[]} marks
 *  @property {{keeper: string, text: string, x: number}[]} retained */

const POLL_MS = 2000;
const SETTLE_MS = 250; // delay after the last key before a batch is opened
const ROWS = 50; // of the table
const FAR = 10; // batches per step with Shift and an arrow key
const NUMBERS = ["rows", "broken", "duration", "lag"];
const NO_BATCH = "No batch has run yet. The first one appears as soon as it is planned.";
const ABOUT = "Click a batch for details, drag to zoom, press ? for the keys.";

const part = (name) => /** @type {any} */ (document.getElementById(`timeline-${name}`));
const root = /** @type {HTMLElement} */ (document.getElementById("timeline"));
/** @type {Model} */
const model = {
  batches: { id: [] }, drawn: { id: [] }, axis: STRAIGHT, x: [], byNumber: false, whole: [0, 1], view: [0, 1],
  chosen: null, range: null, marks: [], retained: [],
};
const charts = makeCharts(root, model, {
  hover: (i) => read(i ?? standing()),
  click: (i) => { choose(i); if (choosing) markRange(); },
  select: dragged,
});
let listed = "[]"; // the changes below the timeline
let served = /** @type {any} */ (null); // the last answer of the server
let [etag, choosing, shifted] = ["", false, false];
let began = /** @type {number|null} */ (null); // the batch where a range was started with the keyboard

// ---- data --------------------------------------------------------------------------------------

async function load() {
  let status = 0;
  try {
    const answer = await fetch(root.dataset.url ?? "", { headers: { "If-None-Match": etag }, cache: "no-store" });
    status = answer.status;
    if (answer.ok) take(await answer.json(), answer.headers.get("ETag") ?? "");
    else if (status >= 400 && !model.x.length) showText("Cannot read the timeline.");
  } catch (error) {
    if (status) throw error;
  }
  document.dispatchEvent(new CustomEvent("ebbtide:answer", { detail: { status } }));
}

/** Show an answer of the server. */
function take(found, tag) {
  const [isFirst, isNew] = [served === null, !model.x.length];
  const chosen = model.chosen === null ? hashed() : model.batches.id[model.chosen];
  const before = knownOf(model.chosen);
  [served, etag] = [found, tag];
  if (!isFirst) document.body.dispatchEvent(new CustomEvent("ebbtide:changed"));
  listMarks();
  if (!found.batches.id.length) return empty();
  const range = model.range?.map((i) => model.batches.id[i]);
  measure();
  model.chosen = placeOf(chosen);
  const [start, end] = (range ?? [null, null]).map(placeOf);
  model.range = start === null || end === null ? null : [start, end];
  isNew ? charts.build() : charts.refresh();
  showGapLegend();
  root.setAttribute("aria-valuemin", String(model.batches.id[0]));
  root.setAttribute("aria-valuemax", String(model.batches.id[model.x.length - 1]));
  fillTable();
  if (model.chosen === null && before) chooseNone();
  read(standing());
  if (model.chosen === null) return;
  if (isNew || !before) choose(model.chosen);
  else if (knownOf(model.chosen) !== before) openBatch(urlOf(chosen), 0, false);
}

/** There is no batch; the next one is shown as on a new page. */
function empty() {
  Object.assign(model, { batches: served.batches, drawn: served.batches, axis: STRAIGHT, x: [], whole: [0, 1], view: [0, 1], range: null });
  charts.clear();
  showText(NO_BATCH);
  chooseNone();
  root.setAttribute("aria-valuetext", NO_BATCH);
  for (const value of part("readout").querySelectorAll("dd")) value.textContent = format.NOTHING;
  part("marks").textContent = "";
  fillTable();
}

/** All values of a batch, for comparison. */
function knownOf(i) {
  return i === null ? "" : JSON.stringify(Object.values(model.batches).map((column) => column[i]));
}

/** Compute positions on the x axis. The view stays, but follows the last batch if that is visible. */
function measure() {
  const [[from, to], [first, last], newest] = [model.view, model.whole, model.x[model.x.length - 1]];
  const seen = [from, to].map(model.axis.timeAt);
  const times = ascending(served.batches.at);
  const axis = model.axis = makeAxis(times);
  model.batches = served.batches;
  model.drawn = { ...served.batches };
  for (const name of axis.gaps.length ? ["earliest", "latest", "watermark"] : []) {
    model.drawn[name] = served.batches[name].map((at) => (at === null ? null : axis.at(at)));
  }
  model.x = model.byNumber ? served.batches.id : times.map(axis.at);
  const now = model.x[model.x.length - 1];
  // a rewind long after the last batch must not squeeze all batches into a corner
  const latest = now + Math.max(1000, (now - model.x[0]) / 10);
  model.marks = served.marks.map((mark) => ({
    kind: mark.kind,
    label: `${{ rewind: "Rewind to", undo: "Undo to" }[mark.kind] ?? "Fork at"} ${mark.batch}`,
    x: model.byNumber || mark.at === null ? leftOf(mark.batch) : Math.min(axis.at(mark.at), latest),
  }));
  model.retained = served.retained.map(({ keeper, from_batch, until }) => ({
    keeper,
    text: `batch ${from_batch} and later${until === null ? "" : `, until ${format.minute(until)}`}`,
    x: leftOf(from_batch),
  }));
  const end = Math.max(now, ...model.marks.map((mark) => mark.x));
  const room = model.byNumber ? 0.6 : Math.max(1000, (end - model.x[0]) / Math.min(80, 2 * model.x.length));
  model.whole = [model.x[0] - room, end + room];
  if (from <= first && to >= last) model.view = model.whole;
  else if (to >= newest) model.view = [from + now - newest, to + now - newest];
  else if (!model.byNumber) model.view = [axis.at(seen[0]), axis.at(seen[1])];
}

/** Non-decreasing times, as uPlot needs them; a batch without a time follows the previous one. */
function ascending(times) {
  let last = (times.find((at) => at !== null) ?? 0) - 1;
  return times.map((at) => (last = Math.max(at ?? 0, last + 1)));
}

/** The legend explains gaps only where there are some. */
function showGapLegend() {
  /** @type {HTMLElement} */ (document.getElementById("legend-gap")).hidden = model.byNumber || !model.axis.gaps.length;
}

/** The x between a batch and the previous one. */
function leftOf(id) {
  const [i, { x }] = [model.batches.id.findIndex((other) => other !== null && other >= id), model];
  if (model.byNumber) return id - 0.5;
  return i < 0 ? x[x.length - 1] : (x[i] + x[Math.max(0, i - 1)]) / 2;
}

// ---- words -------------------------------------------------------------------------------------

/** The values of a batch, in the order of the columns of the table. */
function valuesOf(i) {
  const of = (name) => model.batches[name][i];
  const state = `${format.number(of("state_rows"))} rows, ${format.size(of("state_bytes"))}`;
  return {
    batch: String(of("id") ?? format.NOTHING),
    at: format.moment(of("at")),
    rows: format.number(of("rows")),
    broken: format.number(of("broken")),
    duration: of("committed") ? format.duration(of("duration")) : "not committed",
    lag: format.number(of("lag")),
    again: of("replayable") ? "yes" : "no",
    events: format.span(of("earliest"), of("latest")),
    watermark: format.moment(of("watermark")),
    state: of("state_rows") === null ? format.NOTHING : state,
  };
}

/** Show the values of a batch above the panels. */
function read(i) {
  for (const [name, text] of Object.entries(valuesOf(i))) part(`value-${name}`).textContent = text;
  const marks = served.marks.filter((mark) => mark.batch === model.batches.id[i]).map((mark) => mark.text);
  part("marks").textContent = marks.join(" · ") || ABOUT;
}

/** The batch to show while the pointer is elsewhere: the selected one, or the last. */
const standing = () => model.chosen ?? model.x.length - 1;

/** Show a text and announce it to screen readers. */
const tell = (text) => { part("range-text").textContent = text; };

function add(parent, tag, text, name = "") {
  return Object.assign(parent.appendChild(document.createElement(tag)), { textContent: text, className: name });
}

/** Show a text in place of the panels. */
function showText(text) {
  root.replaceChildren();
  add(root, "p", text, "empty");
}

/** List the changes of the checkpoint, newest first. */
function listMarks() {
  const list = part("changes");
  const lines = served.marks.map(({ text, batch }) => ({ text, batch, known: served.batches.id.includes(batch) }));
  if (JSON.stringify(lines) === listed) return; // a focused link keeps the focus
  listed = JSON.stringify(lines);
  list.closest("section").hidden = !lines.length;
  list.replaceChildren();
  for (const { text, batch, known } of lines.toReversed()) {
    const line = add(list, "li", `${text} `);
    if (known) add(line, "a", `Batch ${batch}`).href = `#batch-${batch}`;
  }
}

function fillTable() {
  const body = part("table").querySelector("tbody");
  if (!part("table").open) return;
  body.replaceChildren();
  for (let i = model.x.length - 1; i >= Math.max(0, model.x.length - ROWS); i--) {
    const row = add(body, "tr", "");
    for (const [name, text] of Object.entries(valuesOf(i))) {
      const cell = add(row, name === "batch" ? "th" : "td", text, NUMBERS.includes(name) ? "num" : "");
      if (name === "batch") cell.scope = "row";
    }
  }
}

// ---- choosing ----------------------------------------------------------------------------------

function placeOf(id) {
  const i = model.batches.id.indexOf(id);
  return i < 0 ? null : i;
}

const urlOf = (id) => (root.dataset.batchUrl ?? "").replace(/0$/, id);

function hashed() {
  const found = /^#batch-(\d+)$/.exec(location.hash);
  return found && Number(found[1]);
}

/** Select a batch and open it; `wait` keeps a held key from opening every batch on the way. */
function choose(i, wait = 0, focus = false) {
  const [id, known] = [model.batches.id[i], valuesOf(i)];
  model.chosen = i;
  reveal(model.x[i]);
  charts.place();
  read(i);
  root.setAttribute("aria-valuenow", String(id));
  root.setAttribute("aria-valuetext", `Batch ${known.batch}, ${known.at}, ${known.rows} rows, `
    + `${known.broken} broken, took ${known.duration}, can run again: ${known.again}`);
  history.replaceState(history.state, "", `#batch-${id}`);
  offerRewind(`Rewind to batch ${known.batch} …`, `?to_batch=${id}`);
  openBatch(urlOf(id), wait, focus);
}

/** Let the button above lead to the rewind to the selected batch; a read-only page has none. */
function offerRewind(text, query) {
  const link = document.querySelector("a[data-rewind]");
  if (!link) return;
  link.textContent = text;
  link.setAttribute("href", `${link.getAttribute("href")?.split("?")[0]}${query}`);
}

/** The selected batch is gone; if it returns, it is selected again. */
function chooseNone() {
  closeBatch();
  offerRewind("Rewind …", "");
  model.chosen = null;
  charts.place();
  root.setAttribute("aria-valuenow", root.getAttribute("aria-valuemin") ?? "0");
  root.setAttribute("aria-valuetext", "No batch is selected");
}

/** Select batches, and with them the range of event time that they read. */
function chooseRange(from, to) {
  model.range = [from, to];
  charts.place();
  const of = (name) => model.batches[name].slice(from, to + 1).filter((at) => at !== null);
  const which = `Batches ${model.batches.id[from]} to ${model.batches.id[to]}`;
  if (!of("earliest").length) return tell(`${which} have no event times in the history.`);
  // whole seconds; the end of a range is exclusive, but the last event must be inside
  const second = (ms) => Math.floor(ms / 1000) * 1000;
  const start = second(of("earliest").reduce((a, b) => Math.min(a, b)));
  const end = second(of("latest").reduce((a, b) => Math.max(a, b))) + 1000;
  const times = { start: format.iso(start), end: format.iso(end) };
  for (const [name, time] of Object.entries(times)) part(name).value = time;
  const link = document.querySelector("a[data-reprocess]");
  link?.setAttribute("href", `${root.dataset.reprocessUrl}?${new URLSearchParams(times)}`);
  tell(`${which} read events of ${format.span(start, end)}.`);
}

/** A drag has ended: zoom, or select a range. */
function dragged(from, to) {
  const [first, last] = placesIn(from, to);
  if (!choosing && !shifted) show(from, to);
  else if (first !== null) chooseRange(first, last);
}

/** The first and the last index between two x. */
function placesIn(from, to) {
  const [first, after] = [model.x.findIndex((x) => x >= from), model.x.findIndex((x) => x > to)];
  const last = (after < 0 ? model.x.length : after) - 1;
  return first < 0 || last < first ? [null, null] : [first, last];
}

/** Start a range at the selected batch, or end it there. */
function markRange() {
  const [here, start] = [standing(), placeOf(began)];
  if (start !== null) chooseRange(Math.min(start, here), Math.max(start, here));
  began = start === null ? model.batches.id[here] : null;
  if (began === null) return;
  const next = choosing ? "Click its last batch." : "Go to its last batch, then press Shift+R again.";
  tell(`The range starts at batch ${began}. ${next}`);
}

// ---- zoom --------------------------------------------------------------------------------------

function show(from, to) {
  const [[first, last], least] = [model.whole, model.byNumber ? 3 : 2000];
  const room = Math.max(0, least - (to - from)) / 2;
  model.view = [Math.max(first, from - room), Math.min(last, to + room)];
  charts.zoom();
}

/** Zoom by a factor around `still`. */
function zoom(factor, still = model.chosen === null ? Infinity : model.x[model.chosen]) {
  const [min, max] = model.view;
  const at = Math.min(Math.max(still, min), max);
  show(at - (at - min) * factor, at + (max - at) * factor);
}

const showAll = () => show(...model.whole);

/** Move the view until an x is visible. */
function reveal(x) {
  const [min, max] = model.view;
  const room = (max - min) / 20;
  if (x < min) show(x - room, x - room + max - min);
  if (x > max) show(x + room - max + min, x + room);
}

/** Switch between time and batch number; the same batches stay visible. */
function switchAxis(byNumber) {
  const [[from, to], [first, last]] = [model.view, model.whole];
  const [start, end] = placesIn(from, to);
  model.byNumber = byNumber;
  part("by-time").setAttribute("aria-pressed", String(!byNumber));
  part("by-number").setAttribute("aria-pressed", String(byNumber));
  measure();
  const isWhole = (from <= first && to >= last) || start === null;
  model.view = isWhole ? model.whole : [model.x[start] - 0.5, model.x[end] + 0.5];
  charts.build();
  showGapLegend();
}

// ---- hands -------------------------------------------------------------------------------------

/** @type {Record<string, (event: KeyboardEvent) => void>} */
const KEYS = {
  ArrowLeft: (event) => step(event.shiftKey ? -FAR : -1),
  ArrowRight: (event) => step(event.shiftKey ? FAR : 1),
  Home: () => choose(0, SETTLE_MS),
  End: () => choose(model.x.length - 1, SETTLE_MS),
  Enter: () => choose(standing(), 0, true),
  Escape: showAll,
  "+": () => zoom(0.5),
  "=": () => zoom(0.5),
  "-": () => zoom(2),
  R: markRange,
  "?": () => part("keys").showModal(),
};

function step(by) {
  const to = model.chosen === null ? model.x.length - 1 : model.chosen + by;
  choose(Math.min(Math.max(to, 0), model.x.length - 1), SETTLE_MS);
}

const BUTTONS = {
  in: () => zoom(0.5),
  out: () => zoom(2),
  all: showAll,
  "by-time": () => switchAxis(false),
  "by-number": () => switchAxis(true),
  "choose-range": () => part("choose-range").setAttribute("aria-pressed", String((choosing = !choosing))),
  "show-keys": () => part("keys").showModal(),
};

function listen() {
  /** Ignore controls as long as there is no batch. */
  const on = (target, name, act, options) =>
    target.addEventListener(name, (event) => model.x.length && act(event), options);
  on(root, "keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key](event);
  });
  on(root, "mousedown", (event) => { shifted = event.shiftKey; }, true);
  on(root, "dblclick", showAll);
  on(root, "wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, charts.valueAt(event.clientX));
  }, { passive: false });
  for (const [name, act] of Object.entries(BUTTONS)) on(part(name), "click", act);
  on(part("table"), "toggle", fillTable);
  on(window, "hashchange", () => { if (placeOf(hashed()) !== null) choose(placeOf(hashed())); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
}

async function poll() {
  try {
    if (!document.hidden) await load();
  } finally {
    window.setTimeout(poll, POLL_MS);
  }
}

listen();
poll();
