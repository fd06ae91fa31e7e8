// @ts-check
/** Show the selected batch beside the timeline. */

/* global htmx */
const NO_CHOICE = "Select a batch in the timeline: click it, or use the arrow keys.";
const view = /** @type {HTMLElement} */ (document.getElementById("batch"));
let opening = 0;
let asking = new AbortController();

/** Open a batch after `wait` milliseconds unless another one is selected meanwhile.
 * @param {string} url @param {number} wait @param {boolean} focus */
export function openBatch(url, wait, focus) {
  stop();
  const { signal } = asking;
  opening = window.setTimeout(() => ask(url, signal, focus), wait);
}

/** Clear the view: no batch is selected. */
export function closeBatch() {
  stop();
  const text = Object.assign(document.createElement("p"), { textContent: NO_CHOICE, className: "card empty" });
  view.replaceChildren(text);
  view.removeAttribute("aria-busy");
}

function stop() {
  clearTimeout(opening);
  asking.abort();
  asking = new AbortController();
}

/** Not with `htmx.ajax`, which treats an aborted request as an error. */
async function ask(url, signal, focus) {
  let status = 0;
  view.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(url, { headers: { "HX-Request": "true" }, signal });
    const text = await answer.text();
    status = answer.status;
    if (status !== 401) swap(text, focus);
  } catch (error) {
    if (signal.aborted) return;
    if (status) throw error;
  }
  view.removeAttribute("aria-busy");
  document.dispatchEvent(new CustomEvent("ebbtide:answer", { detail: { status } }));
}

/** Replace the text; if the focus was inside, move it to the new heading. */
function swap(text, focus) {
  const inside = view.contains(document.activeElement);
  htmx.swap(view, text, { swapStyle: "innerHTML", swapDelay: 0, settleDelay: 0 });
  const heading = /** @type {HTMLElement|null} */ (view.querySelector("h1, h2, h3"));
  heading?.setAttribute("tabindex", "-1");
  if (focus || (inside && !view.contains(document.activeElement))) heading?.focus();
}
