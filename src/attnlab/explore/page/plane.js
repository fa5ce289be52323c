// The plane: tokens, queries and starts that can be dragged, and where attention goes.

import { COLOURS, DASHES, NORM_OF, colourOf, marker, sequenceName, set, shown, svg, ticks, tokenName } from "./drawing.js";
import { Scale, frameOf, seenInPlane } from "./geometry.js";

const NUDGE = 0.02;
const MANY_QUERIES = 3; // beyond, all but one are faint
const MANY_TOKENS = [24, 60]; // beyond, labels have no scores; beyond, there are none
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/** Sequence of every query, and its number in the sequence. */
export function rowsOf(scene) {
  return scene.z.flatMap((one, sequence) => (Array.isArray(one[0]) ? one.map((z, query) => ({ sequence, query, z })) : [{ sequence, query: null, z: one }]));
}

/** Name of a query for readers. */
export function queryName(row) {
  const name = `z${sequenceName(row.sequence)}`;
  return row.query === null ? name : `${name}.${row.query}`;
}

export class Plane {
  /**
   * `on` has functions: begin(key), move(key, place, time), end(key), press(key, action), focus(key).
   * A key is token-I-T, query-ROW, start-ROW or head.
   */
  constructor(on, canDrag = () => true) {
    this.on = on;
    this.canDrag = canDrag;
    this.element = svg("svg", { class: "plane", role: "application", "aria-label": "Tokens and queries in the plane; use the arrow keys to move the focused one" });
    this.back = svg("g", { "aria-hidden": "true" });
    this.front = svg("g");
    this.element.append(this.back, this.front);
    this.handles = new Map();
    this.frame = null;
    this.drag = null;
    this.#listen();
  }

  /** Show everything from now on within a frame that fits this scene. */
  fit(scene) {
    const points = [...scene.x.flat(), ...rowsOf(scene).map((row) => row.z), scene.v];
    this.frame = frameOf(points.map((point) => seenInPlane(point, scene.plane)));
  }

  /** Draw a scene with what is known of it. `index` is the record that is looked at, null for the last. */
  draw({ scene, view, solved, trained, directions, index }, size) {
    if (!this.frame) this.fit(scene);
    this.scene = scene;
    const runs = shownRuns(trained, view);
    if (!this.drag?.key.startsWith("start")) {
      const lengths = runs.flatMap(([, run]) => run.path.flat().map(([a, b]) => Math.hypot(a ?? 0, b ?? 0)));
      this.longest = Math.max(9, ...lengths);
    }
    const scale = new Scale(this.frame, size, this.longest);
    this.scale = scale;
    set(this.element, { width: size, height: size, viewBox: `0 0 ${size} ${size}` });
    const rows = rowsOf(scene);
    const layers = [
      ...grid(scale),
      ...rings(scale, [...scene.x.flat(), ...rows.map((row) => row.z)].map((point) => scale.point(seenInPlane(point, scene.plane)))),
      ...farkasLines(scale, scene, rows, directions.frobenius),
      ...supportLines(scale, scene, rows, directions, view),
      ...maxMargins(scale, rows, directions, view),
      ...runs.flatMap(([name, run]) => paths(scale, rows, name, run, index, view)),
      ...runs.flatMap(([name, run]) => halos(scale, scene, rows, name, run, index)),
      ...queryArrows(scale, scene, rows),
    ];
    this.back.replaceChildren(...layers);
    this.#drawHandles(scale, scene, rows, solved, runs);
  }

