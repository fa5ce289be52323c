// What the plane shows behind the handles: axes, rings, directions, paths, attention, support, proofs.

import { COLOURS, DASHES, NORM_OF, colourOf, marker, sequenceName, shown, svg, ticks } from "./drawing.js";
import { seenInPlane } from "./geometry.js";
import { overlap } from "./labels.js";

const MANY_QUERIES = 3; // beyond, all but one are faint

/** The max-margin directions that are looked at, by norm, and the tokens that they select. */
export function directionsOf({ solved, trained }, { of }) {
  if (of === "descent" && trained) {
    const found = { selected: trained.runs.W?.selected ?? trained.runs.KQ?.selected };
    for (const [name, run] of Object.entries(trained.runs)) if (!run.error) found[NORM_OF[name]] = trained.solutions[run.key]?.[NORM_OF[name]];
    return found;
  }
  const key = of === "chosen" ? (solved?.chosenKey ?? solved?.bestKey) : solved?.bestKey;
  return { ...solved?.solutions[key], selected: key?.split(" ").map((one) => one.split("+").map(Number)) };
}

/** Sequence of every query, and its number in the sequence. */
export function rowsOf(scene) {
  return scene.z.flatMap((one, sequence) => (Array.isArray(one[0]) ? one.map((z, query) => ({ sequence, query, z })) : [{ sequence, query: null, z: one }]));
}

/** Name of a query for readers. */
export function queryName(row) {
  const name = `z${sequenceName(row.sequence)}`;
  return row.query === null ? name : `${name}.${row.query}`;
}

/** Where the head is drawn. */
export function headTip(scene, scale) {
  // The head is shown as long as it is, but never beyond the edge.
  const [a, b] = seenInPlane(scene.v, scene.plane);
  const size = Math.max(Math.abs(a), Math.abs(b));
  const most = 0.93 * scale.half;
  return size > most ? [(a * most) / size, (b * most) / size] : [a, b];
}

/** Text that stays readable above lines. */
export function tag(x, y, text, anchor = "start") {
  return svg("text", { x, y, "text-anchor": anchor, "font-size": 11.5, fill: "var(--ink)", stroke: "var(--paper)", "stroke-width": 3.2, "paint-order": "stroke", "stroke-linejoin": "round", "pointer-events": "none" }, text);
}

function line([x1, y1], [x2, y2], attributes) {
  return svg("line", { x1: x1.toFixed(1), y1: y1.toFixed(1), x2: x2.toFixed(1), y2: y2.toFixed(1), ...attributes });
}

export function grid(scale) {
  const found = [];
  for (const at of ticks(-scale.half, scale.half, 6)) {
    const [x, y] = scale.point([at, at]);
    const strong = at === 0 ? "var(--axis)" : "var(--grid)";
    found.push(line([x, 0], [x, scale.size], { stroke: strong }), line([0, y], [scale.size, y], { stroke: strong }));
    if (at === 0) continue;
    const middle = scale.size / 2;
    found.push(svg("text", { x, y: scale.size - 4, "text-anchor": "middle", "font-size": 10.5, fill: "var(--soft)" }, shown(at, 3)));
    if (Math.abs(y - middle) > 12) found.push(svg("text", { x: 3, y: y - 3, "font-size": 10.5, fill: "var(--soft)" }, shown(at, 3)));
  }
  return found;
}

