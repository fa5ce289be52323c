// Small things to draw with: elements of HTML and SVG, markers, numbers as text.

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element with attributes and children; children that are no nodes become text. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

/** The same for HTML; attributes that are functions listen to the event of that name. */
export function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function filled(element, attributes, children) {
  set(element, attributes);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Change attributes; null and false take one away. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === null || value === undefined || value === false) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value === true ? "" : value);
  }
  return element;
}

/** Colour of a sequence, of which there may be more than colours. */
export function colourOf(sequence) {
  return `var(--s${sequence % 6})`;
}

/** Name of a sequence for readers, A to Z; of one beyond, a number. */
export function sequenceName(sequence) {
  return sequence < 26 ? String.fromCharCode(65 + sequence) : `(${sequence})`;
}

/** Name of a token for readers. */
export function tokenName(sequence, token) {
  return `${sequenceName(sequence)}${token}`;
}

export const NAMES = { W: "W", KQ: "(K, Q)", frobenius: "Frobenius", nuclear: "nuclear" };
export const COLOURS = { W: "var(--w)", KQ: "var(--kq)", frobenius: "var(--w)", nuclear: "var(--kq)" };
export const DASHES = { W: null, KQ: "6 3", frobenius: null, nuclear: "6 3" };
export const NORM_OF = { W: "frobenius", KQ: "nuclear" };

/** Outline of the marker of a sequence, of this radius, around zero. Shapes tell sequences apart without colour. */
export function marker(sequence, radius) {
  const r = radius;
  const shapes = [
    `M${-r},0A${r},${r} 0 1 0 ${r},0A${r},${r} 0 1 0 ${-r},0Z`,
    polygon(4, r * 1.2, 45),
    polygon(3, r * 1.35, -90),
    polygon(4, r * 1.3, 0),
    polygon(5, r * 1.2, -90),
    cross(r * 1.2),
  ];
  return shapes[sequence % shapes.length];
}

function polygon(corners, radius, turn) {
  const points = [];
  for (let i = 0; i < corners; i += 1) {
    const angle = ((turn + (360 * i) / corners) * Math.PI) / 180;
    points.push(`${(radius * Math.cos(angle)).toFixed(2)},${(radius * Math.sin(angle)).toFixed(2)}`);
  }
  return `M${points.join("L")}Z`;
}

function cross(r) {
  const a = r * 0.4;
  return `M${-a},${-r}H${a}V${-a}H${r}V${a}H${a}V${r}H${-a}V${a}H${-r}V${-a}H${-a}Z`;
}

/** A number for a reader: four digits, powers of ten where it is very large or small. */
export function shown(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "none";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(Math.min(digits - 1, 2)).replace("e+", "e").replace("-", "−");
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

/** A power of ten as text with a raised exponent. */
export function powerOfTen(exponent) {
  const raised = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
  if (exponent === 0) return "1";
  if (exponent === 1) return "10";
  return `10${[...String(exponent)].map((letter) => raised[letter]).join("")}`;
}

/** About `count` round numbers from low to high. */
export function ticks(low, high, count) {
  const span = high - low || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough) ?? power * 10;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9 * span; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}
