// The plane: tokens, queries and starts that can be dragged, and where attention goes.

import { colourOf, marker, sequenceName, set, shown, svg, tokenName } from "./drawing.js";
import { Scale, frameOf, seenInPlane } from "./geometry.js";
import { labelPlaces } from "./labels.js";
import { farkasLines, grid, halos, headTip, maxMargins, paths, queryArrows, queryName, rings, rowsOf, supportLines, tag } from "./marks.js";

const NUDGE = 0.02;
const MANY_TOKENS = [24, 60]; // beyond, labels have no scores; beyond, there are none
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

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
