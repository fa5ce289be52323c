// What is told beside the plane: numbers with their certificates, attention, loss, margin, alignment, basins.

import { heatMap, lineChart } from "./charts.js";
import { COLOURS, DASHES, NAMES, NORM_OF, html, marker, shown, svg, ticks, tokenName } from "./drawing.js";
import { queryName, rowsOf } from "./marks.js";
import { shownRuns } from "./plane.js";

const TOKEN_DASHES = [null, "6 3", "2 3", "8 3 2 3", "1 4", "10 4"];
const BASIN_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#999999"];

/** A panel with a heading, whose content is drawn anew. */
export function panel(id, title, ...tools) {
  const body = html("div", { class: "body" });
  const element = html("section", { class: "panel", "data-panel": id, "aria-label": title }, html("h2", {}, title, ...tools), body);
  return { element, body };
}

/** The two max-margin problems and the two runs, number by number. */
export function numbersTable({ scene, view, solved, trained, directions }) {
  const rows = [];
  const row = (name, cells) => rows.push(html("tr", {}, html("th", { scope: "row" }, name), ...cells));
  const norms = ["frobenius", "nuclear"];
  const of = (field, digits) => norms.map((norm) => numberCell(`${norm}-${field}`, directions[norm]?.[field], digits));
  row("status", norms.map((norm) => statusCell(norm, directions[norm])));
  row("margin 1/|W|", of("margin"));
  row("duality gap", of("gap", 2));
  row("rank of W", of("rank"));
  row("tight constraints", norms.map((norm) => textCell(`${norm}-support`, directions[norm]?.support ? String(directions[norm].support.length) : "none")));
  const runs = ["W", "KQ"].map((name) => [name, trained?.runs[name]]);
  rows.push(html("tr", { class: "between" }, html("th", { scope: "row" }, `descent, step ${runs[0][1]?.steps?.at(-1) ?? runs[1][1]?.steps?.at(-1) ?? "…"}`), ...runs.map(([name]) => html("th", { scope: "col", class: `of-${name}` }, NAMES[name]))));
  row("selects", runs.map(([name, run]) => textCell(`${name}-selected`, run ? run.error ? "no run" : selectionName(scene, run.selected) : "…", run?.error)));
  row("settled", runs.map(([name, run]) => textCell(`${name}-settled`, run && !run.error ? { true: "yes", false: "not yet", null: "no theory" }[String(run.settled)] : "…", run?.message)));
  row("1 − cos to own norm", runs.map(([name, run]) => numberCell(`${name}-apart`, run?.apart?.[NORM_OF[name]]?.at(-1), 3)));
  row("log10 excess loss", runs.map(([name, run]) => numberCell(`${name}-excess`, run?.log10Excess?.at(-1))));
  row("norm of W", runs.map(([name, run]) => numberCell(`${name}-norm`, run?.norm?.at(-1))));
  const head = html("tr", {}, html("th", {}, whose(view, solved)), ...norms.map((norm) => html("th", { scope: "col", class: norm === "frobenius" ? "of-W" : "of-KQ" }, NAMES[norm])));
  return html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows));
}

/** The tokens that each query selects, as A1 B0; of several tokens of one query as A0+1. */
function selectionName(scene, selected) {
  const rows = rowsOf(scene);
  const few = selected.slice(0, 12).map((tokens, r) => (rows[r] ? `${tokenName(rows[r].sequence, tokens.join("+"))}` : ""));
  return few.join(" ") + (selected.length > 12 ? " …" : "");
}

function whose(view) {
  return { descent: "max-margin, selected by descent", best: "max-margin, best tokens", chosen: "max-margin, chosen tokens" }[view.of];
}

function numberCell(id, value, digits = 4) {
  const known = value !== null && value !== undefined;
  return html("td", { "data-number": id, "data-value": known ? value : "" }, known ? shown(value, digits) : "none");
}

function textCell(id, text, title) {
  return html("td", { "data-number": id, "data-value": text, title }, text);
}

function statusCell(norm, solution) {
  const text = solution ? solution.status.replace("_", " ") : "…";
  const kind = ["optimal", "unconstrained"].includes(solution?.status) ? "good" : "bad";
  return html("td", { "data-number": `${norm}-status`, "data-value": text, title: solution?.message }, html("span", { class: solution ? kind : "" }, text));
}