  #drawHandles(scale, scene, rows, solved, runs) {
    const wanted = new Set();
    const put = (key, at, parts, name) => {
      wanted.add(key);
      let handle = this.handles.get(key);
      if (!handle) {
        handle = svg("g", { "data-key": key, tabindex: 0, role: "button" });
        this.handles.set(key, handle);
      }
      set(handle, { transform: `translate(${at[0].toFixed(2)} ${at[1].toFixed(2)})`, "aria-label": name, class: this.canDrag(key) ? "handle" : "still" });
      handle.replaceChildren(...parts);
    };
    put("head", scale.point(headTip(scene, scale)), headParts(), "head v, which scores the tokens");
    rows.forEach((row, r) => {
      const start = solved ? startOf(solved, runs, r) : null;
      if (start) put(`start-${r}`, scale.far(start), startParts(row), `start of W ${queryName(row)}`);
      put(`query-${r}`, scale.point(seenInPlane(row.z, scene.plane)), queryParts(row, sameBefore(rows, r)), `query ${queryName(row)}`);
    });
    const best = bestTokens(scene, rows, solved);
    const crowded = scene.x.flat().length > MANY_TOKENS[1];
    const scored = scene.x.flat().length <= MANY_TOKENS[0];
    const places = crowded ? new Map() : labelPlaces(scale, scene, rows, scored ? 58 : 20);
    scene.x.forEach((tokens, i) => {
      tokens.forEach((token, t) => {
        const score = scoreOf(solved, rows, i, t);
        const parts = tokenParts(i, t, scored ? score : null, best.has(`${i}-${t}`), crowded, places.get(`${i}-${t}`));
        put(`token-${i}-${t}`, scale.point(seenInPlane(token, scene.plane)), parts, `token ${t} of sequence ${sequenceName(i)}${score === null ? "" : `, score ${shown(score, 3)}`}`);
      });
    });
    const focused = document.activeElement?.closest?.("[data-key]")?.getAttribute("data-key");
    for (const [key, handle] of this.handles) {
      if (!wanted.has(key)) {
        handle.remove();
        this.handles.delete(key);
      }
    }
    const inOrder = [...wanted].map((key) => this.handles.get(key));
    const moved = inOrder.some((handle, i) => this.front.children[i] !== handle);
    if (moved) this.front.replaceChildren(...inOrder);
    if (moved && focused && wanted.has(focused)) this.handles.get(focused).focus({ preventScroll: true });
  }

  #listen() {
    const keyOf = (event) => event.target.closest?.("[data-key]")?.getAttribute("data-key") ?? null;
    this.element.addEventListener("pointerdown", (event) => {
      const key = keyOf(event);
      if (!key || !this.canDrag(key) || event.button !== 0) return;
      event.preventDefault();
      this.handles.get(key).focus({ preventScroll: true });
      const [x, y] = this.#pixels(event);
      const [, tx, ty] = /translate\(([-\d.]+) ([-\d.]+)\)/.exec(this.handles.get(key).getAttribute("transform"));
      this.drag = { key, pointer: event.pointerId, offset: [Number(tx) - x, Number(ty) - y], moved: false };
      this.element.setPointerCapture(event.pointerId);
      this.on.begin(key);
    });
    this.element.addEventListener("pointermove", (event) => {
      if (!this.drag || event.pointerId !== this.drag.pointer) return;
      const [x, y] = this.#pixels(event);
      const at = [x + this.drag.offset[0], y + this.drag.offset[1]].map((pixel) => Math.min(this.scale.size - 2, Math.max(2, pixel)));
      this.drag.moved = true;
      this.on.move(this.drag.key, this.drag.key.startsWith("start") ? this.scale.farAtPixel(...at) : this.scale.atPixel(...at), event.timeStamp);
    });
    const end = (event) => {
      if (!this.drag || event.pointerId !== this.drag.pointer) return;
      const { key, moved } = this.drag;
      this.drag = null;
      this.on.end(key, moved);
    };
    this.element.addEventListener("pointerup", end);
    this.element.addEventListener("pointercancel", end);
    this.element.addEventListener("focusin", (event) => keyOf(event) && this.on.focus(keyOf(event)));
    this.element.addEventListener("dblclick", (event) => {
      const key = keyOf(event);
      if (key) this.on.press(key, "choose");
      else this.on.press(null, "add", this.scale.atPixel(...this.#pixels(event)));
    });
    this.element.addEventListener("keydown", (event) => {
      const key = keyOf(event);
      if (!key || !this.canDrag(key) || event.ctrlKey || event.metaKey) return;
      const arrow = ARROWS[event.key];
      const action = { Delete: "remove", Backspace: "remove", Enter: "choose", a: "add", l: "label" }[event.key];
      if (!arrow && !action) return;
      event.preventDefault();
      event.stopPropagation();
      if (action) this.on.press(key, action);
      else this.on.press(key, "nudge", arrow.map((side) => side * NUDGE * (event.shiftKey ? 5 : 1)), event.timeStamp);
    });
  }

  #pixels(event) {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }
}

