// @ts-check
/** On every page: send the CSRF token, show answers, keep the focus, report a lost server. */

const STOPPED = "Ebbtide has stopped. Type: ebbtide ui";
const RESTARTED = "Ebbtide was restarted. Open the link that it printed.";
const lost = /** @type {HTMLElement} */ (document.getElementById("lost"));
const proof = /** @type {HTMLMetaElement} */ (document.querySelector('meta[name="csrf"]')).content;

/** Show a banner if the server does not answer or no longer knows this session. @param {number} status */
function answered(status) {
  const text = status === 0 ? STOPPED : status === 401 ? RESTARTED : "";
  if (lost.textContent !== text) lost.textContent = text;
  lost.hidden = !text;
}

/** Focus the heading of a part that the user asked for. @param {Element} target */
function focusHeading(target) {
  const found = /** @type {HTMLElement|null} */ (target.querySelector("[role=alert], h1, h2, h3"));
  found?.setAttribute("tabindex", "-1");
  found?.focus();
}

/** @param {HTMLElement} button */
async function copy(button) {
  await navigator.clipboard.writeText(button.dataset.copy ?? "");
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

/** @param {string} name @param {(event: any) => void} act */
const on = (name, act) => document.addEventListener(name, act);

on("htmx:configRequest", ({ detail }) => { detail.headers["X-CSRF-Token"] = proof; });
on("htmx:beforeRequest", (event) => {
  const { elt, target } = event.detail;
  const polls = elt.getAttribute("hx-trigger")?.includes("every");
  // the tab is hidden: the next poll is early enough
  if (polls && document.hidden) event.preventDefault();
  else if (!polls) target.setAttribute("aria-busy", "true");
});
on("htmx:afterRequest", ({ detail }) => {
  detail.target.removeAttribute("aria-busy");
  if (detail.xhr.status) answered(detail.xhr.status);
});
on("htmx:sendError", () => answered(0));
on("htmx:beforeSwap", ({ detail }) => {
  // refusals are shown in place of the answer, except this one, which concerns the whole page
  if (detail.xhr.status === 401) detail.shouldSwap = false;
});
on("htmx:afterSettle", ({ detail }) => {
  const by = detail.requestConfig?.triggeringEvent?.type;
  if (by === "click" || by === "submit") focusHeading(detail.target);
});
on("ebbtide:answer", ({ detail }) => answered(detail.status));
on("click", (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (button) copy(button);
});