/** Which tokens tie, and the proof where no W separates. */
export function remarks({ scene, solved, trained, directions, error }) {
  const found = [];
  const rows = rowsOf(scene);
  if (error) found.push(html("p", { class: "remark bad", role: "alert", "data-remark": "error" }, error));
  solved?.tied.forEach((tokens, r) => {
    if (tokens.length && rows[r]) found.push(html("p", { class: "remark", "data-remark": "tie" }, `A tie: ${tokens.map((t) => tokenName(rows[r].sequence, t)).join(" and ")} have the best score for ${queryName(rows[r])}; the first counts as best.`));
  });
  const solution = directions.frobenius;
  if (solution?.status === "infeasible") {
    const terms = solution.farkas.map(([r, t, weight]) => `${shown(weight, 3)} (${tokenName(rows[r]?.sequence, solution.selected.flat()[r])} − ${tokenName(rows[r]?.sequence, t)}) ${rows[r] ? queryName(rows[r]) : ""}ᵀ`);
    found.push(html("p", { class: "remark bad", "data-remark": "farkas" }, `No W separates these tokens. Proof (Farkas): ${terms.join(" + ")} = 0; residual ${shown(solution.farkas_residual, 2)}.`));
  }
  for (const [name, run] of Object.entries(trained?.runs ?? {})) {
    if (run.error) found.push(html("p", { class: "remark bad", "data-remark": `run-${name}` }, `${NAMES[name]}: ${run.error}`));
    else if (!["finished", "aligned"].includes(run.status)) found.push(html("p", { class: "remark", "data-remark": `run-${name}` }, `${NAMES[name]}: ${run.message}`));
  }
  return found;
}

/** Attention of one query over time, a line for each token; or of all queries as shades. */
export function attentionPanels({ scene, view, trained, index }, width) {
  const runs = shownRuns(trained, view);
  const rows = rowsOf(scene);
  return runs.map(([name, run]) => {
    const at = index ?? run.steps.length - 1;
    if (view.attention === "heat") {
      const lines = rows.flatMap((row, r) => scene.x[row.sequence].map((_, t) => ({ name: `${row.query === null ? "" : `${row.query}: `}${tokenName(row.sequence, t)}`, values: run.attention.map((one) => one[r]?.[t] ?? 0) })));
      const gaps = [];
      rows.reduce((sum, row) => (gaps.push(sum), sum + scene.x[row.sequence].length), 0);
      return captioned(name, heatMap({ width, rows: lines, steps: run.steps, at, gaps: gaps.slice(1), colour: COLOURS[name], name: `attention of ${NAMES[name]}` }));
    }
    const r = Math.min(view.row, rows.length - 1);
    const series = scene.x[rows[r].sequence].map((_, t) => ({ x: run.steps, y: run.attention.map((one) => one[r]?.[t] ?? null), colour: COLOURS[name], dash: TOKEN_DASHES[t % TOKEN_DASHES.length], name: tokenName(rows[r].sequence, t) }));
    const picture = lineChart({ width, height: 150, series, at: run.steps[at], label: "attention", range: [0, 1], name: `attention of ${NAMES[name]}` });
    return captioned(name, picture, html("div", { class: "keys" }, ...series.map((one) => key(one))));
  });
}

function captioned(name, ...content) {
  return html("figure", {}, html("figcaption", { class: `of-${name}` }, NAMES[name]), ...content);
}

