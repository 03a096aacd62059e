// What all pages share: appearance, time zone, menu, the state of the connection, and errors of partial updates.
import {listen} from "./live.js";
import * as times from "./times.js";

const POLL_MS = 5_000;
const $ = selector => document.querySelector(selector);
const STATES = {connecting: "Connecting", live: "Live", lost: "Connection lost", trouble: "No answer", "signed-out": "Signed out"};

// Appearance

const theme = $("#theme");
theme.value = document.documentElement.dataset.theme || "system";
theme.addEventListener("change", () => {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  try { localStorage.setItem("latermq.theme", theme.value); } catch (blocked) { /* it applies to this page only */ }
  document.body.dispatchEvent(new CustomEvent("latermq:theme"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.body.dispatchEvent(new CustomEvent("latermq:theme")));

// Times

times.offer($("#zone"));
times.show();
// A first visit, or an address with another zone: parts that the server draws in a zone are drawn again.
addEventListener("load", () => {
  const drawn = $("[data-zone-of]");
  if (drawn && drawn.dataset.zoneOf !== times.zone()) document.body.dispatchEvent(new CustomEvent("latermq:zone"));
});
document.body.addEventListener("htmx:afterSwap", event => times.show(event.detail.elt.parentNode || document));

// The menu of small screens

const menu = $("#menu");
menu.addEventListener("click", () => menu.setAttribute("aria-expanded", String(menu.getAttribute("aria-expanded") !== "true")));
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && menu.getAttribute("aria-expanded") === "true") { menu.setAttribute("aria-expanded", "false"); menu.focus(); }
});

// The event stream

let heardAt = Date.now(), newest = null;

function say(title, detail = "", hint = "", link = null) {
  const box = $("#trouble"), text = [title, detail, hint].join("\n");
  if (box.dataset.said === text) return;   // an alert that does not change is not read aloud again
  box.dataset.said = text;
  box.replaceChildren();
  box.hidden = !title;
  if (!title) return;
  const head = document.createElement("p");
  head.className = "headline";
  head.textContent = title;
  const body = document.createElement("p");
  body.textContent = [detail, hint].filter(Boolean).join(" ");
  if (link) body.append(" ", link);
  box.append(head, body);
}

function turn({state, trouble}) {
  const mark = $("#live");
  if (mark.dataset.state !== state) { mark.dataset.state = state; mark.textContent = STATES[state]; }
  document.body.classList.toggle("stale", state !== "live" && state !== "connecting");
  const since = `The figures are from ${times.timeText(heardAt)}.`;
  if (state === "live") say("");
  else if (state === "lost") say("The connection to the console is lost.", since, "This page connects again by itself.");
  else if (state === "trouble") say("The brokers do not answer.", `${trouble.detail}.`, `${trouble.hint ? `${trouble.hint}. ` : ""}${since}`);
  else if (state === "signed-out") {
    const link = document.createElement("a");
    link.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
    link.textContent = "Sign in";
    say("The session has ended.", since, "", link);
  }
}

function announce() {
  if (newest && !document.hidden) document.body.dispatchEvent(new CustomEvent("latermq:state", {detail: newest}));
}

function hear(message) {
  if (message.state) turn(message);
  if (message.data) { newest = message.data; heardAt = Date.now(); announce(); }
}

if (document.body.dataset.live === "on") {
  listen(document.body.dataset.liveWorker, hear);
  document.addEventListener("visibilitychange", announce);
} else if (document.body.dataset.live === "poll") {   // for those who may not see the state of all brokers
  setInterval(() => document.hidden || document.body.dispatchEvent(new CustomEvent("latermq:state")), POLL_MS);
}

// A part that somebody reads with the keyboard, or has selected text in, is not replaced under their hands

document.body.addEventListener("htmx:beforeRequest", event => {
  const {elt} = event.detail;
  if (!elt.hasAttribute("data-refresh")) return;
  const focused = document.activeElement, selection = getSelection();
  const isUsed = focused !== elt && elt.contains(focused) && focused.matches(":focus-visible");
  if (isUsed || (!selection.isCollapsed && elt.contains(selection.anchorNode))) event.preventDefault();
});

// Addresses without fields that are empty

document.body.addEventListener("htmx:configRequest", event => {
  const {verb, parameters} = event.detail;
  if (verb === "get") for (const [name, value] of [...Object.entries(parameters)]) if (value === "") delete parameters[name];
});

// Errors of partial updates: what is shown stays, and the reason is said above it

function complain(title, hint) {
  const note = document.createElement("div");
  note.className = "note bad";
  note.textContent = [title, hint].filter(Boolean).join(" ");
  $("#notice").replaceChildren(note);
}

document.body.addEventListener("htmx:responseError", event => {
  const {xhr, elt} = event.detail;
  if (xhr.status === 401) return turn({state: "signed-out"});
  if (elt.hasAttribute("data-refresh")) return;   // the event stream reports the same
  if ((xhr.getResponseHeader("Content-Type") || "").startsWith("application/problem+json")) {
    const problem = JSON.parse(xhr.responseText);
    complain(`${problem.detail || problem.title}.`, problem.hint);
  } else {
    const page = new DOMParser().parseFromString(xhr.responseText, "text/html");
    complain(page.querySelector(".problem")?.innerText || `The console answered ${xhr.status}.`, "");
  }
});
document.body.addEventListener("htmx:sendError", event => {
  if (!event.detail.elt.hasAttribute("data-refresh")) complain("The console does not answer.", "Try again when the connection is back.");
});
document.body.addEventListener("htmx:afterOnLoad", event => {
  if (!event.detail.elt.hasAttribute("data-refresh") && event.detail.xhr.status < 400) $("#notice").replaceChildren();
});

// Buttons that copy the text of another element

document.addEventListener("click", async event => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const text = document.getElementById(button.dataset.copy).textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch (refused) { button.textContent = "Select the text to copy it"; }
  setTimeout(() => { button.textContent = "Copy"; }, 2_000);
});
