// What the marks of the plane mean.

import { html, svg } from "./drawing.js";

/** A list of marks and their meanings. */
export function legend() {
  const mark = (...parts) => svg("svg", { width: 22, height: 16, viewBox: "-11 -8 22 16" }, ...parts);
  const line = (attributes) => svg("line", { x1: -11, x2: 11, ...attributes });
  return html(
    "ul",
    { class: "key-to-marks" },
    html("li", {}, mark(svg("circle", { r: 5.5, fill: "var(--s0)", stroke: "var(--ink)", "stroke-width": 2 })), "token, with its name and score; outlined: best"),
    html("li", {}, mark(svg("circle", { r: 5.5, fill: "var(--paper)", stroke: "var(--s0)", "stroke-width": 2 })), "query z"),
    html("li", {}, mark(svg("path", { d: "M-6,0H6M0,-6V6", stroke: "var(--s0)", "stroke-width": 2.4 })), "start of W z"),
    html("li", {}, mark(svg("rect", { x: -5, y: -5, width: 10, height: 10, fill: "none", stroke: "var(--ink)", "stroke-width": 1.6 })), "head v"),
    html("li", {}, mark(line({ stroke: "var(--w)", "stroke-width": 6, opacity: 0.25 })), "max-margin direction of W z"),
    html("li", {}, mark(line({ stroke: "var(--w)", "stroke-width": 2.2 })), "path of W z: direction true, length on the rings"),
    html("li", {}, mark(svg("circle", { r: 6, fill: "var(--w)", "fill-opacity": 0.16, stroke: "var(--w)" })), "attention at this step"),
    html("li", {}, mark(line({ stroke: "var(--w)", "stroke-width": 1.4, "stroke-dasharray": "1 3" })), "support: tight constraint"),
  );
}
