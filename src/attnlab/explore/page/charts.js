// Line charts and heat maps as SVG, drawn anew at each change.

import { powerOfTen, shown, svg, ticks } from "./drawing.js";

const LEFT = 60;
const BOTTOM = 34;
const TOP = 8;
const RIGHT = 10;

/** Where a number lies between two others, on a linear or a logarithmic axis. */
function scaleOf(low, high, from, to, log) {
  const map = log ? Math.log10 : (value) => value;
  const [a, b] = [map(low), map(high)];
  return (value) => from + ((map(value) - a) / (b - a || 1)) * (to - from);
}

/**
 * Lines over steps.
 *
 * `series` is a list of {x, y, colour, dash, name}, with null where there is no number; `at` marks a step; `levels` are
 * horizontal lines {y, colour, dash, name}. With `logY` numbers at or below zero are left out.
 */
export function lineChart({ width, height, series, levels = [], at = null, label, logY = false, range = null, name, axis = shown, note = "" }) {
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name, class: "chart" });
  const usable = (value) => value !== null && Number.isFinite(value) && (!logY || value > 0);
  const values = [...series.flatMap((one) => one.y), ...levels.map((one) => one.y)].filter(usable);
  const last = Math.max(1, ...series.map((one) => one.x[one.x.length - 1] ?? 1));
  if (!values.length) return emptied(picture, width, height, note || "nothing to draw yet");
  let [low, high] = range ?? [Math.min(...values), Math.max(...values)];
  if (logY) {
    [low, high] = [10 ** Math.floor(Math.log10(low) + 1e-9), 10 ** Math.ceil(Math.log10(high) - 1e-9)];
    if (low === high) low /= 10;
  } else if (!range) {
    const room = 0.06 * (high - low || Math.abs(high) || 1);
    [low, high] = [low - room, high + room];
  }
  // Step 0 has no place on a logarithmic axis: it stands at one half.
  const step = (value) => Math.max(value, 0.5);
  const across = scaleOf(0.5, last, LEFT, width - RIGHT, true);
  const up = scaleOf(low, high, height - BOTTOM, TOP, logY);
  picture.append(...verticals(across, last, height, width), ...horizontals(up, low, high, width, height, logY, axis));
  for (const level of levels.filter((one) => usable(one.y))) {
    const y = up(level.y);
    picture.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, stroke: level.colour, "stroke-width": 1, "stroke-dasharray": level.dash ?? "2 3" }));
  }
  for (const one of series) {
    const pieces = [];
    let broken = true;
    one.y.forEach((value, i) => {
      if (!usable(value)) broken = true;
      else {
        pieces.push(`${broken ? "M" : "L"}${across(step(one.x[i])).toFixed(1)},${up(value).toFixed(1)}`);
        broken = false;
      }
    });
    picture.append(svg("path", { d: pieces.join(""), fill: "none", stroke: one.colour, "stroke-width": one.width ?? 1.8, "stroke-dasharray": one.dash, opacity: one.opacity, "data-series": one.name }));
  }
  if (at !== null) {
    const x = across(step(at));
    picture.append(svg("line", { x1: x, x2: x, y1: TOP, y2: height - BOTTOM, stroke: "var(--ink)", "stroke-width": 1, opacity: 0.6 }));
  }
  picture.append(words((LEFT + width - RIGHT) / 2, height - 4, "step", "middle"));
  picture.append(svg("text", { transform: `translate(11 ${(TOP + height - BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle", class: "label", fill: "var(--ink)", "font-size": 11 }, label));
  return picture;
}

function words(x, y, text, anchor = "start", colour = "var(--ink)") {
  return svg("text", { x, y, "text-anchor": anchor, fill: colour, "font-size": 11 }, text);
}

function emptied(picture, width, height, text) {
  picture.append(words(width / 2, height / 2, text, "middle", "var(--soft)"));
  return picture;
}

function verticals(across, last, height) {
  const found = [];
  for (let exponent = 0; 10 ** exponent <= last * 1.0001; exponent += 1) {
    const x = across(10 ** exponent);
    found.push(svg("line", { x1: x, x2: x, y1: TOP, y2: height - BOTTOM, stroke: "var(--grid)" }));
    found.push(words(x, height - BOTTOM + 14, powerOfTen(exponent), "middle", "var(--soft)"));
  }
  return found;
}

function horizontals(up, low, high, width, height, log, axis) {
  const found = [];
  const lines = log ? decades(low, high, height) : ticks(low, high, 4);
  for (const at of lines) {
    const y = up(at);
    found.push(svg("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, stroke: "var(--grid)" }));
    found.push(words(LEFT - 5, y + 4, log ? powerOfTen(Math.round(Math.log10(at))) : axis(at), "end", "var(--soft)"));
  }
  return found;
}

function decades(low, high) {
  const [first, last] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
  const stride = Math.max(1, Math.ceil((last - first) / 5));
  const found = [];
  for (let exponent = first; exponent <= last; exponent += stride) found.push(10 ** exponent);
  return found;
}

/**
 * Attention as shades: a row for each token of each query, a column for each record.
 *
 * `rows` is a list of {name, values}; `gaps` are the numbers of rows before which a line separates queries.
 */
export function heatMap({ width, rows, steps, at = null, gaps = [], colour, name }) {
  const row = Math.max(3, Math.min(14, 260 / rows.length));
  const height = TOP + BOTTOM + row * rows.length;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name, class: "chart" });
  const column = (width - LEFT - RIGHT) / steps.length;
  picture.append(svg("rect", { x: LEFT, y: TOP, width: width - LEFT - RIGHT, height: row * rows.length, fill: "var(--sunk)" }));
  const labelled = Math.max(1, Math.ceil(11 / row));
  rows.forEach((one, i) => {
    one.values.forEach((value, k) => {
      if (value < 0.004) return;
      picture.append(svg("rect", { x: (LEFT + k * column).toFixed(2), y: (TOP + i * row).toFixed(2), width: (column + 0.3).toFixed(2), height: row.toFixed(2), fill: colour, opacity: value.toFixed(3) }));
    });
    if (i % labelled === 0) picture.append(words(LEFT - 4, TOP + i * row + Math.max(row / 2 + 4, 9), one.name, "end", "var(--soft)"));
  });
  for (const gap of gaps) picture.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: TOP + gap * row, y2: TOP + gap * row, stroke: "var(--ink)", "stroke-width": 0.8 }));
  if (at !== null) {
    const x = LEFT + (at + 0.5) * column;
    picture.append(svg("line", { x1: x, x2: x, y1: TOP, y2: height - BOTTOM, stroke: "var(--ink)", "stroke-width": 1, opacity: 0.7 }));
  }
  steps.forEach((step, k) => {
    if (!/^10*$/.test(String(step))) return;
    picture.append(words(LEFT + (k + 0.5) * column, height - BOTTOM + 14, powerOfTen(String(step).length - 1), "middle", "var(--soft)"));
  });
  picture.append(words((LEFT + width - RIGHT) / 2, height - 4, "step", "middle"));
  return picture;
}
