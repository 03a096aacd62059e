// The overview's chart over time. Its element stays when the page around it is updated.
import {draw} from "./chart.js";

let chart = null, look = "", shown = "";

function lateness() {
  const box = document.querySelector("#lateness"), source = document.querySelector("#lateness-points");
  if (!box || !source) { chart = null; return; }
  const rows = source.dataset.points.split(";").filter(Boolean).map(row => row.split(",").map(Number));
  const times = rows.map(row => row[0]), of = at => rows.map(row => row[1] ? row[at] : null);
  const now = [box.clientWidth, document.documentElement.dataset.theme, matchMedia("(prefers-color-scheme: dark)").matches, document.querySelector("#zone").value].join(" ");
  if (chart && look === now && box.firstElementChild) {
    if (shown !== source.dataset.points) chart.set(times, [of(3), of(2)]);
  } else {
    chart?.clear();
    box.replaceChildren();
    chart = draw(box, times, [{label: "99 %", colour: "far", values: of(3)}, {label: "half", colour: "near", values: of(2)}], "ms", 190);
    look = now;
  }
  shown = source.dataset.points;
}

lateness();
addEventListener("resize", lateness);
for (const name of ["htmx:afterSettle", "latermq:theme", "latermq:zone"]) document.body.addEventListener(name, lateness);
