// @ts-check
/** The timeline of a checkpoint: timeline.json in, batches to look at and to choose from out. */

import { closeBatch, openBatch } from "./batch.js";
import { makeCharts } from "./charts.js";
import * as say from "./say.js";

/** @typedef {object} Model
 *  What is shown: columns of values, one a batch; `chosen` and `range` are places in them.
 *  @property {Record<string, (number|null)[]>} batches
 *  @property {number[]} x  Milliseconds, or numbers of batches.
 *  @property {boolean} byNumber
 *  @property {[number, number]} whole  All that there is to see, in x.
 *  @property {[number, number]} view  What is in view.
 *  @property {number|null} chosen
 *  @property {[number, number]|null} range
 *  @property {{kind: string, label: string, x: number}[]} marks
 *  @property {{keeper: string, text: string, x: number}[]} retained */

const POLL_MS = 2000;
const SETTLE_MS = 250; // so long after the last key, the batch is opened
const ROWS = 50; // of the table
const FAR = 10; // batches that Shift and an arrow go
const NUMBERS = ["rows", "broken", "duration", "lag"];
const NO_BATCH = "No batch has run yet. The first one shows here as soon as it is planned.";
const ABOUT = "Click on a batch to read about it, drag to zoom, type ? for the keys.";

const part = (name) => /** @type {any} */ (document.getElementById(`timeline-${name}`));
const root = /** @type {HTMLElement} */ (document.getElementById("timeline"));
/** @type {Model} */
const model = {
  batches: { id: [] }, x: [], byNumber: false, whole: [0, 1], view: [0, 1],
  chosen: null, range: null, marks: [], retained: [],
};
const charts = makeCharts(root, model, {
  hover: (i) => read(i ?? standing()),
  click: (i) => { choose(i); if (choosing) markRange(); },
  select: dragged,
});
let listed = "[]"; // the changes below the timeline
let said = /** @type {any} */ (null); // by the server, the last time
let [etag, choosing, shifted] = ["", false, false];
let began = /** @type {number|null} */ (null); // the batch at which a range was begun by the keyboard

// ---- data --------------------------------------------------------------------------------------

async function load() {
  let status = 0;
  try {
    const answer = await fetch(root.dataset.url ?? "", { headers: { "If-None-Match": etag }, cache: "no-store" });
    status = answer.status;
    if (answer.ok) take(await answer.json(), answer.headers.get("ETag") ?? "");
    else if (status >= 400 && !model.x.length) showText("The timeline cannot be read.");
  } catch (error) {
    if (status) throw error;
  }
  document.dispatchEvent(new CustomEvent("ebbtide:answer", { detail: { status } }));
}

/** Show what the server says. */
function take(found, tag) {
  const [isFirst, isNew] = [said === null, !model.x.length];
  const chosen = model.chosen === null ? hashed() : model.batches.id[model.chosen];
  const before = knownOf(model.chosen);
  [said, etag] = [found, tag];
  if (!isFirst) document.body.dispatchEvent(new CustomEvent("ebbtide:changed"));
  listMarks();
  if (!found.batches.id.length) return empty();
  const range = model.range?.map((i) => model.batches.id[i]);
  measure();
  model.chosen = placeOf(chosen);
  const [start, end] = (range ?? [null, null]).map(placeOf);
  model.range = start === null || end === null ? null : [start, end];
  isNew ? charts.build() : charts.refresh();
  root.setAttribute("aria-valuemin", String(model.batches.id[0]));
  root.setAttribute("aria-valuemax", String(model.batches.id[model.x.length - 1]));
  fillTable();
  if (model.chosen === null && before) chooseNone();
  read(standing());
  if (model.chosen === null) return;
  if (isNew || !before) choose(model.chosen);
  else if (knownOf(model.chosen) !== before) openBatch(urlOf(chosen), 0, false);
}

/** No batch is left, or none is there yet; the next one is shown as on a new page. */
function empty() {
  Object.assign(model, { batches: said.batches, x: [], whole: [0, 1], view: [0, 1], range: null });
  charts.clear();
  showText(NO_BATCH);
  chooseNone();
  root.setAttribute("aria-valuetext", NO_BATCH);
  for (const value of part("readout").querySelectorAll("dd")) value.textContent = say.NOTHING;
  part("marks").textContent = "";
  fillTable();
}

