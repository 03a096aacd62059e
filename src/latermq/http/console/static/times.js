// Times in the chosen zone: UTC, that of the browser, or a named one. The choice is remembered.
const KEY = "latermq.zone";
const own = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
let chosen = stored();
let format = formatter();
tell();

function stored() {
  try { return localStorage.getItem(KEY) || "browser"; } catch (blocked) { return "browser"; }
}

function formatter() {
  const options = {year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZone: zone()};
  try { return new Intl.DateTimeFormat("sv-SE", options); } catch (unknown) { chosen = "UTC"; return new Intl.DateTimeFormat("sv-SE", {...options, timeZone: "UTC"}); }
}

// Calendars are drawn by the server, which needs the zone with the first request of a page.
function tell() { document.cookie = `latermq_zone=${encodeURIComponent(zone())}; path=/; max-age=31536000; samesite=strict`; }

export function zone() { return chosen === "browser" ? own : chosen; }

export function timeText(ms) { return format.format(new Date(ms)); }

export function show(root = document) {
  for (const element of root.querySelectorAll("time[data-ms]")) {
    const moment = new Date(+element.dataset.ms);
    element.textContent = format.format(moment);
    element.title = `${moment.toISOString()} · ${zone()}`;
  }
  for (const field of root.querySelectorAll("input[data-zone]")) field.value = zone();
  for (const element of root.querySelectorAll("[data-zone-name]")) element.textContent = zone();
}

export function offer(select) {
  select.replaceChildren(new Option(`Local (${own.split("/").pop().replaceAll("_", " ")})`, "browser"), new Option("UTC", "UTC"));
  for (const name of Intl.supportedValuesOf?.("timeZone") ?? []) if (name !== "UTC") select.add(new Option(name.replaceAll("_", " "), name));
  select.value = chosen;
  if (!select.value) select.value = chosen = "browser";
  select.addEventListener("change", () => {
    chosen = select.value;
    try { localStorage.setItem(KEY, chosen); } catch (blocked) { /* it applies to this page only */ }
    format = formatter();
    tell();
    show();
    document.body.dispatchEvent(new CustomEvent("latermq:zone"));
  });
}