/** The runs that are there and are to be shown. */
export function shownRuns(trained, view) {
  if (!trained) return [];
  return ["W", "KQ"].filter((name) => view[name] && trained.runs[name] && !trained.runs[name].error).map((name) => [name, trained.runs[name]]);
}

function startOf(solved, runs, r) {
  if (solved.pulled?.row === r) return solved.pulled.at;
  const path = runs[0]?.[1].path[0];
  return path?.[r] ?? null;
}

function headTip(scene, scale) {
  // The head is shown as long as it is, but never beyond the edge.
  const [a, b] = seenInPlane(scene.v, scene.plane);
  const size = Math.max(Math.abs(a), Math.abs(b));
  const most = 0.93 * scale.half;
  return size > most ? [(a * most) / size, (b * most) / size] : [a, b];
}

function bestTokens(scene, rows, solved) {
  if (!solved || solved.best.length !== rows.length) return new Set();
  return new Set(rows.map((row, r) => `${row.sequence}-${solved.best[r]}`));
}

function scoreOf(solved, rows, sequence, token) {
  const r = rows.findIndex((row) => row.sequence === sequence);
  return solved?.scores[r]?.[token] ?? null;
}

function headParts() {
  return [svg("circle", { r: 11, fill: "transparent" }), svg("rect", { x: -5, y: -5, width: 10, height: 10, fill: "var(--paper)", stroke: "var(--ink)", "stroke-width": 1.6 }), tag(9, -7, "v")];
}

function startParts(row) {
  return [
    svg("circle", { r: 11, fill: "transparent" }),
    svg("path", { d: "M-6,0H6M0,-6V6", stroke: "var(--paper)", "stroke-width": 5 }),
    svg("path", { d: "M-6,0H6M0,-6V6", stroke: colourOf(row.sequence), "stroke-width": 2.4 }),
  ];
}

/** How many queries before this one stand at the same place: their names go side by side. */
function sameBefore(rows, r) {
  return rows.slice(0, r).filter((row) => row.z.every((value, k) => Math.abs(value - rows[r].z[k]) < 1e-9)).length;
}

function queryParts(row, before) {
  return [
    svg("circle", { r: 13, fill: "transparent" }),
    svg("path", { d: marker(row.sequence, 6.5), fill: "var(--paper)", stroke: colourOf(row.sequence), "stroke-width": 2.4 }),
    tag(10 + 20 * before, 4, queryName(row)),
  ];
}

function tokenParts(sequence, token, score, isBest, crowded, place) {
  return [
    svg("circle", { r: 13, fill: "transparent" }),
    svg("path", { d: marker(sequence, crowded ? 4 : 7), fill: colourOf(sequence), stroke: isBest ? "var(--ink)" : "var(--paper)", "stroke-width": isBest ? 2.6 : 1.2 }),
    crowded ? null : tokenTag(place, tokenName(sequence, token), score),
  ].filter(Boolean);
}

/** Name and score of a token; the score in a fainter colour. */
function tokenTag([x, y, anchor], name, score) {
  const text = tag(x, y, "", anchor);
  text.append(svg("tspan", { "font-weight": 600 }, name));
  if (score !== null) text.append(svg("tspan", { fill: "var(--soft)", dx: 4 }, shown(score, 2)));
  return text;
}