/** Where W z is 1, 10, 100 ... long; the lengths stand where no marks are. */
export function rings(scale, marks) {
  const found = [];
  const stride = Math.max(1, Math.ceil(scale.decades / 4));
  const middle = scale.size / 2;
  for (let exponent = 0; exponent <= scale.decades; exponent += stride) {
    const r = scale.radius(10 ** exponent);
    const text = `|Wz| = ${shown(10 ** exponent)}`;
    const places = [-50, 230, 130, 50, -90, 90].map((degrees) => {
      const [x, y] = [middle + r * Math.cos((degrees * Math.PI) / 180), middle - r * Math.sin((degrees * Math.PI) / 180)];
      const box = [x - 34, y - 9, x + 34, y + 6];
      const covered = marks.reduce((sum, [a, b]) => sum + overlap(box, [a - 30, b - 22, a + 50, b + 18]), 0);
      return { x, y, covered };
    });
    const best = places.reduce((least, one) => (one.covered < least.covered ? one : least));
    found.push(svg("circle", { cx: middle, cy: middle, r: r.toFixed(1), fill: "none", stroke: "var(--ring)", "stroke-dasharray": "1 4" }));
    const look = { "text-anchor": "middle", "font-size": 10, fill: "var(--soft)", stroke: "var(--paper)", "stroke-width": 3, "paint-order": "stroke" };
    found.push(svg("text", { x: best.x.toFixed(1), y: (best.y + 3).toFixed(1), ...look }, text));
  }
  return found;
}

export function queryArrows(scale, scene, rows) {
  const origin = scale.point([0, 0]);
  const arrows = rows.map((row) => line(origin, scale.point(seenInPlane(row.z, scene.plane)), { stroke: colourOf(row.sequence), "stroke-width": 1.2, "stroke-dasharray": "2 3" }));
  return [...arrows, line(origin, scale.point(headTip(scene, scale)), { stroke: "var(--ink)", "stroke-width": 1.2, "stroke-dasharray": "2 3" })];
}

/** Where many queries are asked, only the one that is looked at is drawn in full. */
function strength(rows, view, r) {
  return rows.length <= MANY_QUERIES || r === Math.min(view.row, rows.length - 1) ? 1 : 0.2;
}

/** Arrows of the max-margin directions W z, all of one length. */
export function maxMargins(scale, rows, directions, view) {
  const found = [];
  for (const name of ["W", "KQ"]) {
    const solution = directions[NORM_OF[name]];
    if (!view[name] || !solution?.directions || solution.directions.length !== rows.length) continue;
    solution.directions.forEach(([a, b], r) => {
      const length = Math.hypot(a, b);
      if (length < 1e-12) return;
      const unit = [a / length, -b / length];
      const reach = scale.reach * (name === "W" ? 1 : 0.94);
      const tip = [scale.size / 2 + reach * unit[0], scale.size / 2 + reach * unit[1]];
      found.push(line([scale.size / 2, scale.size / 2], tip, { stroke: COLOURS[name], "stroke-width": 6, opacity: 0.22 * strength(rows, view, r), "stroke-dasharray": name === "W" ? null : "12 5", "data-direction": `${NORM_OF[name]}-${r}` }));
      found.push(svg("path", { d: arrowHead(tip, unit, 11), fill: COLOURS[name], opacity: 0.75 * strength(rows, view, r) }));
      found.push(svg("g", { transform: `translate(${(tip[0] + 15 * unit[0]).toFixed(1)} ${(tip[1] + 15 * unit[1]).toFixed(1)})` }, svg("path", { d: marker(rows[r].sequence, 4.5), fill: colourOf(rows[r].sequence), stroke: COLOURS[name], "stroke-width": 1.4 })));
    });
  }
  return found;
}

function arrowHead([x, y], [a, b], size) {
  const [left, right] = [
    [x - size * a - 0.45 * size * b, y - size * b + 0.45 * size * a],
    [x - size * a + 0.45 * size * b, y - size * b - 0.45 * size * a],
  ];
  return `M${x.toFixed(1)},${y.toFixed(1)}L${left.map((v) => v.toFixed(1))}L${right.map((v) => v.toFixed(1))}Z`;
}

