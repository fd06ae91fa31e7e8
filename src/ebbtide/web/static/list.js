// @ts-check
/** Search, filter and sort the list of checkpoints; the address remembers how. */

const find = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
const table = find("checkpoints");
const chips = [...document.querySelectorAll(".chip")].map((chip) => /** @type {HTMLButtonElement} */ (chip));
const sorters = [...document.querySelectorAll(".sort")].map((one) => /** @type {HTMLButtonElement} */ (one));
const asked = new URLSearchParams(location.search);
const shown = { q: asked.get("q") ?? "", status: asked.get("status") ?? "", sort: asked.get("sort") ?? "" };

/** Apply what is asked for to all rows, also to those that have just come. */
function arrange() {
  const rows = [...table.tBodies[0].rows];
  const words = shown.q.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const fits = words.every((word) => text.includes(word)) && (!shown.status || row.dataset.status === shown.status);
    row.hidden = !fits && !row.classList.contains("forgotten");
  }
  sort(rows);
  const visible = rows.filter((row) => !row.hidden).length;
  for (const chip of chips) {
    const { status } = chip.dataset;
    const count = rows.filter((row) => row.dataset.status === status).length;
    chip.hidden = !count && status !== shown.status;
    chip.textContent = `${count} ${status}`;
    chip.setAttribute("aria-pressed", String(status === shown.status));
  }
  const total = rows.length === 1 ? "1 checkpoint" : `${rows.length.toLocaleString("en-US")} checkpoints`;
  const text = visible === rows.length ? total : `${visible} of ${total}`;
  if (find("list-count").textContent !== text) find("list-count").textContent = text;
  find("none-found").hidden = visible > 0;
}

/** Sort by a column; a row without a value comes last. @param {HTMLTableRowElement[]} rows */
function sort(rows) {
  const [column, down] = [Number(shown.sort.replace("-", "")), shown.sort.startsWith("-")];
  for (const one of sorters) {
    const order = shown.sort && Number(one.dataset.column) === column ? (down ? "descending" : "ascending") : "none";
    one.closest("th")?.setAttribute("aria-sort", order);
  }
  if (!shown.sort) return;
  const valueOf = (/** @type {HTMLTableRowElement} */ row) => row.cells[column]?.dataset.value ?? "";
  const sorted = rows.toSorted((a, b) => {
    const [x, y] = [valueOf(a), valueOf(b)];
    if (!x || !y) return Number(!x) - Number(!y);
    return x.localeCompare(y, "en", { numeric: true }) * (down ? -1 : 1);
  });
  if (sorted.every((row, i) => row === rows[i])) return;
  const focused = /** @type {HTMLElement|null} */ (document.activeElement);
  table.tBodies[0].append(...sorted);
  if (focused && table.contains(focused)) focused.focus(); // a moved element loses it
}

/** Show rows in another way, and note it in the address. @param {Partial<typeof shown>} changes */
function change(changes) {
  Object.assign(shown, changes);
  const given = new URLSearchParams(Object.entries(shown).filter(([, value]) => value));
  history.replaceState(history.state, "", `${location.pathname}${String(given) && `?${given}`}`);
  arrange();
}

function listen() {
  find("list-tools").hidden = false;
  find("search").value = shown.q;
  find("search").addEventListener("input", () => change({ q: find("search").value }));
  find("show-all").addEventListener("click", () => { find("search").value = ""; change({ q: "", status: "" }); });
  for (const chip of chips) {
    const status = chip.dataset.status ?? "";
    chip.addEventListener("click", () => change({ status: shown.status === status ? "" : status }));
  }
  for (const one of sorters) {
    const column = one.dataset.column ?? "";
    one.addEventListener("click", () => change({ sort: shown.sort === column ? `-${column}` : column }));
  }
  document.addEventListener("htmx:load", arrange); // a row was read, forgotten or put back
  arrange();
}

if (table) listen();
