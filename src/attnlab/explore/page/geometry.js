// From numbers to places on the screen. No mathematics of attention is done here: only scales of a picture.

/** The square of the plane that shows all points and the origin, with room around: {middle, half}. */
export function frameOf(points) {
  const all = [[0, 0], ...points];
  const low = [0, 1].map((k) => Math.min(...all.map((p) => p[k])));
  const high = [0, 1].map((k) => Math.max(...all.map((p) => p[k])));
  // The origin stands in the middle, for directions start there.
  const half = 1.18 * Math.max(...low.map(Math.abs), ...high.map(Math.abs), 0.1);
  return { half };
}

/** Maps between the plane and a square of `size` pixels, and a logarithmic one for lengths of W z. */
export class Scale {
  constructor(frame, size, longest) {
    this.half = frame.half;
    this.size = size;
    this.reach = 0.46 * size; // pixels of the longest W z
    this.decades = Math.max(1, Math.ceil(Math.log10(1 + longest)));
  }

  /** Pixels of a point. */
  point([a, b]) {
    return [(this.size / 2) * (1 + a / this.half), (this.size / 2) * (1 - b / this.half)];
  }

  /** The point at pixels. */
  atPixel(x, y) {
    return [this.half * ((2 * x) / this.size - 1), this.half * (1 - (2 * y) / this.size)];
  }

  /** Pixels from the origin of a W z of this length. */
  radius(length) {
    return (this.reach * Math.log10(1 + length)) / this.decades;
  }

  /** Pixels of a W z: its direction is true, its length logarithmic. */
  far([a, b]) {
    const length = Math.hypot(a, b);
    const middle = this.size / 2;
    if (length === 0) return [middle, middle];
    const r = this.radius(length);
    return [middle + (r * a) / length, middle - (r * b) / length];
  }

  /** The W z at pixels: the inverse of `far`. */
  farAtPixel(x, y) {
    const [a, b] = [x - this.size / 2, this.size / 2 - y];
    const r = Math.hypot(a, b);
    if (r < 1e-9) return [0, 0];
    const length = 10 ** ((Math.min(r, this.reach) * this.decades) / this.reach) - 1;
    return [(length * a) / r, (length * b) / r];
  }
}

/** Rounded as coordinates are kept: short in an address, and equal on the screen and in the copied program. */
export function rounded(value) {
  return Number(value.toFixed(4)) + 0;
}

/** A point of any dimension moved by a step (a, b) of the plane, whose rows are orthonormal. */
export function movedInPlane(point, plane, [a, b]) {
  return point.map((value, k) => rounded(value + a * plane[0][k] + b * plane[1][k]));
}

/** Where the plane sees a point. */
export function seenInPlane(point, plane) {
  return plane.map((row) => row.reduce((sum, value, k) => sum + value * point[k], 0));
}
