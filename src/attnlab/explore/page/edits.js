// What dragging, keys and buttons do to a scene. Each function changes the scene that it is given.

import { movedInPlane, rounded, seenInPlane } from "./geometry.js";
import { rowsOf } from "./marks.js";

const START = 0.4; // size of a random start

/** Put what a key names, token-I-T, query-ROW, head or start-ROW, where the plane sees it at this place. */
export function placed(scene, key, place, snapped) {
  const [kind, a, b] = key.split("-");
  const there = (point) => movedInPlane(point, scene.plane, place.map((value, k) => value - seenInPlane(point, scene.plane)[k]));
  if (kind === "token") scene.x[a][b] = snapped(there(scene.x[a][b]));
  else if (kind === "head") scene.v = there(scene.v);
  else if (kind === "query") setQuery(scene, Number(a), there(rowsOf(scene)[a].z));
  else scene.pull = { query: Number(a), to: inSpace(scene, place) };
}

function setQuery(scene, r, z) {
  const row = rowsOf(scene)[r];
  if (row.query === null) scene.z[row.sequence] = z;
  else scene.z[row.sequence][row.query] = z;
}

/** The point of the plane itself. */
function inSpace(scene, place) {
  return movedInPlane(scene.v.map(() => 0), scene.plane, place);
}

/** A copy of the last sequence, turned. */
export function addSequence(scene, most) {
  if (scene.x.length >= most) return;
  const turned = ([a, b, ...rest]) => [rounded(0.8 * b + 0.1), rounded(-0.8 * a - 0.1), ...rest];
  scene.x.push(scene.x.at(-1).map(turned));
  scene.z.push(Array.isArray(scene.z.at(-1)[0]) ? scene.z.at(-1).map(turned) : turned(scene.z.at(-1)));
  scene.y.push(scene.y.at(-1));
  scene.chosen = null;
}

export function removeSequence(scene, sequence) {
  if (scene.x.length <= 1) return;
  for (const name of ["x", "z", "y"]) scene[name].splice(sequence, 1);
  scene.chosen = null;
}

export function flipLabel(scene, sequence) {
  if (typeof scene.y[sequence] === "number") scene.y[sequence] *= -1;
}

/** A place for the next token, where there is likely to be room. */
export function aside(count, frame) {
  const angle = 2.4 * (count * 0.6 + 1);
  return [0.7 * frame.half * Math.cos(angle), 0.7 * frame.half * Math.sin(angle)];
}

export function addToken(scene, sequence, place) {
  scene.x[sequence].push(inSpace(scene, place));
  delete scene.mask;
}

export function removeToken(scene, sequence, token) {
  if (scene.x[sequence].length <= 1) return;
  scene.x[sequence].splice(token, 1);
  scene.chosen = null;
  delete scene.mask;
}

/** Choose a token by hand for the queries of its sequence; others keep what they have. */
export function choose(scene, sequence, token, best) {
  const rows = rowsOf(scene);
  const flat = (scene.chosen ?? best).flat();
  const chosen = rows.map((row, r) => (row.sequence === sequence ? token : (flat[r] ?? 0)));
  scene.chosen = rows[0].query === null ? chosen : shapedAs(scene.y, chosen);
}

function shapedAs(pattern, flat) {
  let next = 0;
  return pattern.map((one) => (Array.isArray(one) ? one.map(() => flat[next++]) : flat[next++]));
}

export function randomStart(scene) {
  scene.start = scene.start.map((row) => row.map(() => rounded((START * (2 * Math.random() - 1)) / Math.sqrt(row.length))));
}