/** W z, or K Q^T z, from step 0 to the last; what is still to come is faint. */
export function paths(scale, rows, name, run, index, view) {
  const now = index ?? run.steps.length - 1;
  const found = [];
  rows.forEach((row, r) => {
    const places = run.path.map((at) => at[r]).filter((at) => at && at[0] !== null && at[1] !== null).map((at) => scale.far(at));
    if (!places.length) return;
    const text = (some) => some.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
    const common = { fill: "none", stroke: COLOURS[name], "stroke-width": 2.2, "stroke-dasharray": DASHES[name], "stroke-linejoin": "round" };
    found.push(svg("path", { d: text(places), ...common, opacity: 0.3 * strength(rows, view, r) }));
    found.push(svg("path", { d: text(places.slice(0, now + 1)), ...common, opacity: strength(rows, view, r), "data-path": `${name}-${r}` }));
    const [x, y] = places[Math.min(now, places.length - 1)];
    found.push(svg("g", { transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` }, svg("path", { d: marker(row.sequence, 5), fill: COLOURS[name], stroke: "var(--paper)", "stroke-width": 1.2, "data-now": `${name}-${r}` })));
  });
  return found;
}

/** Attention at the record that is looked at: the more, the larger the halo. */
export function halos(scale, scene, rows, name, run, index) {
  const now = index ?? run.steps.length - 1;
  const found = [];
  rows.forEach((row, r) => {
    scene.x[row.sequence].forEach((token, t) => {
      const share = run.attention[now]?.[r]?.[t] ?? 0;
      if (share < 0.02) return;
      const [x, y] = scale.point(seenInPlane(token, scene.plane));
      const radius = (name === "W" ? 12 : 16) * Math.sqrt(share) + (name === "W" ? 3 : 4);
      found.push(svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: radius.toFixed(1), fill: name === "W" ? COLOURS.W : "none", "fill-opacity": 0.16, stroke: COLOURS[name], "stroke-width": 1.6, "stroke-dasharray": DASHES[name], "data-halo": `${name}-${r}-${t}` }));
    });
  });
  return found;
}

/** From each selected token to those that hold its direction in place. */
export function supportLines(scale, scene, rows, directions, view) {
  const found = [];
  for (const name of ["KQ", "W"]) {
    const solution = directions[NORM_OF[name]];
    const selected = directions.selected;
    if (!view[name] || !solution?.support || !selected) continue;
    for (const [r, t] of solution.support) {
      const from = scene.x[rows[r]?.sequence]?.[selected[r]?.[0]];
      const to = scene.x[rows[r]?.sequence]?.[t];
      if (!from || !to) continue;
      found.push(line(scale.point(seenInPlane(from, scene.plane)), scale.point(seenInPlane(to, scene.plane)), { stroke: COLOURS[name], "stroke-width": name === "W" ? 1.4 : 3.2, opacity: (name === "W" ? 0.9 : 0.35) * strength(rows, view, r), "stroke-dasharray": "1 3", "stroke-linecap": "round", "data-support": `${NORM_OF[name]}-${r}-${t}` }));
    }
  }
  return found;
}

/** The proof that no W separates: weighted differences of tokens, which with their queries add up to zero. */
export function farkasLines(scale, scene, rows, solution) {
  const selected = solution?.selected?.flat();
  if (!solution?.farkas?.length || !selected) return [];
  return solution.farkas.flatMap(([r, t, weight]) => {
    const from = scene.x[rows[r]?.sequence]?.[t];
    const to = scene.x[rows[r]?.sequence]?.[selected[r]];
    if (!from || !to) return [];
    const [a, b] = [from, to].map((token) => scale.point(seenInPlane(token, scene.plane)));
    const length = Math.hypot(b[0] - a[0], b[1] - a[1]) || 1;
    const unit = [(b[0] - a[0]) / length, (b[1] - a[1]) / length];
    const tip = [b[0] - 10 * unit[0], b[1] - 10 * unit[1]];
    return [
      line(a, tip, { stroke: "var(--bad)", "stroke-width": (2 + 8 * Math.abs(weight)).toFixed(1), opacity: 0.55, "data-farkas": `${r}-${t}` }),
      svg("path", { d: arrowHead(tip, unit, 13), fill: "var(--bad)" }),
      svg("g", { transform: `translate(${((a[0] + b[0]) / 2).toFixed(1)} ${((a[1] + b[1]) / 2 - 5).toFixed(1)})` }, tag(0, 0, `λ = ${shown(weight, 3)}`)),
    ];
  });
}
