// The overview's charts over time. Their elements stay when the page around them is updated.
import {draw} from "./chart.js";

const drawn = {};   // by the id of the element: the chart, its look, and the points that it shows

function look(box) {
  return [box.clientWidth, document.documentElement.dataset.theme, matchMedia("(prefers-color-scheme: dark)").matches, document.querySelector("#zone").value].join(" ");
}

// Draw the points of the element next to the box. `series` have the values of a row.
function show(id, unit, height, series) {
  const box = document.getElementById(id), source = document.getElementById(`${id}-points`);
  if (!box || !source) { delete drawn[id]; return; }
  const known = drawn[id], now = look(box), points = source.dataset.points;
  const rows = points.split(";").filter(Boolean).map(row => row.split(",").map(Number));
  const times = rows.map(row => row[0]), values = series.map(one => rows.map(one.of));
  if (known && known.look === now && box.firstElementChild) {
    if (known.points !== points) known.chart.set(times, values);
    known.points = points;
  } else {
    known?.chart.clear();
    box.replaceChildren();
    drawn[id] = {chart: draw(box, times, series.map((one, at) => ({...one, values: values[at]})), unit, height), look: now, points};
  }
}

function all() {
  show("lateness", "ms", 190, [
    {label: "99 %", colour: "far", of: row => row[1] ? row[3] : null},
    {label: "half", colour: "near", of: row => row[1] ? row[2] : null},
  ]);
  show("throughput", "", 190, [
    {label: "messages in", colour: "near", of: row => row[1]},
    {label: "messages out", colour: "good", of: row => row[2]},
    {label: "timers scheduled", colour: "far", of: row => row[3]},
    {label: "timers delivered", colour: "warn", dash: true, of: row => row[4]},
  ]);
}

all();
addEventListener("resize", all);
for (const name of ["htmx:afterSettle", "latermq:theme", "latermq:zone"]) document.body.addEventListener(name, all);
