// What is on the screen: a preset and what was changed. It is kept in the address, and can be undone.

const SETTINGS = ["head", "strength", "rule", "step", "loss", "steps"];
const MATRICES = ["v", "start", "plane", "chosen"];
const LONGEST_ADDRESS = 6000;

export const USUAL_VIEW = {
  of: "descent", // whose max-margin directions are drawn: descent, best or chosen
  at: null, // number of the record that is looked at, null for the last
  W: true,
  KQ: true,
  attention: "lines",
  row: 0, // the query whose attention is shown, and whose start the basins vary
  basins: false,
  basinsOf: "W",
  shape: "grid",
  radius: 2,
};

const copy = (value) => JSON.parse(JSON.stringify(value));
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** A fresh state of a preset, {preset, scene, view}. */
export function stateOf(preset) {
  return { preset: preset.id, scene: copy(preset.scene), view: { ...USUAL_VIEW, ...preset.view } };
}

/** The address of a state: what differs from its preset; null if that is too long for an address. */
export function addressOf(state, preset) {
  const parts = [];
  const { scene, view } = state;
  const usual = stateOf(preset);
  const add = (name, value) => parts.push(`${name}=${value}`);
  for (const name of SETTINGS) if (!same(scene[name], usual.scene[name])) add(name, scene[name]);
  for (const name of MATRICES) if (!same(scene[name], usual.scene[name])) add(name, scene[name] === null ? "none" : numbersText(scene[name]));
  if (scene.x.length !== usual.scene.x.length) add("n", scene.x.length);
  for (const name of ["x", "z", "y"]) {
    scene[name].forEach((one, i) => {
      if (!same(one, usual.scene[name][i])) add(`${name}${i}`, numbersText(one));
    });
  }
  for (const name of Object.keys(USUAL_VIEW)) if (!same(view[name], usual.view[name])) add(`view.${name}`, view[name]);
  const text = [`preset=${state.preset}`, ...parts].join("&");
  if (text.length > LONGEST_ADDRESS) return null;
  return parts.length || state.preset !== "" ? text : "";
}

/** The state of an address; what cannot be read in it is left as the preset has it. */
export function stateOfAddress(text, presets) {
  const entries = new Map(
    text
      .replace(/^#/, "")
      .split("&")
      .filter((part) => part.includes("="))
      .map((part) => [part.slice(0, part.indexOf("=")), decodeURIComponent(part.slice(part.indexOf("=") + 1))]),
  );
  const preset = presets.find((one) => one.id === entries.get("preset")) ?? presets[0];
  const state = stateOf(preset);
  const { scene } = state;
  const n = Number(entries.get("n") ?? scene.x.length);
  if (Number.isInteger(n) && n >= 1 && n <= 64) {
    for (const name of ["x", "z", "y"]) {
      while (scene[name].length > n) scene[name].pop();
      while (scene[name].length < n) scene[name].push(copy(scene[name][scene[name].length - 1]));
    }
  }
  for (const [name, value] of entries) {
    const place = /^([xzy])(\d+)$/.exec(name);
    if (SETTINGS.includes(name)) scene[name] = typeof scene[name] === "number" ? numberOr(value, scene[name]) : value;
    else if (MATRICES.includes(name)) scene[name] = value === "none" ? null : numbersOr(value, scene[name]);
    else if (place && Number(place[2]) < n) scene[place[1]][Number(place[2])] = numbersOr(value, scene[place[1]][Number(place[2])]);
    else if (name.startsWith("view.")) state.view[name.slice(5)] = viewValue(name.slice(5), value);
  }
  return state;
}

function viewValue(name, text) {
  if (!(name in USUAL_VIEW)) return undefined;
  if (text === "true" || text === "false") return text === "true";
  if (text === "null") return null;
  const number = Number(text);
  return text.trim() !== "" && Number.isFinite(number) ? number : text;
}

function numbersText(value) {
  if (!Array.isArray(value)) return String(value);
  if (!Array.isArray(value[0])) return value.join(",");
  if (!Array.isArray(value[0][0])) return value.map((row) => row.join(",")).join(";");
  return JSON.stringify(value);
}

function numberOr(text, usual) {
  const number = Number(text);
  return text.trim() !== "" && Number.isFinite(number) ? number : usual;
}

/** Numbers as deep as those they stand for. */
function numbersOr(text, usual) {
  try {
    if (text.startsWith("[")) return JSON.parse(text);
    const rows = text.split(";").map((row) => row.split(",").map((part) => numberOr(part, NaN)));
    if (rows.flat().some(Number.isNaN)) return usual;
    if (typeof usual === "number") return rows[0][0];
    return Array.isArray(usual?.[0]) ? rows : rows[0];
  } catch {
    return usual;
  }
}

/** States that one can go back to. */
export class History {
  constructor() {
    this.before = [];
    this.after = [];
  }

  /** Remember a state that is about to be changed. */
  remember(state) {
    const text = JSON.stringify(state);
    if (this.before[this.before.length - 1] === text) return;
    this.before.push(text);
    if (this.before.length > 200) this.before.shift();
    this.after = [];
  }

  undo(state) {
    return this.#step(this.before, this.after, state);
  }

  redo(state) {
    return this.#step(this.after, this.before, state);
  }

  #step(from, to, state) {
    while (from.length) {
      const text = from.pop();
      if (text === JSON.stringify(state)) continue;
      to.push(JSON.stringify(state));
      return JSON.parse(text);
    }
    return null;
  }
}
