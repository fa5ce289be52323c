// Where the names of tokens stand, out of each other's way.

import { seenInPlane } from "./geometry.js";

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
export function labelPlaces(scale, scene, rows, width) {
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

/** Area that two boxes [left, top, right, bottom] share. */
export function overlap(a, b) {
  const across = Math.min(a[2], b[2]) - Math.max(a[0], b[0]);
  const up = Math.min(a[3], b[3]) - Math.max(a[1], b[1]);
  return across > 0 && up > 0 ? across * up : 0;
}