function key({ colour, dash, name }) {
  return html("span", { class: "key" }, svg("svg", { width: 22, height: 8 }, svg("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: colour, "stroke-width": 2, "stroke-dasharray": dash })), name);
}

/** Loss above its infimum: its exponent, on a logarithmic axis where it goes far. */
export function lossChart({ view, trained, index }, width) {
  const runs = shownRuns(trained, view);
  const far = runs.some(([, run]) => run.log10Excess.some((value) => value !== null && value < -40));
  const known = runs.some(([, run]) => run.log10Excess.some((value) => value !== null));
  const series = runs.map(([name, run]) => ({ x: run.steps, y: run.log10Excess.map((value) => (value === null ? null : far ? -value : value)), colour: COLOURS[name], dash: DASHES[name], name }));
  return lineChart({
    width,
    height: 165,
    series: known ? series : [],
    at: stepAt(runs, index),
    label: far ? "−log10 of excess" : "log10 of excess",
    logY: far,
    name: "loss above its infimum",
    note: "below every single token: no infimum is known",
  });
}

/** The least lead of a selected token, over the norm of W; the most there can be as a level. */
export function marginChart({ view, trained, index }, width) {
  const runs = shownRuns(trained, view);
  const series = runs.map(([name, run]) => ({ x: run.steps, y: run.margin, colour: COLOURS[name], dash: DASHES[name], name }));
  const levels = runs.map(([name, run]) => ({ y: trained.solutions[run.key]?.[NORM_OF[name]]?.margin ?? null, colour: COLOURS[name] }));
  return lineChart({ width, height: 165, series, levels, at: stepAt(runs, index), label: "margin / norm", name: "margin over norm" });
}

/** 1 - cos to the max-margin direction of what the run selects, in both norms. */
export function apartChart({ view, trained, index }, width) {
  const runs = shownRuns(trained, view);
  const series = runs.flatMap(([name, run]) =>
    Object.entries(run.apart).map(([norm, y]) => {
      const own = NORM_OF[name] === norm;
      return { x: run.steps, y, colour: COLOURS[name], dash: own ? DASHES[name] : "1 3", opacity: own ? 1 : 0.75, name: `${name}-${norm}` };
    }),
  );
  return lineChart({ width, height: 165, series, at: stepAt(runs, index), label: "1 − cos", logY: true, name: "one minus cosine to the max-margin directions" });
}

function stepAt(runs, index) {
  const run = runs[0]?.[1];
  return run ? run.steps[Math.min(index ?? Infinity, run.steps.length - 1)] : null;
}

function basinName(scene, name) {
  return selectionName(scene, name.split(" ").map((token) => [token]));
}

/** Which start ends where: a cell for each start, coloured and numbered by the selection it ends in. */
export function basinMap({ view, basins, scene }, width, onPick) {
  if (!basins) return [html("p", { class: "soft" }, "…")];
  const size = Math.min(width, 300);
  const [low, high] = [34, size - 14];
  const place = ([a, b]) => [low + ((a / basins.radius + 1) / 2) * (high - low), high - ((b / basins.radius + 1) / 2) * (high - low)];
  const picture = svg("svg", { width: size, height: size + 22, viewBox: `0 0 ${size} ${size + 22}`, class: "chart basins", role: "img", "aria-label": "which start ends where" });
  const names = basins.limits.map((limit) => limit.name);
  const cell = basins.shape === "grid" ? (high - low) / Math.sqrt(basins.places.length) : 9;
  basins.places.forEach((at, i) => {
    const [x, y] = place(at);
    const limit = basins.limit[i];
    const shape = svg("rect", { x: (x - cell / 2).toFixed(1), y: (y - cell / 2).toFixed(1), width: (cell + 0.4).toFixed(1), height: (cell + 0.4).toFixed(1), fill: BASIN_COLOURS[limit % BASIN_COLOURS.length], opacity: basins.settled[i] ? 0.85 : 0.3, "data-basin": i, "data-limit": names[limit], tabindex: -1 });
    shape.addEventListener("click", () => onPick(at));
    picture.append(shape);
    if (limit > 0 && cell >= 9) picture.append(svg("path", { transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, d: marker(limit - 1, 1.8), fill: "var(--paper)", "pointer-events": "none" }));
  });
  for (const at of ticks(-basins.radius, basins.radius, 4)) {
    const [x, y] = place([at, at]);
    picture.append(svg("text", { x, y: high + 16, "text-anchor": "middle", "font-size": 10.5, fill: "var(--soft)" }, shown(at, 3)), svg("text", { x: low - 5, y: y + 4, "text-anchor": "end", "font-size": 10.5, fill: "var(--soft)" }, shown(at, 3)));
  }
  const name = queryName(rowsOf(scene)[basins.query] ?? { sequence: 0, query: null });
  picture.append(svg("text", { x: (low + high) / 2, y: size + 18, "text-anchor": "middle", "font-size": 11, fill: "var(--ink)" }, `start of W ${name}, in the plane`));
  const legend = basins.limits.map((limit, i) =>
    html(
      "li",
      {},
      svg("svg", { width: 14, height: 14 }, svg("rect", { width: 14, height: 14, fill: BASIN_COLOURS[i % BASIN_COLOURS.length] }), i > 0 ? svg("path", { transform: "translate(7 7)", d: marker(i - 1, 2.4), fill: "var(--paper)" }) : null),
      ` ${basinName(scene, limit.name)}: ${(100 * limit.share).toFixed(0)} % of starts${limit.best ? ", the best tokens" : limit["locally optimal"] ? ", locally optimal" : ", not locally optimal"}${limit["not settled"] ? `, ${limit["not settled"]} not settled (faint)` : ""}`,
    ),
  );
  return [picture, html("ul", { class: "legend" }, ...legend), html("p", { class: "soft" }, basins.verdict)];
}
