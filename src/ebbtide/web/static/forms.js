// @ts-check
/** On a form that asks for the sink: its button is off until the sink is settled. */

const form = /** @type {HTMLFormElement|null} */ (document.querySelector("form[data-settle-sink]"));

function settle() {
  if (!form) return;
  const given = new FormData(form);
  const isSettled = ["sink", "sink_table", "sink_files"].some((name) => String(given.get(name) ?? "").trim());
  /** @type {HTMLButtonElement} */ (form.querySelector(".actions button")).disabled = !isSettled;
  /** @type {HTMLElement} */ (document.getElementById("settle-hint")).hidden = isSettled;
}

form?.addEventListener("input", settle);
settle();
