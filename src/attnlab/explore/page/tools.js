// Choices in the headings of panels: which query, lines or shades, and which starts.

import { html } from "./drawing.js";
import { queryName, rowsOf } from "./marks.js";

export class Tools {
  /** `change(name, value)` is called with what a reader chooses. */
  constructor(change) {
    const select = (id, name, label, options, read = (value) => value) =>
      html("select", { id, "aria-label": label, change: (event) => change(name, read(event.target.value)) }, ...Object.entries(options).map(([value, text]) => html("option", { value }, text)));
    this.row = select("row", "row", "query", {}, Number);
    this.attention = select("attention", "attention", "how attention is drawn", { lines: "lines", heat: "heat map" });
    this.box = html("input", { type: "checkbox", id: "basins", change: (event) => change("basins", event.target.checked) });
    this.basinsOf = select("basins-of", "basinsOf", "parameterization", { W: "W", KQ: "(K, Q)" });
    this.shape = select("shape", "shape", "starts on", { grid: "grid", circle: "circle" });
    this.radius = html("input", { id: "radius", type: "number", min: 0.1, max: 100, step: 0.5, "aria-label": "radius", change: (event) => change("radius", Number(event.target.value) || 2) });
    this.ofAttention = [this.row, this.attention];
    this.ofBasins = [html("label", {}, this.box, "on"), this.basinsOf, this.shape, html("label", {}, "radius", this.radius)];
  }

  /** Show what is chosen. */
  show(scene, view) {
    const rows = rowsOf(scene);
    const names = rows.map((row) => `query ${queryName(row)}`);
    if (this.row.dataset.names !== names.join()) this.row.replaceChildren(...names.map((name, r) => html("option", { value: r }, name)));
    this.row.dataset.names = names.join();
    this.row.value = Math.min(view.row, rows.length - 1);
    this.box.checked = view.basins;
    for (const name of ["attention", "basinsOf", "shape", "radius"]) if (document.activeElement !== this[name]) this[name].value = view[name];
  }
}