/** All that the server says of a batch, to compare. */
function knownOf(i) {
  return i === null ? "" : JSON.stringify(Object.values(model.batches).map((column) => column[i]));
}

/** Where everything lies on the x axis. The view stays; if it shows the last batch, it follows. */
function measure() {
  const [[from, to], [first, last], newest] = [model.view, model.whole, model.x[model.x.length - 1]];
  model.batches = said.batches;
  model.x = model.byNumber ? said.batches.id : ascending(said.batches.at);
  const now = model.x[model.x.length - 1];
  // a rewind long after the last batch must not press all batches into a corner
  const latest = now + Math.max(1000, (now - model.x[0]) / 10);
  model.marks = said.marks.map((mark) => ({
    kind: mark.kind,
    label: `${{ rewind: "Rewind to", undo: "Undo to" }[mark.kind] ?? "Fork at"} ${say.number(mark.batch)}`,
    x: model.byNumber || mark.at === null ? leftOf(mark.batch) : Math.min(mark.at, latest),
  }));
  model.retained = said.retained.map(({ keeper, from_batch, until }) => ({
    keeper,
    text: `batch ${say.number(from_batch)} and later${until === null ? "" : `, until ${say.minute(until)}`}`,
    x: leftOf(from_batch),
  }));
  const end = Math.max(now, ...model.marks.map((mark) => mark.x));
  const room = model.byNumber ? 0.6 : Math.max(1000, (end - model.x[0]) / Math.min(80, 2 * model.x.length));
  model.whole = [model.x[0] - room, end + room];
  if (from <= first && to >= last) model.view = model.whole;
  else if (to >= newest) model.view = [from + now - newest, to + now - newest];
}

/** Times that never go back, as uPlot wants them; a batch without one follows the one before. */
function ascending(times) {
  let last = (times.find((at) => at !== null) ?? 0) - 1;
  return times.map((at) => (last = Math.max(at ?? 0, last + 1)));
}

/** The x between a batch and the one before. */
function leftOf(id) {
  const [i, { x }] = [model.batches.id.findIndex((other) => other !== null && other >= id), model];
  if (model.byNumber) return id - 0.5;
  return i < 0 ? x[x.length - 1] : (x[i] + x[Math.max(0, i - 1)]) / 2;
}

// ---- words -------------------------------------------------------------------------------------

/** All that is known of a batch, in the order of the table's columns. */
function valuesOf(i) {
  const of = (name) => model.batches[name][i];
  const state = `${say.number(of("state_rows"))} rows, ${say.size(of("state_bytes"))}`;
  return {
    batch: say.number(of("id")),
    at: say.moment(of("at")),
    rows: say.number(of("rows")),
    broken: say.number(of("broken")),
    duration: of("committed") ? say.duration(of("duration")) : "not committed",
    lag: say.number(of("lag")),
    again: of("replayable") ? "yes" : "no",
    events: say.span(of("earliest"), of("latest")),
    watermark: say.moment(of("watermark")),
    state: of("state_rows") === null ? say.NOTHING : state,
  };
}

/** The values of a batch, above the panels. */
function read(i) {
  for (const [name, text] of Object.entries(valuesOf(i))) part(`value-${name}`).textContent = text;
  const marks = said.marks.filter((mark) => mark.batch === model.batches.id[i]).map((mark) => mark.text);
  part("marks").textContent = marks.join(" · ") || ABOUT;
}

/** The batch to read about while the pointer is elsewhere: the chosen one, else the last. */
const standing = () => model.chosen ?? model.x.length - 1;

/** Say it to those who see it and to those who do not. */
const tell = (text) => { part("range-text").textContent = text; };

function add(parent, tag, text, name = "") {
  return Object.assign(parent.appendChild(document.createElement(tag)), { textContent: text, className: name });
}

/** Say something in place of the panels. */
function showText(text) {
  root.replaceChildren();
  add(root, "p", text, "empty");
}

