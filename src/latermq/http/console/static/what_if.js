// The chart of a prediction: what waits in each queue over time.
import {drawAgain} from "./chart.js";

const box = document.querySelector("#what-if");

if (box) {
  const rows = box.dataset.points.split(";").filter(Boolean).map(row => row.split(",").map(Number));
  const times = rows.map(row => row[0]);
  const series = [{label: "to be delivered", colour: "near", values: rows.map(row => row[1])}];
  if (box.dataset.consumed) series.push({label: "to be processed", colour: "far", values: rows.map(row => row[2])});
  drawAgain(box, () => [times, series, "", 220]);
}
