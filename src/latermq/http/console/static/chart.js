// Charts over time with uPlot, in the colours of the page and in the chosen time zone.
import {timeText} from "./times.js";

// The value of a colour that depends on the appearance.
export function colour(name) {
  const probe = document.createElement("i");
  probe.className = `colour-${name}`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

// Distances between the marks of a time axis, in milliseconds: a second to a month.
const SECOND = 1_000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const DISTANCES = [
  ...[1, 2, 5, 10, 15, 30].map(count => count * SECOND), ...[1, 2, 5, 10, 15, 30].map(count => count * MINUTE),
  ...[1, 2, 3, 6, 12].map(count => count * HOUR), ...[1, 2, 7, 30].map(count => count * DAY),
];

// The part of a time that tells the marks of an axis apart.
function mark(times) {
  const span = times.at(-1) - times[0];
  return span < 10 * MINUTE ? at => timeText(at).slice(11, 19) : span > 36 * HOUR ? at => timeText(at).slice(5, 16) : at => timeText(at).slice(11, 16);
}

// Draw what `chart` returns, the arguments of `draw` after the box, and again when the look of the page changes.
export function drawAgain(box, chart) {
  let drawn = null;
  const again = () => { drawn?.clear(); box.replaceChildren(); drawn = draw(box, ...chart()); };
  again();
  addEventListener("resize", again);
  for (const name of ["latermq:theme", "latermq:zone"]) document.body.addEventListener(name, again);
}

// Lines join what is known. A value between two unknown ones is a point.
const isolated = (u, at) => u.data[at].flatMap((value, i, all) => value != null && all[i - 1] == null && all[i + 1] == null ? [i] : []);

// Draw series over time: {label, colour, values, fill}. Returns functions that give it new values, or remove it.
export function draw(box, times, series, unit = "", height = 200) {
  const soft = colour("soft"), line = colour("line"), markOf = times.length ? mark(times) : String;
  const axis = {stroke: soft, grid: {stroke: line, width: 1}, ticks: {show: false}, font: "12px system-ui, sans-serif"};
  const text = value => value == null ? "–" : `${value.toLocaleString("en", {maximumFractionDigits: 1})} ${unit}`.trim();
  const plot = new uPlot({
    width: box.clientWidth, height,
    cursor: {drag: {x: false, y: false}, points: {size: 6}},
    legend: {live: true, markers: {fill: (u, at) => u.series[at].stroke(u, at)}},
    scales: {x: {time: false}, y: {range: (u, low, high) => [0, Math.max(high * 1.1, 1)]}},
    axes: [
      {...axis, values: (u, splits) => splits.map(markOf), incrs: DISTANCES, space: 64},
      {...axis, size: 62, values: (u, splits) => splits.map(text)},
    ],
    series: [
      {label: "Time", value: (u, at) => at == null ? "–" : markOf(at)},
      ...series.map(one => ({label: one.label, stroke: colour(one.colour), width: 2, points: {show: true, size: 6, fill: colour(one.colour), filter: isolated}, value: (u, value) => text(value),
        ...(one.dash ? {dash: [5, 4]} : {})})),
    ],
  }, [times, ...series.map(one => one.values)], box);
  return {set: (newTimes, values) => plot.setData([newTimes, ...values]), clear: () => plot.destroy()};
}