/** What was done to the checkpoint, the newest first. */
function listMarks() {
  const list = part("changes");
  const lines = said.marks.map(({ text, batch }) => ({ text, batch, known: said.batches.id.includes(batch) }));
  if (JSON.stringify(lines) === listed) return; // a link that has the focus keeps it
  listed = JSON.stringify(lines);
  list.closest("section").hidden = !lines.length;
  list.replaceChildren();
  for (const { text, batch, known } of lines.toReversed()) {
    const line = add(list, "li", `${text} `);
    if (known) add(line, "a", `Batch ${say.number(batch)}`).href = `#batch-${batch}`;
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

/** Choose a batch and open it; `wait` keeps a held key from opening every one on its way. */
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
  openBatch(urlOf(id), wait, focus);
}

/** The chosen batch is gone; if it comes back, it is chosen again. */
function chooseNone() {
  closeBatch();
  model.chosen = null;
  charts.place();
  root.setAttribute("aria-valuenow", root.getAttribute("aria-valuemin") ?? "0");
  root.setAttribute("aria-valuetext", "No batch is chosen");
}

/** Choose batches, and with them the range of event time that they read. */
function chooseRange(from, to) {
  model.range = [from, to];
  charts.place();
  const of = (name) => model.batches[name].slice(from, to + 1).filter((at) => at !== null);
  const which = `Batches ${say.number(model.batches.id[from])} to ${say.number(model.batches.id[to])}`;
  if (!of("earliest").length) return tell(`${which} have no event times in their history.`);
  // whole seconds; the end of a range is not part of it, and the last event must be
  const second = (ms) => Math.floor(ms / 1000) * 1000;
  const start = second(of("earliest").reduce((a, b) => Math.min(a, b)));
  const end = second(of("latest").reduce((a, b) => Math.max(a, b))) + 1000;
  const times = { start: say.iso(start), end: say.iso(end) };
  for (const [name, time] of Object.entries(times)) part(name).value = time;
  const link = document.querySelector("a[data-reprocess]");
  link?.setAttribute("href", `${root.dataset.reprocessUrl}?${new URLSearchParams(times)}`);
  tell(`${which} read events of ${say.span(start, end)}.`);
}

/** A drag has ended: it zooms, or chooses a range. */
function dragged(from, to) {
  const [first, last] = placesIn(from, to);
  if (!choosing && !shifted) show(from, to);
  else if (first !== null) chooseRange(first, last);
}

/** The first and the last place between two x. */
function placesIn(from, to) {
  const [first, after] = [model.x.findIndex((x) => x >= from), model.x.findIndex((x) => x > to)];
  const last = (after < 0 ? model.x.length : after) - 1;
  return first < 0 || last < first ? [null, null] : [first, last];
}

/** The first time, a range begins at the chosen batch; the second time, it ends there. */
function markRange() {
  const [here, start] = [standing(), placeOf(began)];
  if (start !== null) chooseRange(Math.min(start, here), Math.max(start, here));
  began = start === null ? model.batches.id[here] : null;
  if (began === null) return;
  const next = choosing ? "Click on its last batch." : "Go to its last batch, then type Shift+R again.";
  tell(`A range begins at batch ${say.number(began)}. ${next}`);
}

// ---- zoom --------------------------------------------------------------------------------------

function show(from, to) {
  const [[first, last], least] = [model.whole, model.byNumber ? 3 : 2000];
  const room = Math.max(0, least - (to - from)) / 2;
  model.view = [Math.max(first, from - room), Math.min(last, to + room)];
  charts.zoom();
}

/** Zoom by a factor; `still` stays where it is. */
function zoom(factor, still = model.chosen === null ? Infinity : model.x[model.chosen]) {
  const [min, max] = model.view;
  const at = Math.min(Math.max(still, min), max);
  show(at - (at - min) * factor, at + (max - at) * factor);
}

const showAll = () => show(...model.whole);

/** Move the view as far as it takes to see an x. */
function reveal(x) {
  const [min, max] = model.view;
  const room = (max - min) / 20;
  if (x < min) show(x - room, x - room + max - min);
  if (x > max) show(x + room - max + min, x + room);
}

/** By time or by number: the same batches stay in view. */
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
  /** Nothing can be done before there is a batch. */
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