// Where a label may stand beside its token: [x, y, anchor], the best place first.
const BESIDE = [
  [10, -8, "start"],
  [10, 16, "start"],
  [-10, -8, "end"],
  [-10, 16, "end"],
  [0, -15, "middle"],
  [0, 24, "middle"],
  [15, 4, "start"],
  [-15, 4, "end"],
];
const LABEL_HEIGHT = 13;

/** For each token the place of its label that is least in the way of other tokens, queries and labels. */
function labelPlaces(scale, scene, rows, width) {
  const tokens = scene.x.flatMap((sequence, i) => sequence.map((token, t) => ({ key: `${i}-${t}`, at: scale.point(seenInPlane(token, scene.plane)) })));
  const marks = [...tokens.map((one) => one.at), ...rows.map((row) => scale.point(seenInPlane(row.z, scene.plane)))].map(([x, y]) => [x - 9, y - 9, x + 9, y + 9]);
  const taken = rows.map((row) => scale.point(seenInPlane(row.z, scene.plane))).map(([x, y]) => [x + 8, y - 8, x + 30, y + 8]);
  const found = new Map();
  for (const { key, at } of tokens) {
    const costs = BESIDE.map(([x, y, anchor], order) => {
      const left = at[0] + x - { start: 0, middle: width / 2, end: width }[anchor];
      const box = [left, at[1] + y - LABEL_HEIGHT + 2, left + width, at[1] + y + 2];
      const outside = box[0] < 0 || box[2] > scale.size || box[1] < 0 || box[3] > scale.size ? 2000 : 0;
      const covered = [...taken, ...marks].reduce((sum, other) => sum + overlap(box, other), 0);
      return { place: BESIDE[order], box, cost: covered + outside + order };
    });
    const best = costs.reduce((least, one) => (one.cost < least.cost ? one : least));
    taken.push(best.box);
    found.set(key, best.place);
  }
  return found;
}

function overlap(a, b) {
  const across = Math.min(a[2], b[2]) - Math.max(a[0], b[0]);
  const up = Math.min(a[3], b[3]) - Math.max(a[1], b[1]);
  return across > 0 && up > 0 ? across * up : 0;
}

/** Text that stays readable above lines. */
function tag(x, y, text, anchor = "start") {
  return svg("text", { x, y, "text-anchor": anchor, "font-size": 11.5, fill: "var(--ink)", stroke: "var(--paper)", "stroke-width": 3.2, "paint-order": "stroke", "stroke-linejoin": "round", "pointer-events": "none" }, text);
}

function line([x1, y1], [x2, y2], attributes) {
  return svg("line", { x1: x1.toFixed(1), y1: y1.toFixed(1), x2: x2.toFixed(1), y2: y2.toFixed(1), ...attributes });
}

function grid(scale) {
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
function rings(scale, marks) {
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

function queryArrows(scale, scene, rows) {
  const origin = scale.point([0, 0]);
  const arrows = rows.map((row) => line(origin, scale.point(seenInPlane(row.z, scene.plane)), { stroke: colourOf(row.sequence), "stroke-width": 1.2, "stroke-dasharray": "2 3" }));
  return [...arrows, line(origin, scale.point(headTip(scene, scale)), { stroke: "var(--ink)", "stroke-width": 1.2, "stroke-dasharray": "2 3" })];
}

/** Where many queries are asked, only the one that is looked at is drawn in full. */
function strength(rows, view, r) {
  return rows.length <= MANY_QUERIES || r === Math.min(view.row, rows.length - 1) ? 1 : 0.2;
}

/** Arrows of the max-margin directions W z, all of one length. */
function maxMargins(scale, rows, directions, view) {
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
function paths(scale, rows, name, run, index, view) {
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
function halos(scale, scene, rows, name, run, index) {
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
function supportLines(scale, scene, rows, directions, view) {
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
function farkasLines(scale, scene, rows, solution) {
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
